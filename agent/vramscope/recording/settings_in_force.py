"""The allocator's settings as they were given, and as it has them; the words are PYTORCH_CUDA_ALLOC_CONF's."""

from __future__ import annotations

import os
import re
from typing import Any, Final

MIB: Final = 1 << 20
VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""read in this order by torch 2.9 and later, the first alone before; the second is not read where the first is set"""

DEFAULT_LARGE_SEGMENT_MB: Final = 20
_AS_THEY_ARE: Final = (
    "garbage_collection_threshold",
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_use_cuda_host_register",
)
_IN_TEXT: Final = ("large_segment_size_mb", "max_non_split_rounding_mb")
_IN_MIB: Final = {
    "max_split_size": "max_split_size_mb",
    "max_round_threshold": "pinned_max_round_threshold_mb",
    "max_cached_size": "pinned_max_cached_size_mb",
}


def given(told: dict[str, Any]) -> str:
    """The text of the settings. ``told``: a snapshot's ``allocator_settings``."""
    text = told.get(VARIABLES[0])
    if isinstance(text, str):
        return text
    return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")


def in_force(told: dict[str, Any], text: str) -> dict[str, int | float | bool | str | None]:
    """Each setting that PyTorch tells, and the two that it does not tell, which are read from the text. None: no limit."""
    settings: dict[str, int | float | bool | str | None] = {}
    for name in _AS_THEY_ARE:
        if name in told:
            settings[name] = told[name]
    for name, word in _IN_MIB.items():
        if name in told:
            settings[word] = None if told[name] < 0 else _mib(told[name])
    divisions = told.get("roundup_power2_divisions")
    if divisions:
        slots = sorted((int(slot), int(number)) for slot, number in divisions.items())
        numbers = {number for _, number in slots}
        as_list = "[" + ",".join(f"{slot}:{number}" for slot, number in slots) + "]"
        settings["roundup_power2_divisions"] = numbers.pop() if len(numbers) == 1 else as_list
    of_segment, of_rounding = _IN_TEXT
    settings[of_segment] = large = _in_text(of_segment, text, DEFAULT_LARGE_SEGMENT_MB)
    settings[of_rounding] = _in_text(of_rounding, text, large)
    return settings


def words_in_force(told: dict[str, Any], text: str) -> str:
    """The text that was given last, and behind it what earlier texts left: each resets some settings alone.

    ``told``: a snapshot's ``allocator_settings``. What PyTorch does not tell is not in it.
    """
    left = [
        f"{name}:{value}"
        for name, value in in_force(told, text).items()
        if name not in (*_IN_TEXT, "pinned_num_register_threads") and value and not re.search(rf"\b{name}\b", text)
    ]
    return ",".join(filter(None, (text, *left)))


def _in_text(name: str, text: str, default: int) -> int:
    found = re.findall(rf"\b{name}\s*:\s*(\d+)", text)
    return int(found[-1]) if found else default


def _mib(size: int) -> int | float:
    return size // MIB if size % MIB == 0 else size / MIB
