"""Changes that are switched on from outside, against the same changes in the code of the program: both are dry runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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

pytestmark = pytest.mark.gpu
PROGRAMS = Path(__file__).with_name("programs")
CARD = card_named("l4")
SCALAR_BYTES = 512
"""Memory of one number: what the allocator rounds it to."""


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
            run = train(self._plan(program), CARD, LARGE_BYTES, CONTEXT_HIGH_BYTES).run
        assert run is not None
        return Peaks(run["peak_allocated_bytes"] or 0, run["peak_reserved_bytes"] or 0)

    def from_outside(self, program: str, *names: ChangeName) -> Attempt:
        """The program with changes that are switched on from outside."""
        return attempt(self._plan(program), CARD, [change for change in CHANGES if change.name in names])

    def _plan(self, program: str) -> Plan:
        command = [sys.executable, str(self.folder / f"{program}.py")]
        return Plan(command, libraries_for(torch_of(sys.executable)), self.url, 3, 300)


def peaks_of(done: Attempt) -> Peaks:
    assert done.state == "ran", done.reason
    assert done.verdict is not None
    run: Any = done.verdict.trial.run
    return Peaks(run["peak_allocated_bytes"], run["peak_reserved_bytes"])


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory) -> Iterator[DryRuns]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VRAMSCOPE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        address = f"http://127.0.0.1:{free_port()}"
        with server_at(address, "The test") as started:
            assert started
            yield DryRuns(address, patch)


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("blocks", ["checkpointing"]),
        ("blocks", ["bf16_autocast"]),
        ("blocks", ["optimizer_offload"]),
        ("blocks", ["expandable_segments", "fused_optimizer", "bf16_autocast", "checkpointing"]),
        ("convolutions", ["bf16_autocast", "checkpointing"]),
        ("blocks", ["checkpointing", "optimizer_offload"]),
        ("adversarial", ["fused_optimizer", "bf16_autocast", "checkpointing"]),
        *(
            pytest.param(program, names, marks=pytest.mark.slow)
            for program, names in (
                ("blocks", ["expandable_segments"]),
                ("blocks", ["fused_optimizer"]),
                ("blocks", ["single_tensor_optimizer"]),
                ("convolutions", ["fused_optimizer"]),
                ("convolutions", ["bf16_autocast"]),
                ("convolutions", ["checkpointing"]),
                ("adversarial", ["fused_optimizer"]),
                ("adversarial", ["bf16_autocast"]),
                ("adversarial", ["checkpointing"]),
            )
        ),
        *(
            pytest.param(program, names, marks=pytest.mark.frameworks)
            for program, names in (
                ("gpt2_loop", ["sdpa", "checkpointing"]),
                ("gpt2_trainer", ["bf16_autocast", "checkpointing", "accumulation"]),
                ("lightning_loop", ["bf16_autocast", "checkpointing", "accumulation"]),
                ("accelerate_loop", ["bf16_autocast", "checkpointing", "accumulation"]),
                ("vision", ["sdpa", "bf16_autocast", "checkpointing"]),
                ("lora", ["bf16_autocast", "checkpointing", "accumulation"]),
            )
        ),
        *(
            pytest.param(program, [name], marks=[pytest.mark.frameworks, pytest.mark.slow])
            for program, names in (
                ("gpt2_loop", ["sdpa", "bf16_autocast", "checkpointing", "fused_optimizer"]),
                ("gpt2_trainer", ["sdpa", "bf16_autocast", "checkpointing", "fused_optimizer", "accumulation"]),
                ("lightning_loop", ["bf16_autocast", "checkpointing", "fused_optimizer", "accumulation"]),
                ("accelerate_loop", ["bf16_autocast", "checkpointing", "fused_optimizer", "accumulation"]),
                ("vision", ["sdpa", "bf16_autocast", "checkpointing", "single_tensor_optimizer"]),
                ("lora", ["bf16_autocast", "checkpointing", "accumulation"]),
            )
            for name in names
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_change_has_the_peaks_of_the_same_change_in_the_code(dry_runs, program, names):
    done = dry_runs.from_outside(program, *names)
    assert peaks_of(done) == dry_runs.by_hand(program, *names)
    assert done.lines


@pytest.mark.slow
def test_changes_change_the_peaks(dry_runs):
    """The test above is of no value if both sides are the plain program."""
    plain = dry_runs.by_hand("blocks")
    assert dry_runs.by_hand("blocks", "checkpointing").allocated < 0.9 * plain.allocated
    assert dry_runs.by_hand("blocks", "bf16_autocast").allocated < plain.allocated
    assert dry_runs.by_hand("blocks", "expandable_segments").reserved < plain.reserved


def test_accumulation_in_a_plain_loop_lacks_the_division_of_the_loss(dry_runs):
    done = dry_runs.from_outside("loader", "accumulation")
    by_hand = dry_runs.by_hand("loader", "accumulation")
    assert peaks_of(done) == Peaks(by_hand.allocated - SCALAR_BYTES, by_hand.reserved)
    assert done.lines[0] == "DataLoader(..., batch_size=1024)"
    assert "division of the loss" in done.changes[0].assumption


def test_gradients_that_are_dropped_otherwise_are_not_accumulated(dry_runs, tmp_path):
    text = (PROGRAMS / "loader.py").read_text()
    dropped = "for parameter in model.parameters(): parameter.grad = None"
    (tmp_path / "dropping.py").write_text(text.replace("optimizer.zero_grad()", dropped))
    (tmp_path / "of_model.py").write_text(text.replace("optimizer.zero_grad()", "model.zero_grad()"))
    runs = replace(dry_runs, folder=tmp_path)
    done = runs.from_outside("dropping", "accumulation")
    assert (done.state, done.reason) == (
        "not applicable",
        "the program drops its gradients in another way than by zero_grad()",
    )
    of_model = peaks_of(runs.from_outside("of_model", "accumulation"))
    assert of_model == peaks_of(dry_runs.from_outside("loader", "accumulation"))


def test_a_change_that_nothing_uses_is_not_applicable(dry_runs):
    done = dry_runs.from_outside("loader", "checkpointing")
    assert (done.state, done.reason) == ("not applicable", "no model has repeated blocks")


@pytest.mark.timeout(400)  # more than ten dry runs
def test_the_command_finds_the_smallest_change(dry_runs, tmp_path):
    """A card of 4.8 GiB, a model of blocks that needs more, and 16-bit activations that fit."""
    script = tmp_path / "large.py"
    script.write_text((PROGRAMS / "blocks.py").read_text().replace("zeros(16, 128", "zeros(700, 256"))
    command = [sys.executable, "-m", "vramscope_server", "dryrun", "--card", "a100-1g.5gb", "--try", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    done = subprocess.run(
        [*command, "--server", dry_runs.url, "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["answer"]) == (0, "does not fit"), done.stderr
    states = {row["changes"][0]: (row["state"], row["answer"]) for row in answer["alone"]}
    assert states["attention: sdpa"] == ("not applicable", None)
    assert states["fused optimizer"] == ("ran", "does not fit")
    assert states["checkpointing"] == ("ran", "fits")
    smallest = next(row for row in answer["alone"] if row["answer"] == "fits")
    assert answer["smallest"] == smallest
    assert smallest["lines"]
