"""The allocator's settings in a trace: those in force at its end, and those before, where they were changed within it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.timed_settings import Told, settings_in_force
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.block_sizes import Rounding
from vramscope_server.analysis.trace.segment_sizes import large_segment_bytes

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace


def at_end(trace: Trace) -> tuple[AllocatorSettings, str]:
    """See ``Trace.parsed_settings``."""
    return _parsed(trace, trace.settings, trace.settings_in_force)


def before(trace: Trace) -> tuple[int, AllocatorSettings] | None:
    """See ``Trace.earlier_settings``."""
    earlier = trace.settings_before
    if earlier is None:
        return None
    first = slice(earlier.until_event)
    return earlier.until_event, _parsed(trace, earlier.settings, earlier.settings_in_force, first)[0]


def rounding(trace: Trace) -> Rounding:
    """See ``Trace.rounding``."""
    settings, _ = trace.parsed_settings
    until, earlier = trace.earlier_settings or (0, settings)
    both = (earlier, settings)
    return Rounding(
        until,
        np.array([one.divisions for one in both], np.int64),
        np.array([one.max_split_bytes for one in both], np.int64),
        np.array([one.expandable_segments for one in both]),
    )


def _parsed(trace: Trace, text: str, told: Told, seen: slice = slice(None)) -> tuple[AllocatorSettings, str]:
    """``seen``: the events that show the size of segments."""
    profile, _ = profile_of(trace.torch)
    try:
        settings = settings_in_force(text, told, profile, lambda slots: large_segment_bytes(trace.events, slots, seen))
    except BadSetting as refusal:
        note = f"The recorded settings {text!r} are not known here ({refusal}); replayed as default settings."
        return replace(AllocatorSettings.parse("", profile), text=text), note
    if trace.device_total_bytes is not None and trace.limit_bytes is None:
        # That there is no limit is known then: a fraction that was given to a process that ran already sets none.
        settings = replace(settings, per_process_memory_fraction=1.0)
    return settings, ""
