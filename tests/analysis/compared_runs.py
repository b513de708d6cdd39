"""Runs in the form of GET /runs/RUN, for tests of comparisons."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
CHECKPOINTING = {"gradient_checkpointing": "checkpointing"}
ACCUMULATION = {"gradient_accumulation": "accumulation 4", "batch": "batch 16"}
FP16 = {"mixed_precision": "fp16"}
BF16 = {"mixed_precision": "bf16"}
EIGHT_BIT = {"optimizer_8bit": "AdamW 8-bit 100 %", "optimizer": "AdamW8bit"}
PLAIN = {"optimizer": "AdamW", "batch": "batch 64"}


def report_of(**kinds: str) -> list[dict[str, Any]]:
    """Techniques in the form of the agent."""
    return [
        {"kind": kind, "chip": chip, "declared": None, "observed": "seen", "detail": {}} for kind, chip in kinds.items()
    ]


def a_run(name: str = "run", *, allocated: int | None = 1000, techniques: Any = None, **changes: Any) -> dict[str, Any]:
    """A run in the form of GET /runs/RUN; sizes in MiB."""
    peak = None if allocated is None else allocated * MIB
    rank = {
        "torch": "2.13.0",
        "devices": [{"index": 0, "emulated": False}],
        "peak_process_device_bytes": None if peak is None else peak + 900 * MIB,
        "peak_device_used_bytes": None if peak is None else peak + 950 * MIB,
        "peak_other_processes_bytes": None if peak is None else 50 * MIB,
    } | changes.pop("rank", {})
    return {
        "run_id": f"id-{name}",
        "name": name,
        "techniques": techniques,
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": None if peak is None else peak + 100 * MIB,
        "capacity_bytes": 80 * 1024 * MIB,
        "device": "NVIDIA H100 80GB HBM3",
        "world_size": 1,
        "state": "finished",
        "error_type": None,
        "steps": 1000,
        "step_seconds_median": 0.5,
        "trained_seconds": 500.0,
        "fragmentation_fraction": None,
        "unusable_bytes": None,
        "leak_count": 0,
        "leaked_bytes": 0,
        "worst_leak": None,
        "graphs_alive": 0,
        "loss": None,
        "recordings": None,
        "config": {"batch_size": 64, "gradient_accumulation_steps": 1},
        "project": "gpt2",
        "framework": "loop",
        "allocator_settings": "",
        "git_commit": "3f1c9ab27d50",
        "command": ["train.py", "--lr", "3e-4"],
        "leaks": [],
        "foreign_reset_steps": 4,
        "lower_bound_steps": 0,
        "sampled_allocated_bytes": None,
        "sampled_reserved_bytes": None,
        "ranks": [rank],
    } | changes
