"""What follows from the dry runs of ``--try``: which change is the smallest, and how it is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramscope.protocol.dry_run import NO_EIGHT_BIT, ChangeOutcome, ProcessReport
from vramscope_server.cli.dryrun import attempt_html, attempt_report, attempts
from vramscope_server.cli.dryrun.cards import MIB, card_named
from vramscope_server.cli.dryrun.changes import CHANGES, already_used, offered, without_useless
from vramscope_server.cli.dryrun.training import Plan, Trial
from vramscope_server.cli.dryrun.verdict import LARGE_BYTES

CARD = card_named("l4")
CARD_MIB = CARD.total_bytes // MIB
PLAN = Plan(["python", "train.py"], [], "http://127.0.0.1:8265", 3, 60)
SAVED_MIB = {"expandable_segments": 100, "fused_optimizer": 0, "bf16_autocast": 4_000, "checkpointing": 9_000}
"""Memory that the changes save of the emulated trainings of this file; all others are not applicable."""


@pytest.fixture
def tried(monkeypatch):
    """``tried(needed MiB)``: answers for a training that needs that much, and the sets of changes that ran."""

    def run(needed_mib: int, techniques: Any = (), fails: str = "", **also_saved_mib: int) -> Any:
        ran = []
        saved_mib = SAVED_MIB | also_saved_mib

        def train(plan: Plan, card: Any, total_bytes: int, context_bytes: int) -> Trial:
            if total_bytes == LARGE_BYTES:
                ran.append(tuple(plan.changes))
            need = (needed_mib - sum(saved_mib.get(name, 0) for name in plan.changes)) * MIB
            fits = need + context_bytes <= total_bytes
            outcomes = [
                ChangeOutcome(name=name, applied=name in saved_mib, text=f"text of {name}", lines=[f"line of {name}"])
                for name in plan.changes
            ]
            report = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=0, reads=[], changes=outcomes)
            row: Any = {
                "peak_allocated_bytes": need - MIB,
                "peak_reserved_bytes": need,
                "techniques": list(techniques),
            }
            end = "out of memory" if not fits else "failed" if fails in plan.changes else "ended"
            return Trial(total_bytes, context_bytes, 3, "a" * 16, int(end != "ended"), end, [report], row)  # type: ignore[arg-type]

        monkeypatch.setattr(attempts, "train", train)
        found = attempts.attempt_all(PLAN, CARD)
        return attempt_report.answer(found, CARD), ran

    return run


def test_a_training_that_fits_needs_no_change(tried):
    answer, ran = tried(10_000)
    assert (answer["answer"], answer["exit_code"], answer["smallest"]) == ("fits", 0, None)
    assert ran[0] == ()
    more = {"fsdp_4", "fsdp_8"}  # two ranks do nothing here
    assert {name for names in ran for name in names} == {change.name for change in offered(CARD.capability)} - more
    assert attempt_report.headline(answer) == "fits on NVIDIA L4 (22.0 GiB) without a change"


def test_the_change_that_costs_least_is_the_smallest(tried):
    answer, _ = tried(CARD_MIB + 2_000)
    assert answer["smallest"]["changes"] == ["bf16 autocast"], "checkpointing fits too, and costs more"
    assert answer["smallest"]["lines"] == ["line of bf16_autocast"]
    assert answer["smallest"]["saved_reserved_bytes"] == 4_000 * MIB
    assert answer["exit_code"] == 0


def test_changes_that_are_not_needed_together_are_left_out(tried):
    answer, ran = tried(CARD_MIB + 11_000)
    assert answer["smallest"]["changes"] == ["bf16 autocast", "checkpointing"]
    assert ("bf16_autocast", "checkpointing") in ran


def test_more_cards_are_the_last_resort(tried):
    shards = {"fsdp_2": 20_000, "fsdp_4": 30_000, "fsdp_8": 35_000}
    answer, _ = tried(CARD_MIB + 11_000, **shards)
    assert answer["smallest"]["changes"] == ["bf16 autocast", "checkpointing"], "one card suffices"
    answer, _ = tried(CARD_MIB + 18_000, **shards)
    assert answer["smallest"]["changes"] == ["FSDP2 over 2 ranks"]
    answer, ran = tried(CARD_MIB + 40_000, **shards)
    assert answer["smallest"]["changes"] == ["bf16 autocast", "checkpointing", "FSDP2 over 4 ranks"]
    assert not any({"fsdp_2", "fsdp_4"} <= set(names) for names in ran)


@pytest.mark.parametrize(
    ("together", "left"),
    [
        ("single_tensor_optimizer eight_bit_optimizer", "eight_bit_optimizer"),
        ("fused_optimizer eight_bit_optimizer optimizer_offload", "optimizer_offload"),
        ("fused_optimizer eight_bit_optimizer fsdp_2 fsdp_8", "fused_optimizer fsdp_8"),
        ("eight_bit_optimizer optimizer_offload fsdp_2", "fsdp_2"),
        ("bf16_autocast checkpointing", "bf16_autocast checkpointing"),
    ],
)
def test_changes_that_do_not_work_together_are_not_combined(together, left):
    """A change counts only if it is not left out itself: 8 bits do not replace the fused update if FSDP replaces them."""
    chosen = [change for change in CHANGES if change.name in together.split()]
    assert " ".join(change.name for change in without_useless(chosen)) == left


def test_if_nothing_fits_that_is_the_answer(tried):
    answer, _ = tried(CARD_MIB + 50_000)
    assert (answer["smallest"], answer["exit_code"]) == (None, 1)
    assert attempt_report.headline(answer) == "does not fit on NVIDIA L4 (22.0 GiB); none of these changes fits"


def test_where_reserved_memory_alone_exceeds_the_card_it_runs_on_the_card(tried):
    answer, _ = tried(CARD_MIB - 600)
    assert answer["answer"] == "too close to say"
    assert answer["smallest"]["changes"] == ["bf16 autocast"], "100 MiB less are too close, too"


def test_a_change_that_fails_has_no_figures(tried):
    answer, _ = tried(10_000, fails="checkpointing")
    row = next(row for row in answer["alone"] if row["changes"] == ["checkpointing"])
    assert (row["state"], row["reason"]) == ("failed", "the command failed with status 1; what it printed says why")
    assert row["peak_allocated_bytes"] is None


def test_a_technique_that_the_plain_run_shows_is_not_tried(tried):
    used = {"kind": "mixed_precision", "observed": "autocast to bfloat16 in 9 of 9 module calls"}
    answer, ran = tried(10_000, techniques=[used])
    row = next(row for row in answer["alone"] if row["changes"] == ["bf16 autocast"])
    assert (row["state"], row["reason"]) == ("already used", used["observed"])
    assert not any("bf16_autocast" in names for names in ran)


def test_changes_that_earlier_runs_rule_out_are_not_run():
    """8-bit optimizers need a package, and where two ranks do nothing, so do four and eight."""
    named = {change.name: change for change in CHANGES}

    def plain(has_eight_bit: bool) -> Trial:
        report = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=0, reads=[], has_eight_bit=has_eight_bit)
        return Trial(LARGE_BYTES, 0, 3, "a" * 16, 0, "ended", [report], None)

    def after(name: str, state: str) -> list[attempts.Attempt]:
        return [attempts.Attempt([named[name]], state, "the reason")]

    assert attempts.not_applicable(named["eight_bit_optimizer"], plain(True), []) is None
    assert attempts.not_applicable(named["eight_bit_optimizer"], plain(False), []) == NO_EIGHT_BIT
    assert attempts.not_applicable(named["fsdp_2"], plain(True), after("checkpointing", "not applicable")) is None
    assert attempts.not_applicable(named["fsdp_4"], plain(True), after("fsdp_2", "not applicable")) == "the reason"
    assert attempts.not_applicable(named["fsdp_8"], plain(True), after("fsdp_2", "not applicable")) == "the reason"
    assert attempts.not_applicable(named["fsdp_4"], plain(True), after("fsdp_2", "ran")) is None


@pytest.mark.parametrize(
    ("kind", "observed", "used"),
    [
        ("mixed_precision", "float32 matrix products may use TF32: faster, same memory", []),
        ("mixed_precision", "frozen weights in bfloat16", []),
        ("mixed_precision", "trained parameters are bfloat16", ["bf16_autocast", "fp16_autocast"]),
        ("optimizer", "torch.optim.AdamW", []),
        ("optimizer", "torch.optim.AdamW (fused)", ["fused_optimizer", "single_tensor_optimizer"]),
        ("gradient_checkpointing", "", []),
        ("gradient_checkpointing", "recomputed in backward: 4 Block", ["checkpointing"]),
        ("allocator", "expandable_segments:True", ["expandable_segments"]),
    ],
)
def test_techniques_are_known_by_what_the_agent_observes(kind, observed, used):
    run: Any = {"techniques": [{"kind": kind, "observed": observed}]}
    assert [change.name for change in CHANGES if already_used(change, run) is not None] == used


@pytest.mark.parametrize(("card", "name"), [("t4", "fp16_autocast"), ("l4", "bf16_autocast")])
def test_the_dtype_of_autocast_suits_the_card(card, name):
    names = {change.name for change in offered(card_named(card).capability)}
    assert names & {"fp16_autocast", "bf16_autocast"} == {name}


def test_the_table_marks_what_rests_on_assumptions(tried, capsys):
    answer, _ = tried(CARD_MIB + 2_000)
    answer["plain"] |= {"assumptions": ["train.py:7 is taken as True"]}
    attempt_report.print_answer(answer)
    said = capsys.readouterr().out
    assert "no change [1]" in said
    assert "[1] assumed: train.py:7 is taken as True" in said
    assert "    line of bf16_autocast" in said


def test_the_file_has_the_table_the_figure_and_the_lines(tried, tmp_path):
    """One file without addresses, so that it needs no server. Texts of the program are escaped."""
    answer, _ = tried(CARD_MIB + 2_000)
    path = tmp_path / "changes.html"
    attempt_html.write(path, answer)
    assert "The work of a step is unknown." in path.read_text()
    answer["plain"] |= {"assumptions": ["`a<b>` at train.py:7 is taken as True"], "work_ratio": 1.0}
    for row in answer["alone"]:
        row["work_ratio"] = 1.0 if row["changes"] == ["bf16 autocast"] else None
    attempt_html.write(path, answer)
    page = path.read_text()
    headline = attempt_report.headline(answer)
    assert f"<title>{headline[:1].upper()}{headline[1:]}</title>" in page
    for text in ("no change [1]", "bf16 autocast", "line of bf16_autocast", "[1] assumed: `a&lt;b&gt;` at train.py:7"):
        assert text in page
    assert "The work of a step is unknown." not in page
    assert not {word for word in ("<script src", "<link", "a<b>") if word in page}


def test_a_training_without_a_trustworthy_answer_is_not_tried(monkeypatch):
    report = ProcessReport(rank=0, world_size=1, steps=0, cudnn_plans=0, reads=[])
    row: Any = {"peak_allocated_bytes": 5 * MIB, "peak_reserved_bytes": 6 * MIB}
    trial = Trial(LARGE_BYTES, 0, 3, "a" * 16, 0, "ended", [report], row)
    monkeypatch.setattr(attempts, "train", lambda *_: replace(trial))
    answer = attempt_report.answer(attempts.attempt_all(PLAN, CARD), CARD)
    assert (answer["exit_code"], answer["alone"]) == (5, [])
    assert attempt_report.headline(answer).endswith(
        "no optimizer step ended: the script must call step() of a PyTorch optimizer before it ends"
    )
