"""Decides from a lost run's last samples whether the host ran out of memory. A lost run is one that sends nothing any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.first_aid import HOST
from vramscope.protocol.number_format import amount
from vramscope_server.analysis.array_types import FloatArray

HOST_NEARLY_FULL: Final = 0.95
PROCESS_NEARLY_ALL: Final = 0.90
"""Share of the host's memory. Above it, Linux has most likely ended a process that vanished."""
RISE_SECONDS: Final = 2.0
"""Interval at the end over which the growth of a process is measured."""
UNSENT_SECONDS: Final = 1.0
"""Longest time of samples that a killed process could not send. Batches are sent five times a second, or later if memory is
short."""


@dataclass(frozen=True, slots=True)
class LostRun:
    """Cause, sentence and first aid, as for an out-of-memory error."""

    kind: CauseKind
    sentence: str
    first_aid: str


def lost_run(
    seconds: FloatArray, rss: FloatArray, used: FloatArray, host_total_bytes: int | None, who: str = "The process"
) -> LostRun | None:
    """Return the verdict on a lost run; None if there is no evidence that host memory ran out.

    seconds, rss, used   the samples' times, ``process_rss_bytes`` and ``host_used_bytes``, NaN where unknown
    who                  subject of the sentence
    """
    if not host_total_bytes:
        return None
    own, in_use = _last(rss), _last(used)
    # In a container the total may be its limit, while the use is that of the whole machine. Then only the memory of the
    # process counts.
    shared = in_use if in_use is not None and in_use <= host_total_bytes else None
    full = shared is not None and shared >= HOST_NEARLY_FULL * host_total_bytes
    alone = own is not None and own >= PROCESS_NEARLY_ALL * host_total_bytes
    reason = "The host's memory was full." if full or alone else None
    reason = reason or _rise(seconds, rss, host_total_bytes, own if shared is None else shared)
    if reason is None:
        return None
    sentence = (
        f"{who} was most likely ended by Linux (out-of-memory killer): no signal since. {reason} "
        f"It used {amount(_whole(own))} of {amount(host_total_bytes)}; {amount(_whole(in_use))} were in use in total."
    )
    return LostRun(CauseKind.OUTSIDE_PYTORCH, sentence, HOST)


def _rise(seconds: FloatArray, rss: FloatArray, total_bytes: int, used_bytes: float | None) -> str | None:
    """Return a sentence if the process grew so fast that it would have filled the host's memory before its next samples."""
    known = np.flatnonzero(np.isfinite(rss))
    known = known[seconds[known] >= seconds[known[-1]] - RISE_SECONDS] if len(known) else known
    if used_bytes is None or len(known) < 3 or (passed := seconds[known[-1]] - seconds[known[0]]) < RISE_SECONDS / 4:
        return None
    rate = (rss[known[-1]] - rss[known[0]]) / passed
    if rate <= 0 or (left := (total_bytes - used_bytes) / rate) > UNSENT_SECONDS:
        return None
    return f"It grew by {amount(int(rate))} a second, which would have filled the host's memory {left:.1f} s later."


def _last(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
