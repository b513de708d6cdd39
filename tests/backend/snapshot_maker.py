"""Snapshots as PyTorch would have written them, of any length."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
BASE = 0x7F0000000000
MARKUP = "<b>evil</b>%{x}.py"


def snapshot_of(allocations: int, *, devices: int = 1, depth: int = 2) -> dict[str, Any]:
    """Allocations of 1 MiB each, of which every second is freed at once, as PyTorch would have written them."""
    frames = [
        {"name": f"layer{at}", "filename": MARKUP if at == 0 else "train.py", "line": at + 1} for at in range(depth)
    ]

    def event(action: str, addr: int, size: int, at: int) -> dict[str, Any]:
        return {
            "action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + at, "frames": frames,
            "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0),
        }  # fmt: skip

    traces, segments = [], []
    for device in range(devices):
        trace, blocks = [], []
        for at in range(allocations):
            place = BASE + at * 2 * MIB
            trace += [event("segment_alloc", place, 2 * MIB, 4 * at), event("alloc", place, MIB, 4 * at + 1)]
            blocks.append([
                {"address": place, "size": MIB, "requested_size": MIB, "state": "active_allocated" if at % 2 else "inactive",
                 "frames": frames},
                {"address": place + MIB, "size": MIB, "requested_size": 0, "state": "inactive", "frames": []},
            ])  # fmt: skip
            if at % 2 == 0:
                trace += [event(f"free_{word}", place, MIB, 4 * at + 2) for word in ("requested", "completed")]
                blocks[-1] = [{**blocks[-1][0], "size": 2 * MIB}]
        segments += [
            {
                "device": device, "address": BASE + at * 2 * MIB, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": inside,
            }
            for at, inside in enumerate(blocks)
        ]  # fmt: skip
        traces.append(trace)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_round_threshold": 0}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}
