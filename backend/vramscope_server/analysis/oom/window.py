"""What the window that was open at an error adds to its record: what each line of code held, and other settings by replay.

It takes seconds where the window is large or nothing is compiled yet, so it is made apart from the verdict, which needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramscope_server.analysis.oom.holders import by_site
from vramscope_server.analysis.oom.remedies.remedy import Replayed
from vramscope_server.analysis.simulator.settings import BadSetting
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.device import card_of
from vramscope_server.analysis.whatif.scenario import Scenario
from vramscope_server.analysis.whatif.sweep import predict


@dataclass(frozen=True, slots=True)
class Seen:
    """What a window tells of an error."""

    by_site: list[dict[str, Any]]
    replayed: list[Replayed]


def scan(trace: Trace, confs: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None) -> Seen:
    """``confs``: values of PYTORCH_CUDA_ALLOC_CONF to replay, on the recorded card; what cannot be replayed is left out."""
    sites = by_site(trace)
    recorded = max(trace.end.reserved_bytes, trace.end.counters.get("reserved_bytes.all.peak", 0))
    needed = max(recorded, _with_the_request(trace)) if confs else recorded
    found = []
    for done, conf in enumerate(confs):
        progress(done, len(confs))
        try:
            told = predict(trace, conf)
        except (BadSetting, ValueError, ArithmeticError, LookupError):
            continue
        peak = told.uncapped_peak_reserved_bytes if told.out_of_memory else told.peak_reserved_bytes
        saved = max(0, needed - peak)
        found.append(Replayed(conf, not told.out_of_memory, saved, told.band is None))
    return Seen(sites, found)


def _with_the_request(trace: Trace) -> int:
    """What PyTorch would have reserved under the recorded settings, the request that failed included; 0: not to be told."""
    try:
        own = Scenario(trace, trace.parsed_settings[0].text, recorded=True)
        return own.prediction(card_of(trace)).uncapped_peak_reserved_bytes
    except (BadSetting, ValueError, ArithmeticError, LookupError):
        return 0
