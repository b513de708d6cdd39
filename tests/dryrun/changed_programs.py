"""Programs with changes that are switched on from outside, and the same programs with the changes in their code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from ports import free_port

from vramscope.protocol.dry_run import ChangeName
from vramscope_server.cli.dryrun.attempts import Attempt, attempt
from vramscope_server.cli.dryrun.cards import card_named
from vramscope_server.cli.dryrun.changes import CHANGES
from vramscope_server.cli.dryrun.libraries import libraries_for, torch_of
from vramscope_server.cli.dryrun.training import Plan, train
from vramscope_server.cli.dryrun.verdict import CONTEXT_HIGH_BYTES, LARGE_BYTES
from vramscope_server.cli.local_server import server_at

PROGRAMS: Final = Path(__file__).with_name("programs")
CARD: Final = card_named("l4")
SCALAR_BYTES: Final = 512
"""Memory of one number: what the allocator rounds it to."""
PLAIN_LOOPS: Final = ("blocks", "convolutions", "adversarial", "loader", "gpt2_loop", "vision")
FRAMEWORKS: Final = frozenset({"gpt2_loop", "gpt2_trainer", "lightning_loop", "accelerate_loop", "vision", "lora"})
"""Programs that import Transformers, Lightning or Accelerate."""
Names = Sequence[ChangeName]

_LOOP: Final[Names] = ("fused_optimizer", "bf16_autocast", "checkpointing")
CASES: Final[Mapping[str, Sequence[Names]]] = {
    "blocks": (
        ("expandable_segments",),
        ("fused_optimizer",),
        ("single_tensor_optimizer",),
        ("eight_bit_optimizer",),
        ("bf16_autocast",),
        ("checkpointing",),
        ("optimizer_offload",),
        ("fsdp_2",),
        ("fsdp_4",),
        ("fsdp_8",),
        ("expandable_segments", "fused_optimizer", "bf16_autocast", "checkpointing"),
        ("checkpointing", "optimizer_offload"),
        ("eight_bit_optimizer", "bf16_autocast", "checkpointing"),
        ("fused_optimizer", "bf16_autocast", "fsdp_4"),
        ("checkpointing", "fsdp_4"),
    ),
    "convolutions": (
        ("fused_optimizer",),
        ("eight_bit_optimizer",),
        ("bf16_autocast",),
        ("checkpointing",),
        ("fsdp_2",),
        ("fsdp_8",),
        ("bf16_autocast", "checkpointing"),
    ),
    "adversarial": (
        *((name,) for name in _LOOP),
        ("eight_bit_optimizer",),
        ("fsdp_2",),
        ("fsdp_8",),
        _LOOP,
    ),
    "loader": (("eight_bit_optimizer",), ("fsdp_4",)),
    "gpt2_loop": (
        *((name,) for name in ("sdpa", *_LOOP)),
        ("eight_bit_optimizer",),
        ("fsdp_2",),
        ("fsdp_8",),
        ("sdpa", "checkpointing"),
        ("sdpa", "bf16_autocast", "checkpointing", "fsdp_4"),
    ),
    "vision": (
        *((name,) for name in ("sdpa", "bf16_autocast", "checkpointing", "single_tensor_optimizer")),
        ("eight_bit_optimizer",),
        ("fsdp_2",),
        ("fsdp_8",),
        ("sdpa", "bf16_autocast", "checkpointing"),
    ),
    "gpt2_trainer": (
        *((name,) for name in ("sdpa", *_LOOP, "accumulation")),
        ("eight_bit_optimizer",),
        ("bf16_autocast", "checkpointing", "accumulation"),
    ),
    "lightning_loop": (
        *((name,) for name in (*_LOOP, "accumulation")),
        ("eight_bit_optimizer",),
        ("bf16_autocast", "checkpointing", "accumulation"),
    ),
    "accelerate_loop": (
        *((name,) for name in (*_LOOP, "accumulation")),
        ("eight_bit_optimizer",),
        ("bf16_autocast", "checkpointing", "accumulation"),
    ),
    "lora": (
        *((name,) for name in ("bf16_autocast", "checkpointing", "accumulation")),
        ("eight_bit_optimizer",),
        ("bf16_autocast", "checkpointing", "accumulation"),
    ),
}
"""Changes that were made in the code of each program, alone and together."""


@dataclass(frozen=True)
class Peaks:
    allocated: int
    reserved: int


@dataclass(frozen=True)
class DryRuns:
    """Dry runs of the programs of this folder."""

    url: str
    patch: pytest.MonkeyPatch
    folder: Path = PROGRAMS

    def by_hand(self, program: str, *names: ChangeName) -> Peaks:
        """Peaks of a program that makes the changes in its code."""
        with self.patch.context() as patch:
            patch.setenv("HAND", ",".join(names))
            if "expandable_segments" in names:
                patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
            with self._libraries(names):
                run = train(self._plan(program), CARD, LARGE_BYTES, CONTEXT_HIGH_BYTES).run
        assert run is not None
        return Peaks(run["peak_allocated_bytes"] or 0, run["peak_reserved_bytes"] or 0)

    def from_outside(self, program: str, *names: ChangeName) -> Attempt:
        """The program with changes that are switched on from outside."""
        with self._libraries(names):
            return attempt(self._plan(program), CARD, [change for change in CHANGES if change.name in names])

    @contextmanager
    def _libraries(self, names: Sequence[ChangeName]) -> Iterator[None]:
        """Let the programs import their neighbours, and bitsandbytes from the folder of its own where they need it."""
        folders = [str(PROGRAMS), *([f"{sys.prefix}/optimizers"] if "eight_bit_optimizer" in names else [])]
        with self.patch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *folders]))
            yield

    def _plan(self, program: str) -> Plan:
        command = [sys.executable, str(self.folder / f"{program}.py")]
        return Plan(command, libraries_for(torch_of(sys.executable)), self.url, 3, 300)


@contextmanager
def dry_runs_in(folder: Path) -> Iterator[DryRuns]:
    """Start a server whose data is in this folder, and end it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VRAMSCOPE_DATA_DIR", str(folder))
        address = f"http://127.0.0.1:{free_port()}"
        with server_at(address, "The test") as used:
            assert used.is_temporary
            yield DryRuns(address, patch)


def peaks_of(done: Attempt) -> Peaks:
    """Return the peaks of an attempt that ran."""
    assert done.state == "ran", done.reason
    assert done.verdict is not None
    run: Any = done.verdict.trial.run
    return Peaks(run["peak_allocated_bytes"], run["peak_reserved_bytes"])
