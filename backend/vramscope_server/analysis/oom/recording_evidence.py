"""Evidence from the recording that was open at an error: memory by source line, and replays under other settings.

It takes seconds if the recording is large or nothing is compiled yet. The diagnosis does not need it and is shown first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vramscope_server.analysis.oom.holders import SiteBytes, by_site
from vramscope_server.analysis.oom.remedies.remedy import Replayed
from vramscope_server.analysis.simulator.settings import BadSetting
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.device import target_device_of
from vramscope_server.analysis.whatif.scenario import Scenario
from vramscope_server.analysis.whatif.sweep import predict


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Evidence from a recording."""

    by_site: list[SiteBytes]
    replayed: list[Replayed]


def evidence_of(
    trace: Trace, confs: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> WindowEvidence:
    """Return the memory by line, and the replays on the recorded device.

    confs   values of PYTORCH_CUDA_ALLOC_CONF to replay; those that cannot be replayed are left out
    """
    sites = by_site(trace)
    recorded = max(trace.end.reserved_bytes, trace.end.counters.get("reserved_bytes.all.peak", 0))
    needed = max(recorded, _with_the_request(trace)) if confs else recorded
    found = []
    for done, conf in enumerate(confs):
        progress(done, len(confs))
        try:
            result = predict(trace, conf)
        except (BadSetting, ValueError, ArithmeticError, LookupError):
            continue
        peak = result.uncapped_peak_reserved_bytes if result.out_of_memory else result.peak_reserved_bytes
        saved = max(0, needed - peak)
        found.append(Replayed(conf, not result.out_of_memory, saved, result.band is None))
    return WindowEvidence(sites, found)


def _with_the_request(trace: Trace) -> int:
    """Return the bytes reserved under the recorded settings, including the failed request; 0 if unknown."""
    try:
        own = Scenario(trace, trace.parsed_settings[0].text, recorded=True)
        return own.prediction(target_device_of(trace)).uncapped_peak_reserved_bytes
    except (BadSetting, ValueError, ArithmeticError, LookupError):
        return 0
