"""Allocator settings of a trace: the parsed settings, and the ones that decide on the sizes of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.timed_settings import ReportedSettings as SettingsInForce
from vramscope_server.analysis.simulator.timed_settings import settings_in_force
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.block_sizes import Rounding
from vramscope_server.analysis.trace.segment_sizes import large_segment_bytes
from vramscope_server.analysis.trace.types import Codes


def parsed(
    text: str,
    in_force: SettingsInForce,
    torch: str,
    events: tuple[Codes, IntArray, IntArray],
    *,
    without_limit: bool,
) -> tuple[AllocatorSettings, str]:
    """Settings of a recording, and a note if they are unknown here. The note is "" otherwise.

    text            the settings as they were set
    in_force        values that PyTorch reported; they win over the text
    torch           version of PyTorch
    events          columns action, size_bytes and stream of the events that show the size of large segments
    without_limit   the device's size is known and the process had no limit
    """
    profile, _ = profile_of(torch)
    try:
        settings = settings_in_force(text, in_force, profile, lambda slots: large_segment_bytes(*events, slots))
    except BadSetting as refusal:
        note = f"The recorded settings {text!r} are unknown here ({refusal}). The replay uses default settings."
        return replace(AllocatorSettings.parse("", profile), text=text), note
    if without_limit:
        # A fraction set in a running process limits nothing. Without a limit the fraction is therefore 1.
        settings = replace(settings, per_process_memory_fraction=1.0)
    return settings, ""


def rounding_of(settings: AllocatorSettings, earlier: tuple[int, AllocatorSettings] | None) -> Rounding:
    """Settings that decide on the sizes of blocks, before and after the change of settings, if there was one."""
    until, before = earlier or (0, settings)
    both = (before, settings)
    return Rounding(
        until,
        np.array([one.divisions for one in both], np.int64),
        np.array([one.max_split_bytes for one in both], np.int64),
        np.array([one.expandable_segments for one in both]),
    )
