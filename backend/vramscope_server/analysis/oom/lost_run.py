"""A run that fell silent without a word: what its last samples say of why."""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.oom_diagnosis.cause import Verdict, amount, judge
from vramscope.oom_diagnosis.facts import Facts
from vramscope_server.analysis.series.window import FloatArray

HOST_NEARLY_FULL: Final = 0.95
PROCESS_NEARLY_ALL: Final = 0.90
"""of the host's memory: from there on a process that vanishes without a word was most likely ended by Linux"""
RISE_SECONDS: Final = 2.0
"""over which it is looked how fast a process took memory at its end"""
UNTOLD_SECONDS: Final = 1.0
"""what a process saw last and could not tell: batches leave five times a second, later where memory is short"""


def vanished(
    seconds: FloatArray, rss: FloatArray, used: FloatArray, host_total_bytes: int | None, who: str = "The process"
) -> Verdict | None:
    """A run that fell silent without a word: was it the host's memory? None: nothing says so.

    seconds, rss, used   the samples' times, ``process_rss_bytes`` and ``host_used_bytes``, NaN where unknown
    who                  as the sentence begins
    """
    if not host_total_bytes:
        return None
    own, in_use = _last(rss), _last(used)
    # (In a container the total is its limit, and what is in use is the whole machine's: then only the process's own counts.)
    shared = in_use if in_use is not None and in_use <= host_total_bytes else None
    full = shared is not None and shared >= HOST_NEARLY_FULL * host_total_bytes
    alone = own is not None and own >= PROCESS_NEARLY_ALL * host_total_bytes
    was = "while the host's memory was full" if full or alone else None
    was = was or _rose(seconds, rss, host_total_bytes, own if shared is None else shared)
    if was is None:
        return None
    verdict = judge(Facts(kind="host", rss_bytes=_whole(own), host_total_bytes=host_total_bytes))
    sentence = (
        f"{who} fell silent without a word {was}: most likely Linux ended it (out-of-memory killer). "
        f"It had {amount(_whole(own))} of {amount(host_total_bytes)}; {amount(_whole(in_use))} were in use in all."
    )
    return Verdict("outside_pytorch", sentence, verdict.first_aid)


def _rose(seconds: FloatArray, rss: FloatArray, total_bytes: int, held_bytes: float | None) -> str | None:
    """In words: it took memory so fast that all would be taken before the next samples had come. None: it did not."""
    known = np.flatnonzero(np.isfinite(rss))
    known = known[seconds[known] >= seconds[known[-1]] - RISE_SECONDS] if len(known) else known
    if held_bytes is None or len(known) < 3 or (passed := seconds[known[-1]] - seconds[known[0]]) < RISE_SECONDS / 4:
        return None
    rate = (rss[known[-1]] - rss[known[0]]) / passed
    if rate <= 0 or (left := (total_bytes - held_bytes) / rate) > UNTOLD_SECONDS:
        return None
    return f"while it took {amount(int(rate))} a second, which would have filled the host's memory {left:.1f} s later"


def _last(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
