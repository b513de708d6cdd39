"""The changes that ``--try`` makes, from the one that costs least to the one that costs most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vramscope.protocol.dry_run import ChangeName
from vramscope_server.answers.run_detail import RunAnswer

FIRST_BFLOAT16: Final = 80
"""Compute capability of the first cards that compute with bfloat16."""
OTHER_DTYPE: Final[tuple[ChangeName, ChangeName]] = ("bf16_autocast", "fp16_autocast")
HALF: Final = r"^(autocast to|weights cast to|trained parameters are|model parameters are)"
FUSED: Final = r"\(fused\)"


SHARDED: Final[Mapping[ChangeName, int]] = {"fsdp_2": 2, "fsdp_4": 4, "fsdp_8": 8}
"""Changes that need several cards, with their number."""


@dataclass(frozen=True)
class Change:
    """A change that a dry run switches on from outside."""

    name: ChangeName
    title: str
    cost: str
    """Cost to the user, in words."""
    technique: str = ""
    """Kind of the technique with which the agent shows that a program makes the change by itself."""
    used: str = ""
    """Regular expression for what the agent observes then."""
    assumption: str = ""
    """What differs from the same change in the program's code; empty if nothing does."""


CHANGES: Final = (
    Change(
        "expandable_segments",
        "expandable segments",
        "none known; PyTorch calls it experimental",
        "allocator",
        "expandable_segments:True",
    ),
    Change("fused_optimizer", "fused optimizer", "none; the update rounds differently", "optimizer", FUSED),
    Change("sdpa", "attention: sdpa", "none; it rounds differently and returns no attention weights"),
    Change("single_tensor_optimizer", "foreach=False", "the update takes longer", "optimizer", FUSED),
    Change(
        "eight_bit_optimizer",
        "8-bit optimizer",
        "states are rounded to 8 bits; needs bitsandbytes or torchao",
        "optimizer_8bit",
        ".",
    ),
    Change("bf16_autocast", "bf16 autocast", "products round to 16 bits", "mixed_precision", HALF),
    Change(
        "fp16_autocast",
        "fp16 autocast",
        "products round to 16 bits; needs a gradient scaler",
        "mixed_precision",
        HALF,
        "a plain loop runs without the gradient scaler here, which takes some KiB",
    ),
    Change(
        "checkpointing",
        "checkpointing",
        "the blocks run forward twice; BatchNorm in them updates its averages twice",
        "gradient_checkpointing",
        ".",
    ),
    Change(
        "accumulation",
        "accumulation x 2",
        "half the batch at a time; BatchNorm and losses that compare samples see half of it",
        assumption="each DataLoader has half the batch size, and a plain loop runs without the division of the loss",
    ),
    Change(
        "optimizer_offload",
        "optimizer on the CPU",
        "the update takes far longer; AdamW needs four times the weights in host memory",
        assumption="the update on the CPU is not run, and takes no memory of the GPU",
    ),
    *(
        Change(
            name,
            f"FSDP2 over {ranks} ranks",
            f"needs {ranks} cards, and sends all weights twice and all gradients once in each step",
            "distributed",
            ".",
            f"rank 0 of {ranks} is run, each rank with the batch of the plain run; NCCL's buffers are not counted",
        )
        for name, ranks in SHARDED.items()
    ),
)
_OVER_MORE: Final = frozenset(SHARDED)
USELESS_BESIDE: Final[Mapping[ChangeName, frozenset[ChangeName]]] = {
    "fused_optimizer": frozenset({"eight_bit_optimizer", "optimizer_offload"}),
    "single_tensor_optimizer": frozenset({"fused_optimizer", "eight_bit_optimizer", "optimizer_offload"}),
    "eight_bit_optimizer": _OVER_MORE | {"optimizer_offload"},
    "optimizer_offload": _OVER_MORE,
    "fsdp_2": frozenset({"fsdp_4", "fsdp_8"}),
    "fsdp_4": frozenset({"fsdp_8"}),
}
"""Changes that do nothing beside one of these, or do not work with it: bitsandbytes cannot update sharded parameters."""


def offered(capability: int) -> list[Change]:
    """Return the changes for a card: of the two autocast dtypes, the one that suits it."""
    left_out = OTHER_DTYPE[capability >= FIRST_BFLOAT16]
    return [change for change in CHANGES if change.name != left_out]


def already_used(change: Change, run: RunAnswer) -> str | None:
    """Return what the plain run showed if the program makes the change by itself. None: it does not."""
    for technique in run["techniques"] or []:
        observed = technique["observed"] or ""
        if technique["kind"] == change.technique and re.search(change.used, observed):
            return observed
    return None


def without_useless(changes: Sequence[Change]) -> list[Change]:
    """Leave out changes that do nothing, or do not work, beside another one."""
    left_out: set[ChangeName] = set()
    for change in reversed(changes):  # the costlier ones decide
        useless_beside = USELESS_BESIDE.get(change.name, frozenset())
        if any(other.name in useless_beside and other.name not in left_out for other in changes):
            left_out.add(change.name)
    return [change for change in changes if change.name not in left_out]


def on_one_card(changes: Sequence[Change]) -> list[Change]:
    """Leave out changes that need several cards."""
    return [change for change in changes if change.name not in SHARDED]
