"""The report of a process of a dry run, and what the command concludes from the reports of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramscope.dry_run import collectives, ending_error, optimizers, process
from vramscope.protocol.dry_run import FOLDER_VARIABLE, ProcessReport
from vramscope_server.cli.dryrun import training
from vramscope_server.cli.dryrun.cards import card_named
from vramscope_server.cli.dryrun.training import Plan, Trial
from vramscope_server.cli.dryrun.verdict import faults, verdict

CARD = card_named("l4")
PLAN = Plan(["python", "train.py"], [Path("/lib/libcuda.so.1")], "http://127.0.0.1:8265", 3, 60)


def report(**known: Any) -> ProcessReport:
    values = {"rank": 0, "world_size": 1, "steps": 3, "cudnn_plans": 0, "reads": []}
    return ProcessReport(**values | known)


@pytest.fixture
def tried(monkeypatch):
    """``tried(reports, ...)``: the trial of a command whose processes wrote these reports."""

    def run(*reports: ProcessReport, status: int = 0, is_late: bool = False, plan: Plan = PLAN, **known: Any) -> Trial:
        class Command:
            returncode = status

            def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
                for number, one in enumerate(reports):
                    Path(env[FOLDER_VARIABLE], f"rank-{number}.json").write_bytes(msgspec.json.encode(one))

            def wait(self, seconds: float) -> None:
                if is_late:
                    raise subprocess.TimeoutExpired("python", seconds)

        answer = {"steps": 3, "peak_allocated_bytes": 5, "peak_reserved_bytes": 6, "out_of_memory_count": 0} | known
        monkeypatch.setattr(training.subprocess, "Popen", Command)
        monkeypatch.setattr(training, "_end_all", lambda _: None)
        monkeypatch.setattr(training, "ask", lambda *_: answer)
        return training.train(plan, CARD, CARD.total_bytes, 0)

    return run


def test_the_report_is_written_after_the_requested_steps_though_the_program_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizers, "one_steps_rarely", lambda _: True)
    monkeypatch.setattr(collectives, "wait_until_finished", lambda: None)
    one = process.DryRunProcess(tmp_path, 3)
    made = []
    for _ in range(4):
        one.step_ended(None)  # type: ignore[arg-type] # of no interest
        made.append([msgspec.json.decode(path.read_bytes())["steps"] for path in tmp_path.iterdir()])
    assert made == [[], [], [3], [4]]


def test_an_optimizer_that_never_steps_is_named_when_the_time_is_over(tried):
    late = tried(report(steps=9, unstepped=["Adam"]), status=-15, is_late=True, steps=8)
    assert (late.end, late.steps) == ("ended", 8), "the last step was not sent"
    found = verdict("fits", late, [late], CARD)
    assert found.answer == "fits"
    assert found.assumptions == ["Adam takes its first step later, and its state is not in the peaks"]


@pytest.mark.parametrize(
    ("reports", "known", "reason"),
    [
        ([], {"steps": 2}, "2 of 3 steps had ended when the time was over (--timeout)"),
        ([report(steps=4)], {"steps": 2}, "2 of 3 steps had ended when the time was over (--timeout)"),
        ([report(world_size=2)], {}, "not every process had ended when the time was over (--timeout)"),
    ],
)
def test_a_training_that_was_ended_too_early_gives_no_answer(tried, reports, known, reason):
    late = tried(*reports, status=-15, is_late=True, **known)
    assert (late.end, faults(late)) == ("late", [reason])


def test_running_out_of_memory_later_is_no_answer_that_it_fits(tried):
    assert tried(report(), status=-15, is_late=True, out_of_memory_count=1).end == "out of memory"


def test_a_report_without_pytorch_replaces_none_of_the_training(tried):
    """A program that starts the training ends with an error of its own."""
    starter = report(steps=0, has_torch=False, error="RuntimeError: the child failed")
    stuck = report(steps=0, waits_at="train.py:9")
    for reports in ((starter, stuck), (stuck, starter)):
        trial = tried(*reports, status=1)
        assert (trial.end, faults(trial)) == ("waits", ["train.py:9 waits in a loop for a value that is not computed"])
    assert faults(tried(starter, status=1))[0].startswith("the script failed with RuntimeError: the child failed")


def test_a_process_without_pytorch_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ValueError("no such file"), raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    ending_error.report_alone()
    (made,) = (msgspec.json.decode(path.read_bytes(), type=ProcessReport) for path in tmp_path.iterdir())
    assert (made.has_torch, made.error) == (False, "ValueError: no such file")
