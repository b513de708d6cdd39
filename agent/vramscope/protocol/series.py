"""Vocabulary of agent and server: every series with its unit, and every word that a message may carry.

Every quantity is a whole number of its unit and never negative; :data:`UNKNOWN` (-1) means "not known", which is not zero.
This module needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

UNKNOWN: Final = -1
"""In a column: this quantity is not known here (no NVML, no CUDA, phase not seen). Shown as unknown, never as 0."""
MAX_VALUE: Final = 1 << 62
"""No quantity of ours is larger; a larger one is a mistake of the sender."""
MOST_GRAPHS: Final = 10_000
"""Graphs of earlier steps are counted up to there: so many are so many or more."""

CPU: Final = -1
"""Device number of a run that has no CUDA; CUDA devices are numbered as the process sees them."""

PHASES: Final = ("other", "data", "forward", "backward", "optimizer", "eval")
"""Phase codes are positions in this tuple."""
MOST_PHASES: Final = 64
"""a higher code is a mistake of the sender, and no phase of a newer agent"""


def phase_name(code: int) -> str:
    """A phase's name; of one that only a newer agent knows its number."""
    return PHASES[code] if code < len(PHASES) else f"phase {code}"


CATEGORIES: Final = ("parameters", "gradients", "optimizer", "buffers", "activations", "other")

LEAK_KINDS: Final = (
    "growing",  # graphs of earlier steps are kept, more of them from step to step
    "growing-eval",  # the same where nothing is ever walked backward: an evaluation that keeps its graphs
    "overlap",  # a large result of the last step still lives when the next graph is built
    "overlap-unfreed",  # and with it activations that its backward did not free
    "no_grad-missing",  # graphs are built and thrown away without a backward
    "cycle",  # tensors held by a reference cycle until the garbage collector comes by
    "tensor-growth",  # plain tensors, more from step to step
)

ROUNDS: Final = ("step", "batch", "call")
"""what a leak's age and growth are counted in: where nothing trains, batches of a loader, or calls of the model"""

ENDS: Final = ("finished", "failed")
"""how a session ends; the words of those that do not, ``running`` and ``lost``, are none"""

ARTIFACT_KINDS: Final = (
    "window",  # of allocator history: window.py
    "profile",  # what torch.profiler saw in some steps, as tables: profile_tables.py
    "trace",  # the same as PyTorch's own trace, in Chrome's JSON, gzipped: only when it is asked for
    "oom",  # an out-of-memory error with all that was known then: black_box.py
    "bystander",  # how another rank of the run stood when one ran out of memory: a black box, too
)

TECHNIQUES: Final = (
    "gradient_checkpointing",
    "gradient_accumulation",
    "mixed_precision",
    "optimizer",
    "optimizer_8bit",
    "batch",  # batch size and sequence length
    "offload",
    "distributed",  # DDP, FSDP, ZeRO and their stage
    "compile",
    "peft",
    "attention",
    "allocator",
    "gradient_projection",  # to a low rank: GaLore, APOLLO
    "fused_kernels",  # a library's, in the place of several operations: Liger
    "quantized_weights",  # kept in 8 bits or fewer: bitsandbytes', torchao's
)
"""Kinds of techniques that change what a training needs."""


class Series(msgspec.Struct, frozen=True):
    """One named column: its unit, and what it means in the words that a page shows."""

    unit: Literal["bytes", "ns", "count", "percent", "celsius", "milliwatts", "code"]
    meaning: str


SAMPLES: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the reading, since 1970"),
    "step": Series("count", "optimizer steps finished when it was read"),
    "phase": Series("code", "position in PHASES"),
    "allocated_bytes": Series("bytes", "bytes in blocks that tensors own (PyTorch: allocated)"),
    "reserved_bytes": Series("bytes", "bytes that PyTorch took from the device (PyTorch: reserved)"),
    "active_bytes": Series("bytes", "allocated, and blocks that wait for a stream"),
    "requested_bytes": Series("bytes", "what the program asked for, before rounding"),
    "inactive_split_bytes": Series("bytes", "free pieces of segments that are partly in use"),
    "unusable_bytes": Series(
        "bytes", "free bytes that this run's requests cannot use; read now and then, once a window was recorded"
    ),
    "private_pools_bytes": Series(
        "bytes", "of reserved, in private pools: kept for replays of CUDA graphs (PyTorch 2.13 and later)"
    ),
    "private_requested_bytes": Series(
        "bytes", "of requested, in private pools; read every two seconds, and when they grow or shrink"
    ),
    "private_active_bytes": Series("bytes", "of active, in private pools; read with it"),
    "private_inactive_split_bytes": Series(
        "bytes", "of free pieces, in private pools: what replays write to; read with it"
    ),
    "segments": Series("count", "cudaMalloc segments held (expandable segments are not counted by PyTorch)"),
    "alloc_retries": Series("count", "allocations that succeeded only after the cache was emptied, since start"),
    "ooms": Series("count", "out-of-memory errors raised, since start"),
    "device_used_bytes": Series("bytes", "in use on the whole device, all processes (NVML)"),
    "process_device_bytes": Series("bytes", "in use on the device by this process (NVML)"),
    "others_device_bytes": Series(
        "bytes", "in use on the device by other processes that compute on it, where each is told (NVML)"
    ),
    "gpu_utilization_percent": Series("percent", "time in which a kernel ran (NVML)"),
    "temperature_celsius": Series("celsius", "of the GPU (NVML)"),
    "power_milliwatts": Series("milliwatts", "drawn by the GPU (NVML)"),
    "process_rss_bytes": Series("bytes", "resident host memory of this process"),
    "host_used_bytes": Series(
        "bytes",
        "host memory in use: total minus available; in a container with a limit, what counts against it",
    ),
}
"""Columns of the stream ``samples``: one row a tick of the sampler (10 a second by default)."""

STEPS: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the step's end, since 1970"),
    "step": Series("count", "number of the optimizer step, from 1"),
    "duration_ns": Series("ns", "from the end of the step before to the end of this one"),
    "micro_steps": Series("count", "backward passes in the step"),
    "peak_allocated_bytes": Series("bytes", "highest allocated within the step: the allocator's own peak counter"),
    "peak_reserved_bytes": Series("bytes", "highest reserved within the step: the allocator's own peak counter"),
    "peak_phase": Series("code", "phase in which allocated was highest"),
    "end_allocated_bytes": Series("bytes", "allocated when the step ended"),
    "end_reserved_bytes": Series("bytes", "reserved when the step ended"),
    "foreign_reset": Series(
        "code",
        "0: none; 1: somebody reset the peak counters through PyTorch's functions, the peak is still exact; "
        "2: behind PyTorch's functions, the peak is a lower bound",
    ),
    "after_step_bytes": Series(
        "bytes",
        "what was still in use when the step ended: allocated on the device; on the CPU what the C allocator has handed out",
    ),
    "graphs_alive": Series(
        "count", f"backward graphs of earlier steps still alive when the step ended, counted up to {MOST_GRAPHS:,}"
    ),
    "watched": Series("code", "1: phases were read in this step; 0: left alone, to measure what watching costs"),
    "agent_ns": Series("ns", "time of this step that the agent's hooks took on the training thread"),
    **{f"{phase}_ns": Series("ns", f"time in {phase}, without what the agent took") for phase in PHASES},
    **{f"{phase}_peak_allocated_bytes": Series("bytes", f"highest allocated in {phase}") for phase in PHASES},
    **{f"{phase}_peak_reserved_bytes": Series("bytes", f"highest reserved in {phase}") for phase in PHASES},
    **{f"end_{category}_bytes": Series("bytes", f"{category} when the step ended") for category in CATEGORIES},
    **{f"peak_{category}_bytes": Series("bytes", f"{category} at the step's peak") for category in CATEGORIES},
}
"""Columns of the stream ``steps``: one row an optimizer step."""

STREAMS: Final[dict[str, dict[str, Series]]] = {"samples": SAMPLES, "steps": STEPS}

LOSSES: Final[dict[str, str]] = {
    "loss": "told by session.log",
    "backward_loss": "what backward began at",
    "trainer_loss": "logged by the Trainer",
}
"""Scalars that are the training's loss, and where each comes from; the first that a run has is shown, they are never mixed."""

ABSENT: Final = b"\xff" * 8
"""In a column of Scalars: not told in this row. One of the many bit patterns that are no number, and no loss has it."""
