"""Vocabulary of agent and server: every series with its unit, and every word that a message may carry.

Every quantity is a whole number of its unit and never negative; :data:`UNKNOWN` (-1) means "not known", which is not zero.
This module needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

UNKNOWN: Final = -1
"""Value in a column: not known (no NVML, no CUDA, phase not seen). Shown as unknown, never as 0."""
MAX_VALUE: Final = 1 << 62
"""Largest valid quantity; a larger one is an error of the sender."""
MOST_GRAPHS: Final = 10_000
"""Graphs of earlier steps are counted up to this number, which then means "at least"."""

CPU: Final = -1
"""Device number of a run without CUDA. CUDA devices have the process's own numbers."""

PHASES: Final = ("other", "data", "forward", "backward", "optimizer", "eval")
"""Phase codes are positions in this tuple."""
MOST_PHASES: Final = 64
"""Number of phase codes that are reserved; a higher code is an error of the sender."""


def phase_name(code: int) -> str:
    """Return a phase's name; ``phase N`` for a code that only a newer agent knows."""
    return PHASES[code] if code < len(PHASES) else f"phase {code}"


PHASE_PLACES: Final = {
    "other": "outside of all phases",
    "data": "before the forward pass",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer update",
    "eval": "in the evaluation",
}
"""Each phase in a sentence: *The peak is in the backward pass.*"""


def phase_place(name: str) -> str:
    """Return a phase's words in a sentence, also of a phase that only a newer agent knows."""
    return PHASE_PLACES.get(name, f"in {name}")


CATEGORIES: Final = ("parameters", "gradients", "optimizer", "buffers", "activations", "workspaces", "other")
WITHIN_OTHER: Final = ("workspaces",)
"""Categories that are part of other where they are unknown."""

LEAK_KINDS: Final = (
    "growing",  # graphs of earlier steps are retained, more with every step
    "growing-eval",  # the same without any backward: an evaluation that retains its graphs
    "overlap",  # a large result of the last step is still alive when the next graph is built
    "overlap-unfreed",  # also activations that its backward did not free
    "no_grad-missing",  # graphs are built and dropped without a backward
    "cycle",  # tensors retained by a reference cycle until the garbage collector runs
    "tensor-growth",  # plain tensors, more with every step
    "idle-optimizer",  # state of an optimizer that no longer steps, while another one trains its weights
)

FIXES: Final = ("item", "detach", "host")
"""Forms of a fix: ``.item()``, ``.detach()`` or ``.detach().cpu()`` on the value that is kept."""

OVERLAPS: Final = ("overlap", "overlap-unfreed")
"""Kinds of a result that lives into the next step. Most loops have one."""

LEAK_STATES: Final = ("new", "suspected", "reported", "settled", "emptied", "withdrawn")
"""States of a holder. After a report: growth has stopped, the content was freed, or the report was wrong."""

LEAK_REASONS: Final = (
    "first-seen",
    # suspected
    "more-than-before",
    "overlaps-once",
    "may-be-emptied",  # code empties the container, and may yet do so
    "may-fill-up",  # its keys may come again, or the code limits it
    "slows-down",  # it takes ever fewer entries
    "is-cut",  # the code keeps a slice of it, which may bound it
    "same-as-another",  # another finding covers it
    # reported
    "overlaps-always",  # after the step of each optimizer
    "graph-ages",  # graphs of many ages, and none was freed
    "graphs-increase",
    "graph-is-long",  # one graph reaches back through many iterations
    "graph-lengthens",
    "no-backward",
    "tensors-increase",
    "tensor-lengthens",
    "reference-cycle",
    "evaluation",  # an evaluation without gradients accumulates it
    "still-more",  # slower growth than before
    "optimizer-idle",  # it no longer steps, and another one trains its weights
    "fills-again",  # emptied periodically
    # settled
    "growth-stopped",
    "shrank",
    # emptied
    "emptied-at-once",
    "tensors-died",
    "not-filled-again",
    # withdrawn
    "named-since",  # its holder was unknown and has a name now
    "replaced",  # another finding says more
    "backward-ran",  # a backward walked the graph after all
    "in-use-again",  # the optimizer steps again, or is gone
)
"""Reasons for a state, in the order of LEAK_STATES."""

ROUNDS: Final = ("step", "batch", "call")
"""Units of a leak's age and growth. Without an optimizer: batches of a loader, or calls of the model."""

ENDS: Final = ("finished", "failed")
"""States at the end of a session. ``running`` and ``lost`` are not among them."""

ARTIFACT_KINDS: Final = (
    "window",  # allocator history: window.py
    "profile",  # tables of torch.profiler for some steps: profile.py
    "trace",  # PyTorch's own trace of these steps, Chrome's JSON, gzipped: only on request
    "oom",  # state at an out-of-memory error: oom_record.py
    "bystander",  # state of another rank when one ran out of memory: oom_record.py
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
    "fused_kernels",  # of a library, each replaces several operations: Liger
    "rollout_engine",  # an inference engine with a memory pool in the training's process
    "quantized_weights",  # in 8 bits or fewer: bitsandbytes, torchao
)
"""Kinds of techniques that change the memory that a training needs."""


class Series(msgspec.Struct, frozen=True):
    """One named column: its unit, and its meaning as a page shows it."""

    unit: Literal["bytes", "ns", "count", "percent", "celsius", "milliwatts", "code"]
    meaning: str


OTHER_PROCESSES: Final = tuple(f"other_process_{number}_bytes" for number in range(1, 5))
"""Series of the largest other processes on a device. The event ``device_process`` says which process a series belongs to."""

SAMPLES: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the reading, since 1970"),
    "step": Series("count", "completed optimizer steps at the reading"),
    "phase": Series("code", "position in PHASES"),
    "allocated_bytes": Series("bytes", "bytes in blocks that tensors own (PyTorch: allocated)"),
    "reserved_bytes": Series("bytes", "bytes that PyTorch took from the device (PyTorch: reserved)"),
    "active_bytes": Series("bytes", "allocated plus blocks that wait for a stream"),
    "requested_bytes": Series("bytes", "bytes the program asked for, before rounding"),
    "inactive_split_bytes": Series("bytes", "free blocks of segments that are partly in use"),
    "unusable_bytes": Series(
        "bytes", "free bytes that this run's requests cannot use; read at intervals, once a window was recorded"
    ),
    "private_pools_bytes": Series(
        "bytes", "part of reserved in private pools, kept for replays of CUDA graphs (PyTorch 2.13 and later)"
    ),
    "private_requested_bytes": Series(
        "bytes", "part of requested in private pools; read every two seconds, and when the pools grow or shrink"
    ),
    "private_active_bytes": Series("bytes", "part of active in private pools; read at the same times"),
    "private_inactive_split_bytes": Series(
        "bytes", "part of inactive split blocks in private pools, which replays write to; read at the same times"
    ),
    "segments": Series("count", "cudaMalloc segments (PyTorch does not count expandable segments)"),
    "alloc_retries": Series("count", "allocations that succeeded only after the cache was emptied, since start"),
    "ooms": Series("count", "out-of-memory errors raised, since start"),
    "device_used_bytes": Series("bytes", "used on the whole device by all processes (NVML)"),
    "process_device_bytes": Series("bytes", "used on the device by this process (NVML)"),
    "others_device_bytes": Series(
        "bytes", "used on the device by other compute processes, if NVML reports all of them"
    ),
    **{
        name: Series("bytes", "used on the device by one other process, of the largest four (NVML)")
        for name in OTHER_PROCESSES
    },
    "gpu_utilization_percent": Series("percent", "time in which a kernel ran (NVML)"),
    "temperature_celsius": Series("celsius", "temperature of the GPU (NVML)"),
    "power_milliwatts": Series("milliwatts", "power of the GPU (NVML)"),
    "process_rss_bytes": Series("bytes", "resident host memory of this process"),
    "host_used_bytes": Series(
        "bytes",
        "used host memory: total minus available; in a container with a limit, what counts against it",
    ),
    "pinned_bytes": Series(
        "bytes", "page-locked host memory of PyTorch's allocator, in blocks of a power of two, with its cache"
    ),
    "pinned_in_use_bytes": Series("bytes", "blocks of it that tensors use"),
    "process_anonymous_bytes": Series(
        "bytes", "resident memory of this process without pages of files and shared memory"
    ),
    "child_processes": Series(
        "count", "processes that this one has started, and theirs: DataLoader workers, for example"
    ),
    "child_processes_bytes": Series(
        "bytes",
        "memory that only one of these child processes has, in total; what a fork still shares is this process's",
    ),
    "largest_child_bytes": Series("bytes", "the part of it that the largest child process has"),
    "shared_memory_bytes": Series("bytes", "files in shared memory that this process or a child has open"),
}
"""Columns of the stream ``samples``: one row per tick of the sampler (10 a second by default)."""

STEPS: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the step's end, since 1970"),
    "step": Series("count", "number of the optimizer step, from 1; of a group of steps the last"),
    "first_step": Series(
        "count", "first step of the row; lower than step in a group of steps with one reading of the peaks"
    ),
    "duration_ns": Series("ns", "from the end of the step before to the end of this one; in a group the mean"),
    "micro_steps": Series("count", "backward passes in the step"),
    "peak_allocated_bytes": Series("bytes", "highest allocated within the step (the allocator's own peak counter)"),
    "peak_reserved_bytes": Series("bytes", "highest reserved within the step (the allocator's own peak counter)"),
    "peak_phase": Series("code", "phase in which allocated was highest"),
    "end_allocated_bytes": Series("bytes", "allocated when the step ended"),
    "end_reserved_bytes": Series("bytes", "reserved when the step ended"),
    "foreign_reset": Series(
        "code",
        "0: none; 1: the program reset the peak counters through PyTorch's functions, the peak is still exact; "
        "2: they were reset in another way, the peak is a lower bound",
    ),
    "after_step_bytes": Series(
        "bytes",
        "memory after each step: allocated on the device at its end; on the CPU bytes allocated by the C allocator",
    ),
    "graphs_alive": Series(
        "count", f"backward graphs of earlier steps still alive when the step ended, counted up to {MOST_GRAPHS:,}"
    ),
    "watched": Series(
        "code",
        "1: phases were read in this step; 0: they were not, to measure the overhead or to keep it low",
    ),
    "agent_ns": Series("ns", "time of the agent's hooks on the training thread in this step"),
    **{f"{phase}_ns": Series("ns", f"time in {phase}, without the agent's") for phase in PHASES},
    **{f"{phase}_peak_allocated_bytes": Series("bytes", f"highest allocated in {phase}") for phase in PHASES},
    **{f"{phase}_peak_reserved_bytes": Series("bytes", f"highest reserved in {phase}") for phase in PHASES},
    **{f"end_{category}_bytes": Series("bytes", f"{category} when the step ended") for category in CATEGORIES},
    **{f"peak_{category}_bytes": Series("bytes", f"{category} at the step's peak") for category in CATEGORIES},
}
"""Columns of the stream ``steps``: one row per optimizer step."""

STREAMS: Final[dict[str, dict[str, Series]]] = {"samples": SAMPLES, "steps": STEPS}

LOSSES: Final[dict[str, str]] = {
    "loss": "from session.log",
    "backward_loss": "the tensor on which backward() was called",
    "trainer_loss": "logged by the Trainer",
}
"""Scalars that are the training's loss, and their sources. The first that a run has is shown; they are never mixed."""

ABSENT: Final = b"\xff" * 8
"""Value in a column of Scalars without a number in this row. It is one of many NaN patterns, and no loss has it."""
