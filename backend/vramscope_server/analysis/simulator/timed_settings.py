"""Allocator settings in force in a process: those that it started with, changed by those that the program set later.

PyTorch keeps only the newest text of settings. A new text resets some settings and keeps others, such as expandable segments
and the size of segments, from an earlier text. So a recording also has the values that the allocator reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from vramscope_server.analysis.simulator.settings import MIB, SLOTS, UNLIMITED, AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.versions import AllocatorVersion

ReportedSettings = Mapping[str, Any]
"""Settings by the keys of PYTORCH_CUDA_ALLOC_CONF, as in ``vramscope.protocol.window.Window.settings_in_force``."""
GIVEN: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Keys of the setting texts among the settings of a snapshot file."""
_WORD: Final = re.compile(r"[^,:\[\]\s]+")


def in_words(reported: Mapping[str, Any]) -> dict[str, int | float | bool | str | None]:
    """Convert a snapshot file's ``allocator_settings`` into a window's ``settings_in_force``. Other entries are left out."""
    words: dict[str, int | float | bool | str | None] = {
        key: value
        for key, value in reported.items()
        if type(value) in (int, float, bool, str) and value == value and key not in GIVEN and key != "max_split_size"
    }
    split, divisions = reported.get("max_split_size"), reported.get("roundup_power2_divisions")
    if type(split) is int:
        words["max_split_size_mb"] = None if split < 0 else split / MIB
    if (
        isinstance(divisions, dict)
        and len(divisions) <= SLOTS
        and all(type(number) is int for number in divisions.values())
    ):
        words["roundup_power2_divisions"] = f"[{','.join(f'{slot}:{number}' for slot, number in divisions.items())}]"
    return words


def settings_in_force(
    text: str,
    reported: ReportedSettings,
    profile: AllocatorVersion,
    large_segment_bytes: Callable[[tuple[int, ...]], int | None],
) -> AllocatorSettings:
    """Return the settings in force if ``text`` was set last and the allocator reports ``reported``.

    large_segment_bytes   returns the observed size of segments under these roundup_power2_divisions; None if none was seen.
                          PyTorch keeps this setting but reports it nowhere

    A process that starts with the result's ``text`` has the same settings. Raises BadSetting as parse does.
    """
    given = AllocatorSettings.parse(text, profile)
    settings = _with(given, reported)
    keys = set(_WORD.findall(text))
    seen = None if "large_segment_size_mb" in keys else large_segment_bytes(settings.divisions)
    if seen is not None and seen > 10 * MIB and seen % MIB == 0:  # PyTorch accepts no other size
        settings = replace(settings, large_segment_bytes=seen)
        if "max_non_split_rounding_mb" not in keys:
            settings = replace(settings, max_non_split_rounding_bytes=seen)
    return settings if settings == given else replace(settings, text=words_of(settings))


def _with(settings: AllocatorSettings, reported: ReportedSettings) -> AllocatorSettings:
    """Return the settings with the recorded values. Values that PyTorch would refuse are ignored."""
    expandable, threshold = reported.get("expandable_segments"), _number(reported.get("garbage_collection_threshold"))
    if isinstance(expandable, bool):
        settings = replace(settings, expandable_segments=expandable)
    if threshold is not None and 0 <= threshold < 1:
        settings = replace(settings, garbage_collection_threshold=threshold)
    if "max_split_size_mb" in reported:
        mib = _number(reported["max_split_size_mb"])
        if reported["max_split_size_mb"] is None:
            settings = replace(settings, max_split_bytes=UNLIMITED)
        elif mib is not None and 0 < mib < UNLIMITED / MIB:
            settings = replace(settings, max_split_bytes=int(mib * MIB))
    divisions = reported.get("roundup_power2_divisions")
    if type(divisions) is int and divisions == 0:
        settings = replace(settings, divisions=(0,) * SLOTS)
    elif type(divisions) in (int, str):
        try:
            read = AllocatorSettings.parse(f"roundup_power2_divisions:{divisions}").divisions
        except BadSetting:
            return settings
        settings = replace(settings, divisions=read)
    return settings


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def words_of(settings: AllocatorSettings) -> str:
    """Return a value of PYTORCH_CUDA_ALLOC_CONF that gives these settings at the start of a process; "" for the defaults."""
    default, words = AllocatorSettings(), []
    if settings.backend != default.backend:
        words.append(f"backend:{settings.backend}")
    if settings.large_segment_bytes != default.large_segment_bytes:
        words.append(f"large_segment_size_mb:{settings.large_segment_bytes // MIB}")
    if settings.max_split_bytes != default.max_split_bytes:
        words.append(f"max_split_size_mb:{settings.max_split_bytes // MIB}")
    if settings.max_non_split_rounding_bytes != settings.large_segment_bytes:
        words.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding_bytes // MIB}")
    if settings.garbage_collection_threshold:
        words.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold!r}")
    if settings.divisions != default.divisions:
        words.append(f"roundup_power2_divisions:{_divisions(settings.divisions)}")
    if settings.expandable_segments:
        words.append("expandable_segments:True")
    if settings.expandable_segments_reserve is not None:
        words.append(f"expandable_segments_reserve:{settings.expandable_segments_reserve}")
    if settings.per_process_memory_fraction < 1:
        words.append(f"per_process_memory_fraction:{settings.per_process_memory_fraction!r}")
    if settings.throw_on_cudamalloc_oom:
        words.append("throw_on_cudamalloc_oom:True")
    return ",".join(words)


def _divisions(slots: tuple[int, ...]) -> str:
    """Return the text of the divisions. The first size includes all smaller ones; ``>`` means all above the last."""
    lead = next((at for at, number in enumerate(slots) if number != slots[0]), len(slots))
    if lead == len(slots):
        return str(slots[0])
    tail = len(slots)
    while slots[tail - 1] == slots[-1]:
        tail -= 1
    between = [f"{1 << at}:{slots[at]}" for at in range(lead, tail)]
    return f"[{','.join([f'{1 << (lead - 1)}:{slots[0]}', *between, f'>:{slots[-1]}'])}]"
