"""The CUDA allocator's counters as flat names, as torch.cuda.memory_stats() spells them."""

from __future__ import annotations

from typing import Any


def counters_of(stats: dict[str, Any]) -> dict[str, int]:
    """Flatten torch._C._cuda_memoryStats(). Peaks are left out: the agent resets them, so they belong to no window."""
    flat: dict[str, int] = {}
    _flatten("", stats, flat)
    return flat


def _flatten(name: str, value: Any, flat: dict[str, int]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            text = "_".join(map(str, key)) if isinstance(key, tuple) else str(key)
            if text != "peak":
                _flatten(f"{name}.{text}" if name else text, inner, flat)
    elif isinstance(value, int):
        flat[name] = value
