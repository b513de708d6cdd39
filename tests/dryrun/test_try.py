"""Changes that are switched on from outside, against the same changes in the code of the program: both are dry runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from changed_programs import CASES, FRAMEWORKS, PROGRAMS, SCALAR_BYTES, DryRuns, Names, Peaks, peaks_of

from vramscope.protocol.dry_run import ChangeName
from vramscope_server.cli.dryrun import attempts
from vramscope_server.cli.dryrun.attempts import Attempt
from vramscope_server.cli.dryrun.changes import CHANGES

dryrun = import_module("vramscope_server.cli.dryrun")  # the command of this name is a function

pytestmark = pytest.mark.gpu
QUICK: Sequence[tuple[str, Names]] = (
    ("blocks", ("eight_bit_optimizer", "bf16_autocast", "checkpointing")),
    ("blocks", ("expandable_segments", "fused_optimizer", "bf16_autocast", "checkpointing")),
    ("blocks", ("checkpointing", "optimizer_offload")),
    ("blocks", ("checkpointing", "fsdp_4")),
    ("convolutions", ("bf16_autocast", "checkpointing")),
    ("convolutions", ("eight_bit_optimizer",)),
    ("adversarial", ("fused_optimizer", "bf16_autocast", "checkpointing")),
    ("adversarial", ("fsdp_2",)),
    ("loader", ("fsdp_4",)),
    ("gpt2_loop", ("sdpa", "bf16_autocast", "checkpointing", "fsdp_4")),
    ("gpt2_trainer", ("bf16_autocast", "checkpointing", "accumulation")),
    ("lightning_loop", ("bf16_autocast", "checkpointing", "accumulation")),
    ("accelerate_loop", ("bf16_autocast", "checkpointing", "accumulation")),
    ("vision", ("sdpa", "bf16_autocast", "checkpointing")),
    ("lora", ("eight_bit_optimizer",)),
)
"""Cases that run in each test run. The others run at night."""


def cases() -> Iterator[Any]:
    for program, sets in CASES.items():
        for names in sets:
            marks = [pytest.mark.frameworks] * (program in FRAMEWORKS)
            marks += [pytest.mark.slow] * ((program, names) not in QUICK)
            yield pytest.param(program, names, marks=marks)


@pytest.fixture(scope="module")
def dry_runs(url) -> Iterator[DryRuns]:
    with pytest.MonkeyPatch.context() as patch:
        yield DryRuns(url, patch)


@pytest.fixture(scope="module")
def accumulated(dry_runs) -> Attempt:
    """The plain loop with accumulation switched on from outside."""
    return dry_runs.from_outside("loader", "accumulation")


@pytest.mark.parametrize(
    ("program", "names"), cases(), ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_a_change_has_the_peaks_of_the_same_change_in_the_code(dry_runs, program, names):
    done = dry_runs.from_outside(program, *names)
    assert peaks_of(done) == dry_runs.by_hand(program, *names)
    assert done.lines


def test_the_quick_cases_are_cases():
    assert all(names in CASES[program] for program, names in QUICK)


@pytest.mark.slow
def test_changes_change_the_peaks(dry_runs):
    """The test above is of no value if both sides are the plain program."""
    plain = dry_runs.by_hand("blocks")
    assert dry_runs.by_hand("blocks", "checkpointing").allocated < 0.9 * plain.allocated
    assert dry_runs.by_hand("blocks", "bf16_autocast").allocated < plain.allocated
    assert dry_runs.by_hand("blocks", "expandable_segments").reserved < plain.reserved
    assert dry_runs.by_hand("blocks", "eight_bit_optimizer").allocated < plain.allocated
    assert dry_runs.by_hand("blocks", "fsdp_8").allocated < dry_runs.by_hand("blocks", "fsdp_2").allocated


def test_accumulation_in_a_plain_loop_lacks_the_division_of_the_loss(dry_runs, accumulated):
    by_hand = dry_runs.by_hand("loader", "accumulation")
    assert peaks_of(accumulated) == Peaks(by_hand.allocated - SCALAR_BYTES, by_hand.reserved)
    assert accumulated.lines[0] == "DataLoader(..., batch_size=1024)"
    assert "division of the loss" in accumulated.changes[0].assumption


def test_gradients_that_are_dropped_otherwise_are_not_accumulated(dry_runs, accumulated, tmp_path):
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
    assert of_model == peaks_of(accumulated)


def test_a_change_that_nothing_uses_is_not_applicable(dry_runs):
    done = dry_runs.from_outside("loader", "checkpointing")
    assert (done.state, done.reason) == ("not applicable", "no model has repeated blocks")


FEW: Sequence[ChangeName] = ("fused_optimizer", "sdpa", "eight_bit_optimizer", "checkpointing", "fsdp_8")
"""Changes that differ in what becomes of them. The command with all changes runs at night."""


@pytest.mark.timeout(400)  # with all changes more than ten dry runs
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "all"])
def test_the_command_finds_the_smallest_change(dry_runs, tmp_path, monkeypatch, capfd, few):
    """A card of 4.8 GiB, a model of blocks that needs more, and 16-bit activations that fit."""
    script = tmp_path / "large.py"
    script.write_text((PROGRAMS / "blocks.py").read_text().replace("zeros(16, 128", "zeros(700, 256"))
    if few:
        monkeypatch.setattr(attempts, "offered", lambda capability: [one for one in CHANGES if one.name in FEW])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(PROGRAMS)]))
    status = dryrun.show(dry_runs.url, True, [sys.executable, str(script)], "a100-1g.5gb", 3, 400, tries=True)
    said = capfd.readouterr()
    answer = json.loads(said.out)
    assert (status, answer["answer"]) == (0, "does not fit"), said.err
    states = {row["changes"][0]: (row["state"], row["answer"]) for row in answer["alone"]}
    assert states["attention: sdpa"] == ("not applicable", None)
    assert states["fused optimizer"] == ("ran", "does not fit")
    assert states["checkpointing"] == ("ran", "fits")
    reasons = {row["changes"][0]: row["reason"] for row in answer["alone"]}
    assert reasons["8-bit optimizer"] == "not tried, because neither bitsandbytes nor torchao is installed"
    assert states["FSDP2 over 8 ranks"][0] == "ran"
    smallest = next(row for row in answer["alone"] if row["answer"] == "fits")
    assert answer["smallest"] == smallest
    assert smallest["lines"]
