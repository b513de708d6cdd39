"""A snapshot of a few events, as PyTorch would have written it."""

from __future__ import annotations

import pickle
from typing import Any

from vramscope_server.analysis.snapshot_format.reader import read

MIB = 1 << 20
FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}, {"name": "main", "filename": "train.py", "line": 3}]


def event(action: str, addr: int = 0x7F0000000000, size: int = 1024, **more: Any) -> dict[str, Any]:
    return {
        "action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000, "frames": FRAMES,
        "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), **more,
    }  # fmt: skip


def segment(blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "device": 0, "address": 0x7F0000000000, "total_size": sum(block["size"] for block in blocks), "stream": 0,
        "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks, **more,
    }  # fmt: skip


def block(size: int, state: str = "inactive", requested: int = 0) -> dict[str, Any]:
    return {"address": 0, "size": size, "requested_size": requested, "state": state, "frames": FRAMES}


def plain() -> dict[str, Any]:
    """A snapshot of one allocation that lives, and one that does not."""
    segments = [segment([block(1024, "active_allocated", 1000), block(2 * MIB - 1024)])]
    trace = [
        event("segment_alloc", size=2 * MIB),
        event("alloc", size=1000),
        event("alloc", addr=0x7F0000000400, size=5),
        event("free_requested", addr=0x7F0000000400, size=5),
        event("free_completed", addr=0x7F0000000400, size=5),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_round_threshold": 0}
    return {"segments": segments, "device_traces": [trace], "allocator_settings": settings, "external_annotations": []}


def read_object(snapshot: Any, **bounds: int) -> Any:
    return read(pickle.dumps(snapshot), **bounds)
