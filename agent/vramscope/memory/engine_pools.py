"""Memory pools of an inference engine that runs in the training's process, such as vLLM with sleep mode.

An engine that sleeps releases the memory of its pool without PyTorch's allocator: PyTorch counts it as reserved all the time.
Memory of the pool in expandable segments was not allocated by the engine's own functions, so that it cannot release it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

from vramscope.memory.unusable import layout

MOST_DEPTH: Final = 4
"""Containers within containers that are searched for pools."""


class EnginePool(NamedTuple):
    """Memory of an engine's pools, on all devices."""

    engine: str
    reserved_bytes: int
    expandable_bytes: int
    """Part of it in expandable segments."""


def _of_vllm(module: ModuleType) -> list[Any]:
    """Pools of its allocator. Newer versions have several for each tag."""
    instance = getattr(getattr(module, "CuMemAllocator", None), "instance", None)
    return _pools_in(getattr(instance, "allocator_and_pools", None))


def _of_memory_saver(module: ModuleType) -> list[Any]:
    """Pools among the attributes of the saver and of its implementation, whose names differ between versions."""
    saver = getattr(module, "torch_memory_saver", None)
    owners = [one for one in (saver, getattr(saver, "_impl", None)) if hasattr(one, "__dict__")]
    return _pools_in([vars(owner) for owner in owners])


def _pools_in(value: Any, depth: int = MOST_DEPTH) -> list[Any]:
    """Return PyTorch's memory pools in nested containers."""
    import torch

    if isinstance(value, torch.cuda.MemPool):
        return [value]
    if not depth or not isinstance(value, (dict, list, tuple)):
        return []
    # A copy is made at once: the training may add pools meanwhile.
    inner = list(value.values()) if isinstance(value, dict) else list(value)
    return [pool for one in inner for pool in _pools_in(one, depth - 1)]


ENGINES: Final[tuple[tuple[str, str, Callable[[ModuleType], list[Any]]], ...]] = (
    ("vLLM", "vllm.device_allocator.cumem", _of_vllm),
    ("torch_memory_saver", "torch_memory_saver", _of_memory_saver),
)
"""Name, module and pools of each engine. torch_memory_saver is that of SGLang."""


def engine_pool() -> EnginePool | None:
    """Return the memory in the pools of the first engine that has some; None if there is none.

    Costs some lookups without an engine, and about 1 µs a block with one.
    """
    for name, module_name, pools_of in ENGINES:
        module = sys.modules.get(module_name)
        ids = set() if module is None else {tuple(pool.id) for pool in pools_of(module)}
        # Read once, and in a window of our own, too. A history of the user's gets an event where there is such an engine.
        found = layout(marks_history=True) if ids else None
        segments = [one for one in found or () if tuple(one["segment_pool_id"]) in ids]
        if segments:
            total = sum(one["total_size"] for one in segments)
            return EnginePool(name, total, sum(one["total_size"] for one in segments if one["is_expandable"]))
    return None
