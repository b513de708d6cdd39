"""Settings of PyTorch's CUDA allocator: the text that was set, and the values in force, named as PYTORCH_CUDA_ALLOC_CONF
names them."""

from __future__ import annotations

import os
import re
from typing import Final

from vramscope.memory.pytorch_snapshot import ReportedSettings
from vramscope.protocol.gpu_backend import variables_read

MIB: Final = 1 << 20
REPORTED: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""Name of the settings' text in a snapshot."""

DEFAULT_LARGE_SEGMENT_MB: Final = 20
_UNCHANGED: Final = (
    "garbage_collection_threshold",
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_use_cuda_host_register",
)
_ONLY_IN_TEXT: Final = ("large_segment_size_mb", "max_non_split_rounding_mb")
_IN_MIB: Final = {
    "max_split_size": "max_split_size_mb",
    "max_round_threshold": "pinned_max_round_threshold_mb",
    "max_cached_size": "pinned_max_cached_size_mb",
}
_MAX_CHARACTERS: Final = 4096
_UNUSED_POOL: Final = (-1, -1)

_text_in_force: Final[dict[str, str]] = {}
"""Newest settings text -> the text in force. Kept because PyTorch reports no settings while it records a history."""


def allocator_settings() -> str:
    """The allocator settings in force, the last set first; "" for the defaults."""
    text, reported = _current_text(), _reported_settings()
    if reported:
        _text_in_force.clear()
        _text_in_force[text] = text_in_force(reported, text)
    return _text_in_force.get(text, text)[:_MAX_CHARACTERS]


def settings_text(reported: ReportedSettings) -> str:
    """Return the settings as they were set. ``reported``: a snapshot's ``allocator_settings``."""
    text = reported.get(REPORTED)
    if isinstance(text, str):
        return text
    return next((os.environ[name] for name in variables() if os.environ.get(name)), "")


def variables() -> tuple[str, ...]:
    """Environment variables that this PyTorch reads, in its order: the first that is set counts."""
    import torch

    return variables_read(torch.version.hip)


def settings_in_force(reported: ReportedSettings, text: str) -> dict[str, int | float | bool | str | None]:
    """Return each setting that PyTorch reports, and the two it does not report, read from the text. None: no limit."""
    settings: dict[str, int | float | bool | str | None] = {}
    for name in _UNCHANGED:
        if name in reported:
            settings[name] = reported[name]
    for name, word in _IN_MIB.items():
        if name in reported:
            settings[word] = None if reported[name] < 0 else _mib(reported[name])
    divisions = reported.get("roundup_power2_divisions")
    if divisions:
        slots = sorted((int(slot), int(number)) for slot, number in divisions.items())
        numbers = {number for _, number in slots}
        as_list = "[" + ",".join(f"{slot}:{number}" for slot, number in slots) + "]"
        settings["roundup_power2_divisions"] = numbers.pop() if len(numbers) == 1 else as_list
    segment_size, rounding = _ONLY_IN_TEXT
    settings[segment_size] = large = _number_in_text(segment_size, text, DEFAULT_LARGE_SEGMENT_MB)
    settings[rounding] = _number_in_text(rounding, text, large)
    return settings


def text_in_force(reported: ReportedSettings, text: str) -> str:
    """Return the last text, followed by settings that earlier texts left in force: each text resets only some settings.

    ``reported``: a snapshot's ``allocator_settings``. Settings that PyTorch does not report are not included.
    """
    left = [
        f"{name}:{value}"
        for name, value in settings_in_force(reported, text).items()
        if name not in (*_ONLY_IN_TEXT, "pinned_num_register_threads") and value and not re.search(rf"\b{name}\b", text)
    ]
    return ",".join(filter(None, (text, *left)))


def _current_text() -> str:
    import torch

    settings = getattr(torch._C, "_accelerator_getAllocatorSettings", None)  # torch 2.13 and later
    text = settings() if settings is not None else None
    if isinstance(text, str):
        return text
    # in PyTorch's own order
    return next((os.environ[name] for name in variables() if name in os.environ), "")


def _reported_settings() -> ReportedSettings:
    """A snapshot's ``allocator_settings``; {} where that would take long or create a CUDA context. About 20 µs."""
    import torch

    if not hasattr(torch._C, "_accelerator_getAllocatorSettings") or not torch.cuda.is_initialized():
        return {}
    if torch.cuda.get_allocator_backend() != "native" or torch._C._cuda_isHistoryEnabled():
        return {}
    # No pool has this id, so that no segments are read.
    reported = torch._C._cuda_memorySnapshot(_UNUSED_POOL).get("allocator_settings")
    return reported if isinstance(reported, dict) else {}


def _number_in_text(name: str, text: str, default: int) -> int:
    found = re.findall(rf"\b{name}\s*:\s*(\d+)", text)
    return int(found[-1]) if found else default


def _mib(size: int) -> int | float:
    return size // MIB if size % MIB == 0 else size / MIB
