"""Report of one process of a dry run. The agent writes it as a JSON file; ``vramscope dryrun`` reads it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FOLDER_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_FOLDER"
"""Environment variable with the folder of the reports. Set: this process is part of a dry run."""
STEPS_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_STEPS"
"""Environment variable with the number of optimizer steps after which a process ends."""
CHANGES_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_CHANGES"
"""Environment variable with the changes of a program that are switched on from outside: names with commas between them."""
RANKS_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_RANKS"
"""Environment variable that is set if the process is one rank of many, and the others are not run."""
FEWEST_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_FEWEST"
"""Environment variable that is set if masks select one element, and not every element."""
WORK_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_WORK"
"""Environment variable that is set if the floating-point operations of the last requested step are counted."""

ChangeName = Literal[
    "expandable_segments",
    "fused_optimizer",
    "sdpa",
    "single_tensor_optimizer",
    "eight_bit_optimizer",
    "bf16_autocast",
    "fp16_autocast",
    "checkpointing",
    "accumulation",
    "optimizer_offload",
    "fsdp_2",
    "fsdp_4",
    "fsdp_8",
]
"""Changes of a program that need no change of its code."""

NO_EIGHT_BIT: Final = "not tried, because neither bitsandbytes nor torchao is installed"
"""Reason why 8-bit optimizers are not tried."""

ReadKind = Literal[
    "shape", "largest", "balanced", "branch", "check", "used_number", "length", "number", "used_copy", "copy", "print"
]
"""What a value that the program reads from the device is used for.

shape     The size of a result depends on the data, as in ``unique()``.
largest   So it does, and the largest possible result was taken: ``nonzero()``, ``x[mask]``.
balanced  So it does, and each expert of a router was given the same number of rows.
branch    A truth value.
check     A truth value that asks whether numbers are finite.
used_number   One number that is an integer, or on which the course of the program depends.
length    One number that is used as a length, such as the end of a slice.
number    One floating-point number on which nothing depends.
copy      A whole tensor. ``used_copy``: it may hold sizes or positions.
print     PyTorch formats a tensor as text.
"""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Reads of the device by one line of code. No value on an emulated device was computed."""

    kind: ReadKind
    operation: str
    """PyTorch operation that reads; empty if it is not known."""
    file: str | None = None
    """File of the user's code; None in the backward pass, which has no line."""
    line: int | None = None
    function: str | None = None
    via: str | None = None
    """Line of an installed package that reads, as ``package/file.py:12``, if it is not the user's own line."""
    count: int
    """Number of reads."""
    assumed: str
    """The value that the program received instead."""
    expression: str = ""
    """Source of the condition that a truth value decides, if it is known and short."""
    experts: int | None = None
    """Number of experts, where a mask has the size of the choices of a router before it; None elsewhere."""


class ChangeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change in one process."""

    name: ChangeName
    applied: bool
    """True if the change took effect."""
    text: str
    """What was changed, or why nothing was."""
    lines: list[str] = []
    """Code or configuration with which the program has the same effect."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one process."""

    rank: int
    world_size: int
    steps: int
    """Optimizer steps that ended."""
    waits_at: str | None = None
    """Line of a loop that read the device so often that the process was ended."""
    refused: str | None = None
    """What the program asked for that cannot be emulated, as a sentence."""
    has_torch: bool = True
    """Whether the process imported PyTorch."""
    error: str | None = None
    """Exception that ended the program: its class and the first line of its message."""
    unstepped: list[str] = []
    """Optimizers that exist and have not stepped, by the name of their class."""
    cudnn_plans: int
    """Number of operations that cuDNN executed. Their workspaces are not counted."""
    tries_algorithms: bool = False
    """True if ``torch.backends.cudnn.benchmark`` is on: PyTorch tries algorithms with any workspace that fits."""
    recurrent_calls: int = 0
    """Number of calls of recurrent networks through cuDNN, whose spaces follow a formula."""
    plain_recurrent_calls: int = 0
    """Those of ``nn.RNN``, for which no size is known."""
    sparse_products: int = 0
    """Number of products of a sparse and a dense operand. Their workspaces are not counted."""
    short_histories: list[str] = []
    """Sentences about optimizers that will keep more tensors than they do now."""
    unread: list[str] = []
    """Lines for which the user named a value, and where nothing was read."""
    is_alone: bool = False
    """True if the other ranks are not run."""
    reads: list[Read]
    has_eight_bit: bool = True
    """False if no package with 8-bit optimizers is installed."""
    flops: int | None = None
    """Floating-point operations of the last requested step; None if they were not counted."""
    changes: list[ChangeOutcome] = []
    """One for each change that was switched on."""
