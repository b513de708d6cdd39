"""What follows from the runs of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest

from vramscope.protocol.dry_run import ProcessReport, Read
from vramscope_server.cli.dryrun import report, several_cards
from vramscope_server.cli.dryrun.cards import MIB, card_named
from vramscope_server.cli.dryrun.training import Plan, Trial
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    LARGE_BYTES,
    NO_STEP,
    Verdict,
    assumptions,
    faults,
    verdict,
)

dryrun = import_module("vramscope_server.cli.dryrun")  # the command of this name is a function
CARD = card_named("l4")
PLAN = Plan(["python", "train.py"], [], "http://127.0.0.1:8265", 3, 60)


def read(kind: str, **others: Any) -> Read:
    values = {"operation": "item", "file": "/home/me/train.py", "line": 7, "count": 2, "assumed": "True"}
    return Read(kind=kind, **values | others)


@pytest.fixture
def judged(monkeypatch):
    """``judged(needed MiB, reads...)``: the verdict of a training that takes that much."""

    def judge(
        needed_mib: int, *reads: Read, end: str = "ended", steps: int = 3, waits_at: str | None = None
    ) -> Verdict:
        def train(plan: Plan, card: Any, total_bytes: int, context_bytes: int) -> Trial:
            trials.append((total_bytes, context_bytes))
            fits = needed_mib * MIB + context_bytes <= total_bytes
            one = ProcessReport(rank=0, world_size=1, steps=steps, waits_at=waits_at, cudnn_plans=0, reads=list(reads))
            run: Any = {"peak_allocated_bytes": needed_mib * MIB - MIB, "peak_reserved_bytes": needed_mib * MIB}
            return Trial(
                total_bytes, context_bytes, 3, "a" * 16, 0 if fits else 1, end if fits else "out of memory", [one], run
            )

        trials: list[tuple[int, int]] = []
        monkeypatch.setattr(dryrun, "train", train)
        verdict = dryrun.judge(PLAN, CARD)
        assert trials[0] == (CARD.total_bytes, CONTEXT_HIGH_BYTES)
        return verdict

    return judge


SIZE = "the size of the result of _unique2 depends on data"
CARD_MIB = CARD.total_bytes // MIB


def test_a_training_that_survives_with_the_largest_context_fits(judged):
    verdict = judged(10_000)
    assert (verdict.answer, verdict.exit_code) == ("fits", 0)
    assert verdict.left_bytes == CARD.total_bytes - CONTEXT_HIGH_BYTES - 10_000 * MIB


def test_tensors_that_exceed_the_card_do_not_fit(judged):
    verdict = judged(30_000)
    assert (verdict.answer, verdict.exit_code) == ("does not fit", 1)
    assert verdict.trial.total_bytes == LARGE_BYTES, "the figures are those of what it needs"


def test_a_training_that_only_the_smallest_context_leaves_room_for_is_too_close(judged):
    verdict = judged(CARD_MIB - 600)
    assert (verdict.answer, verdict.exit_code) == ("too close to say", 1)
    assert verdict.reasons == ["it fits if the CUDA context takes 256 MiB, and does not if it takes 942 MiB"]


@pytest.mark.parametrize(
    ("reads", "reason"),
    [
        ([read("shape", operation="_unique2")], f"train.py:7: {SIZE}: set it with --assume train.py:7=VALUE"),
        ([read("length")], "train.py:7 reads a length, which is 0 here: set it with --assume train.py:7=VALUE"),
        (
            [read("length", via="package/model.py:3")],
            "train.py:7 (package/model.py:3) reads a length, which is 0 here: set it with --assume package/model.py:3=VALUE",
        ),
        ([read("length", file=None, line=None)], "the backward pass reads a length, which is 0 here"),
        ([read("shape", file=None, line=None)], "the backward pass: the size of the result of item depends on data"),
    ],
)
def test_a_size_that_depends_on_data_makes_the_answer_untrustworthy(judged, reads, reason):
    verdict = judged(10_000, *reads)
    assert (verdict.answer, verdict.exit_code, verdict.reasons) == ("not trustworthy", 5, [reason])


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"end": "failed"}, "the command failed with status 0; what it printed says why"),
        ({"steps": 0}, NO_STEP),
        ({"end": "late", "steps": 1}, "1 of 3 steps had ended when the time was over (--timeout)"),
        ({"end": "waits", "waits_at": "train.py:9"}, "train.py:9 waits in a loop for a value that is not computed"),
    ],
)
def test_a_program_that_does_not_train_gives_no_answer(judged, others, reason):
    assert judged(10_000, **others).reasons == [reason]


def test_a_missing_step_may_be_caused_by_a_value(judged):
    cause = "; a value that does not exist may be the cause (--assume sets values)"
    assert judged(10_000, read("used_number", assumed="0"), steps=0).reasons == [NO_STEP + cause]
    assert judged(10_000, read("number", assumed="0"), steps=0).reasons == [NO_STEP]


@pytest.mark.parametrize("others", [{"end": "late", "steps": 1}, {"end": "waits", "waits_at": "train.py:9"}])
def test_a_long_loop_may_run_over_every_selected_element(judged, others):
    mask, few = read("largest", assumed="every element"), read("largest", line=8, assumed="one element")
    others_file = read("largest", assumed="every element", file="/home/me/loss.py")
    hint = "; if it loops over the elements selected at train.py:7: --assume train.py:7=NUMBER"
    assert judged(10_000, few, others_file, mask, **others).reasons[0].endswith(hint)
    assert "--assume" not in judged(10_000, few, **others).reasons[0]


def test_of_several_selections_the_one_before_the_loop_may_be_its_cause(judged):
    lines = [read("largest", line=line, assumed="every element") for line in (5, 8, 12)]
    reason = judged(10_000, *lines, end="waits", waits_at="train.py:9").reasons[0]
    assert reason.endswith("--assume train.py:8=NUMBER")


def test_what_is_assumed_is_named_in_the_first_line(judged):
    condition = read("branch", expression="mask.any()")
    number, used = read("number", line=10, assumed="0"), read("used_number", line=9, assumed="0")
    verdict = judged(10_000, condition, used, number)
    found = report.answer(verdict, CARD, PLAN, "2.13.0")
    assert found["assumptions"] == ["`mask.any()` at train.py:7 is taken as True", "train.py:9 reads 0"]
    assumed = "; assumed that `mask.any()` at train.py:7 is taken as True (and 1 more, below)"
    assert report.headline(found).endswith(assumed)


def test_each_condition_of_a_line_is_assumed(judged):
    first, second = read("branch", expression="a.any()"), read("branch", expression="b.any()", assumed="False")
    assert judged(10_000, first, second, first).assumptions == [
        "`a.any()` at train.py:7 is taken as True",
        "`b.any()` at train.py:7 is taken as False",
    ]


@pytest.mark.parametrize("kind", ["number", "check", "copy", "print"])
def test_what_decides_nothing_is_not_in_the_first_line(judged, kind):
    found = report.answer(judged(10_000, read(kind)), CARD, PLAN, "2.13.0")
    assert report.headline(found) == "fits on NVIDIA L4 (22.0 GiB) in 3 steps: at least 11.3 GiB are left"


def test_an_upper_bound_that_fits_is_an_answer(judged):
    verdict = judged(10_000, read("largest", assumed="every element"))
    assert (verdict.answer, verdict.assumptions) == ("fits", ["train.py:7 selects every element (an upper bound)"])


@pytest.mark.parametrize("needed_mib", [30_000, CARD_MIB - 600])
def test_an_upper_bound_that_does_not_fit_is_none(judged, needed_mib):
    verdict = judged(needed_mib, read("largest", assumed="every element"))
    assert verdict.answer == "not trustworthy"
    assert "may fit if fewer are" in verdict.reasons[0]


def selected(line: int = 7, assumed: str = "every element", operation: str = "nonzero", **others: Any) -> Read:
    return read("largest", line=line, assumed=assumed, operation=operation, **others)


@pytest.fixture
def compared(monkeypatch, judged):
    """``compared(needed MiB, reads...)``: the verdict if a training of 30,000 MiB needs that much with one element each."""

    def compare(fewest_mib: int, *reads: Read, in_fewest: Sequence[Read] = (), end: str = "ended") -> Verdict:
        def train(plan: Plan, card: Any, total_bytes: int, context_bytes: int) -> Trial:
            assert plan.selects_fewest and total_bytes == LARGE_BYTES
            few = [selected(one.line, "one element") for one in reads]
            one = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=0, reads=[*few, *in_fewest])
            run: Any = {"peak_allocated_bytes": fewest_mib * MIB, "peak_reserved_bytes": fewest_mib * MIB}
            return trial(reports=[one], run=run, end=end)

        everything = judged(30_001, *reads)
        monkeypatch.setattr(dryrun, "train", train)
        return dryrun.with_fewest_elements(PLAN, CARD, everything)

    return compare


HINT = "if train.py:7 distributes rows to experts, --assume train.py:7=balanced gives one figure"


@pytest.mark.parametrize(
    ("reads", "where", "hints"),
    [
        ([selected()], "train.py:7", [HINT]),
        ([selected(), selected(9)], "each mask", []),
        ([selected(operation="coalesce")], "train.py:7", []),
        ([selected(via="package/experts.py:3")], "train.py:7 (package/experts.py:3)", []),
    ],
)
def test_an_upper_bound_that_does_not_fit_is_compared_with_one_element_each(compared, reads, where, hints):
    verdict = compared(2_000, *reads)
    why = f"its tensors need 29.3 GiB if every element is selected at {where}, and 1.95 GiB if one is"
    assert (verdict.answer, verdict.reasons) == ("not trustworthy", [why, *hints])
    found = report.answer(verdict, CARD, PLAN, "2.13.0")
    assert (found["peak_allocated_low_bytes"], found["is_upper_bound"]) == (2_000 * MIB, True)
    assert why in report.headline(found)


def test_what_does_not_fit_with_one_element_each_does_not_fit(compared):
    """The first line has the assumptions of that run, and not those of the upper bound."""
    found = report.answer(compared(25_000, selected(), selected(9)), CARD, PLAN, "2.13.0")
    assert (found["peak_allocated_low_bytes"], found["is_upper_bound"]) == (25_000 * MIB, True)
    assert report.headline(found) == (
        "does not fit on NVIDIA L4 (22.0 GiB): its tensors need 24.4 GiB if one element is selected at each mask; "
        "assumed that train.py:7 selects one element (and 1 more, below)"
    )


@pytest.mark.parametrize(
    ("fewest_mib", "others"),
    [(2_000, {"in_fewest": [read("length")]}), (31_000, {}), (25_000, {"end": "out of memory"})],
)
def test_a_run_with_one_element_each_that_cannot_be_compared_changes_nothing(compared, fewest_mib, others):
    verdict = compared(fewest_mib, selected(), **others)
    assert (verdict.answer, verdict.fewest) == ("not trustworthy", None)
    assert verdict.reasons == ["it does not fit if every element is selected at train.py:7, and may fit if fewer are"]


def test_a_run_with_one_element_each_that_fails_changes_nothing(monkeypatch, judged):
    everything = judged(30_000, read("largest", assumed="every element"))
    monkeypatch.setattr(dryrun, "train", lambda *_: trial(end="failed", status=1))
    assert dryrun.with_fewest_elements(PLAN, CARD, everything) is everything
    plain = judged(30_000)
    monkeypatch.setattr(dryrun, "train", lambda *_: pytest.fail("its figures are no upper bound"))
    assert dryrun.with_fewest_elements(PLAN, CARD, plain) is plain


@pytest.mark.parametrize(
    "others", [{"cudnn_plans": 8}, {"sparse_products": 1}, {"unstepped": ["Adam"]}, {"short_histories": ["L-BFGS"]}]
)
def test_peaks_are_no_upper_bound_if_something_is_left_out(others):
    run: Any = {"peak_allocated_bytes": 5 * MIB, "peak_reserved_bytes": 6 * MIB, "peak_step": 1, "peak_phase": ""}
    run |= {"peak_categories": None, "ranks": []}

    def most(**others: Any) -> str:
        known = {"rank": 0, "world_size": 1, "steps": 3, "cudnn_plans": 0, "reads": [read("largest")]}
        done = trial(reports=[ProcessReport(**known | others)], run=run)
        found = report.answer(verdict("fits", done, [done], CARD), CARD, PLAN, "2.13.0")
        return dict(report._rows(found, server_stopped=False))["peak allocated"]

    assert most() == "at most 5.00 MiB in step 1"
    assert most(**others) == "5.00 MiB in step 1"


def test_of_many_reads_the_first_lines_are_printed(judged):
    """All of them are in the JSON."""
    plain: Any = {"peak_step": None, "peak_phase": None, "peak_categories": None, "page": None}
    for reads, last in ((5, "train.py:5: number, 2 times"), (9, "5 more lines (--json)")):
        answer = report.answer(
            judged(10_000, *(read("number", line=1 + at) for at in range(reads))), CARD, PLAN, "2.13.0"
        )
        texts = [text for _, text in report._rows(answer | plain, server_stopped=False)]
        assert (len(answer["reads"]), len(texts), texts[-1]) == (reads, 5, last)
    many = report.answer(judged(10_000, *(read("branch", line=1 + at) for at in range(20))), CARD, PLAN, "2.13.0")
    texts = [text for _, text in report._rows(many | plain, server_stopped=False)]
    assert (len(many["assumptions"]), len(texts), texts[-1]) == (20, 12, "9 more lines (--json)")


def test_unknown_categories_of_the_peak_are_named_with_their_memory():
    """In an evaluation, only the memory of the model and the optimizer is known."""
    known = {"parameters": MIB, "gradients": None, "optimizer": 2 * MIB, "buffers": 0, "activations": None}
    assert list(report._composition(known, 9 * MIB)) == [
        "optimizer state 2.00 MiB",
        "parameters 1.00 MiB",
        "unknown 6.00 MiB (gradients, activations, temporaries)",
    ]
    assert list(report._composition({"parameters": MIB, "gradients": 0}, 9 * MIB)) == ["parameters 1.00 MiB"]


def test_how_to_start_the_server_is_said_if_it_has_stopped(judged):
    page = "http://127.0.0.1:9000/runs/a"
    plain: Any = {"peak_step": None, "peak_phase": None, "peak_categories": None, "page": page}
    found = report.answer(judged(10_000), CARD, PLAN, "2.13.0") | plain
    assert dict(report._rows(found, server_stopped=False))["run"] == page
    hint = " (start the server first: vramscope server --port 9000)"
    assert dict(report._rows(found, server_stopped=True))["run"] == page + hint


def test_with_convolutions_what_is_left_is_for_their_workspaces(judged):
    found = report.answer(judged(10_000), CARD, PLAN, "2.13.0") | {"cudnn_operations": 5}
    assert (
        report.headline(found)
        == "fits on NVIDIA L4 (22.0 GiB) in 3 steps: 11.3 GiB are left for the workspaces of cuDNN"
    )


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ("python train.py", 1),
        ("torchrun --nproc-per-node 4 train.py", 4),
        ("torchrun --nproc_per_node=2 train.py", 2),
        ("torchrun --nproc-per-node gpu train.py", 1),
        ("accelerate launch --num_processes 3 train.py", 3),
    ],
)
def test_each_process_has_a_device(words, devices):
    assert Plan(words.split(), [], "", 3, 60).devices == devices


@pytest.mark.parametrize(
    ("needed_mib", "answers"),
    [
        (10_000, {"t4": "fits", "l4": "fits", "4090": "fits"}),
        (22_000, {"t4": "does not fit", "l4": "too close to say", "4090": "fits"}),
    ],
)
def test_several_cards_are_compared_with_one_run_for_each_capability(monkeypatch, needed_mib, answers):
    ran = []

    def train(plan: Plan, card: Any, total_bytes: int, context_bytes: int) -> Trial:
        ran.append((card.capability, total_bytes))
        one = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=0, reads=[])
        run: Any = {"peak_allocated_bytes": needed_mib * MIB - 300 * MIB, "peak_reserved_bytes": needed_mib * MIB}
        return Trial(total_bytes, context_bytes, 3, "a" * 16, 0, "ended", [one], run)

    monkeypatch.setattr(several_cards, "train", train)
    rows = several_cards.judge_all(PLAN, [card_named(word) for word in answers])
    assert {one.card.key: one.verdict.answer for one in rows} == answers
    assert ran == [(75, LARGE_BYTES), (89, LARGE_BYTES)]
    assert several_cards.exit_code(rows) == 0


def trial(**others: Any) -> Trial:
    one = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=0, reads=[], unstepped=["Adam"])
    run: Any = {"peak_allocated_bytes": 5 * MIB, "peak_reserved_bytes": 6 * MIB}
    values = {"total_bytes": CARD.total_bytes, "context_bytes": 0, "asked": 3, "run_id": "a" * 16, "status": 0, "end": "ended",
              "reports": [one], "run": run}  # fmt: skip
    return Trial(**values | others)


@pytest.mark.parametrize(
    ("others", "fault"),
    [
        ({"run": None}, "the server did not keep the run, so that its peaks are not known; it may have ended before"),
        (
            {"run": {"peak_allocated_bytes": None}},
            "the script used no memory of the GPU: check which device it chooses",
        ),
        ({"run": {"peak_allocated_bytes": 0}}, "the script used no memory of the GPU: check which device it chooses"),
        (
            {"processes": 2},
            "2 processes trained without ranks, and the figures are those of one of them: give the command of one training",
        ),
    ],
)
def test_figures_of_something_else_are_not_trusted(others, fault):
    assert faults(trial(**others)) == [fault]


def test_an_optimizer_that_has_not_stepped_is_an_assumption():
    assert assumptions(trial()) == ["Adam takes its first step later, and its state is not in the peaks"]


@pytest.mark.parametrize(("steps", "said"), [(3, ", and 3 steps ended"), (1, ", and 1 step ended")])
def test_a_caught_error_does_not_fit(monkeypatch, steps, said):
    """The script halves its batch and goes on: that is not what was asked for."""
    ends = iter(["out of memory", "ended", "out of memory"])
    report = ProcessReport(rank=0, world_size=1, steps=steps, cudnn_plans=0, reads=[], unstepped=[])
    monkeypatch.setattr(dryrun, "train", lambda *_: trial(end=next(ends), reports=[report]))
    verdict = dryrun.judge(PLAN, CARD)
    assert verdict.answer == "does not fit"
    assert verdict.reasons == [f"it ran out of memory; the script caught the error and went on{said}"]


def test_a_need_that_grows_with_the_card_is_not_known(monkeypatch):
    monkeypatch.setattr(dryrun, "train", lambda *_: trial(end="out of memory", status=1))
    verdict = dryrun.judge(PLAN, CARD)
    assert verdict.reasons == ["it ran out of memory on a card of 1 TiB, too, so that its need is not known"]
    assert verdict.trial.total_bytes == CARD.total_bytes


def failed(*reads: Read, status: int = 1, error: str | None = None) -> str:
    one = ProcessReport(rank=0, world_size=1, steps=0, error=error, cudnn_plans=0, reads=list(reads))
    return faults(trial(end="failed", status=status, reports=[one]))[0]


def test_a_failure_is_named_with_what_to_do():
    assert failed(error="ValueError: bad size") == "the script failed with ValueError: bad size"
    assert failed(read("number"), error="ValueError: bad size") == "the script failed with ValueError: bad size"
    assert failed(read("used_number"), error="ValueError: bad size") == (
        "the script failed with ValueError: bad size; a value that does not exist may be the cause (--assume sets values)"
    )
    assert failed() == "the command failed with status 1; what it printed says why"
    assert faults(trial(end="failed", status=1, reports=[], run=None)) == [
        "the command failed with status 1; what it printed says why; nothing was measured"
    ]
    assert failed(status=-35) == "the command was killed by signal 35"
    assert failed(status=-9) == "the command was killed by SIGKILL; host memory may be too small"
