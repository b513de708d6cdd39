"""Predictions from a recording of a training, against the same training with other plans."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import batch, kept_copies, weight_copies
from vramscope_server.analysis.ownership.amounts import known_peak_event, peak_event
from vramscope_server.analysis.techniques import changes as techniques
from vramscope_server.analysis.techniques.memory_curve import recorded_curve
from vramscope_server.analysis.techniques.plan import TrainingPlan, all_plans, parse_plan
from vramscope_server.analysis.techniques.predict import WORTH_FRACTION, Predictions, predict
from vramscope_server.analysis.trace.types import Events

pytestmark = [pytest.mark.xdist_group("anatomy"), pytest.mark.timeout(600)]

RECIPES = {
    "": TrainingPlan(),
    "+4": TrainingPlan(4),
    "+checkpointing": TrainingPlan(1, True),
    "+8bit": TrainingPlan(optimizer_8bit=True),
    "+4+checkpointing": TrainingPlan(4, True),
    "+4+checkpointing+8bit": TrainingPlan(4, True, True),
}
TOLD: dict[str, Predictions] = {}


def told_of(observed: dict[str, Any], name: str) -> Predictions:
    """Computed once."""
    if name not in TOLD:
        rows = {"kind": "batch", "detail": {"batch_size": 32}}
        TOLD[name] = predict(StepFacts(observed[f"{name}+as"].trace, techniques=[rows]))
    return TOLD[name]


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        *[
            ("roberta", recipe)
            for recipe in ("+4", "+checkpointing", "+8bit", "+4+checkpointing", "+4+checkpointing+8bit")
        ],
        *[("encoder", recipe) for recipe in ("+8bit", "+4+checkpointing+8bit")],
        ("tied", "+4"),
        *[("vit", recipe) for recipe in ("+4", "+checkpointing")],
    ],
)
def test_predicted_peak_matches_the_measured_one(observed, model: str, recipe: str) -> None:
    """The error is within 1 % of the recorded peak."""
    rows = {row.plan: row for row in told_of(observed, model).rows}
    before, after = (observed[f"{model}{words}"].peak_allocated_bytes for words in ("+as", recipe))
    assert after < 0.98 * before
    assert abs(rows[RECIPES[recipe]].peak_allocated_bytes - after) <= 0.01 * before


def test_autocast_copies_do_not_scale_with_the_batch(observed) -> None:
    """With fewer or more rows: three times the rows fit into their measured memory, also with checkpointing."""
    before = observed["roberta+bf16"]
    rows = [{"kind": "batch", "detail": {"batch_size": 100}}, {"kind": "mixed_precision", "detail": {}}]
    facts = StepFacts(before.trace, techniques=rows)
    peak_allocated_bytes = predict(facts, [TrainingPlan(4)]).rows[1].peak_allocated_bytes
    assert (
        abs(peak_allocated_bytes - observed["roberta+bf16+4"].peak_allocated_bytes)
        <= 0.01 * before.peak_allocated_bytes
    )
    copies = weight_copies.allocations_of_copies(facts)
    by_module = {facts.module_of(int(life)) for life in np.flatnonzero(copies)}
    assert "lm_head.decoder" in by_module, "its weight bears the name of the embedding that it shares it with"
    assert not any("dropout" in str(module) for module in by_module), "what is as large by chance"
    result = recorded_curve(facts)
    blocks = techniques.checkpointed_blocks(facts, result)
    assert blocks is not None
    for course, run in ((result, "x3"), (result.with_change(blocks), "checkpointing+x3")):
        assert course.rows_that_fit(100, observed[f"roberta+bf16+{run}"].peak_allocated_bytes) == pytest.approx(
            300, abs=6
        )


@pytest.mark.parametrize(
    ("way", "run"),
    [(TrainingPlan(no_foreach=True), "wide_loop"), (TrainingPlan(optimizer_8bit=True), "wide_eight_bit")],
)
def test_predicted_optimizer_peak_matches_the_measured_one(observed, way: TrainingPlan, run: str) -> None:
    """The prediction includes temporaries of one parameter with 8-bit state too, which needs none: 8 MiB of 705."""
    before = observed["wide"]
    assert before.peak_allocated_bytes > 1.1 * observed[run].peak_allocated_bytes
    peak_allocated_bytes = predict(StepFacts(before.trace), [way]).rows[1].peak_allocated_bytes
    assert abs(peak_allocated_bytes - observed[run].peak_allocated_bytes) <= 0.015 * before.peak_allocated_bytes


def test_recorded_plan_is_first_and_each_technique_helps(observed) -> None:
    reported = told_of(observed, "roberta")
    peaks = {row.plan: row.peak_allocated_bytes or 0 for row in reported.rows}
    assert next(iter(peaks)) == TrainingPlan()
    assert list(peaks.values()) == sorted(peaks.values(), reverse=True)
    least = WORTH_FRACTION * peaks[TrainingPlan()]
    assert all(peaks[way] <= peaks[one] - least for way in peaks for one in way.simpler() if one in peaks)
    assert TrainingPlan(no_foreach=True) not in peaks, "the peak is in the backward"
    assert any("encoder.layer.*" in note for note in reported.notes)


def test_requested_plans_keep_their_order_even_if_useless(observed) -> None:
    asked = [TrainingPlan(no_foreach=True), TrainingPlan(3), TrainingPlan(1, True)]
    rows = predict(StepFacts(observed["roberta+as"].trace), asked).rows
    assert [row.plan for row in rows] == [TrainingPlan(), *asked]
    assert rows[1].peak_allocated_bytes == rows[0].peak_allocated_bytes
    between = [
        predict(StepFacts(observed["roberta+as"].trace), [TrainingPlan(parts)]).rows[1].peak_allocated_bytes or 0
        for parts in (2, 3, 4)
    ]
    assert between == sorted(between, reverse=True)
    again = predict(StepFacts(observed["gpt2_checkpointed"].trace), [TrainingPlan(2, True)]).rows[1]
    assert again.peak_allocated_bytes is None and again.rows_that_fit is None


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("gradient_checkpointing", TrainingPlan(1, True)),
        ("gradient_accumulation:4+optimizer_8bit", TrainingPlan(4, False, True)),
        ("gradient_accumulation:16 no_foreach", TrainingPlan(16, no_foreach=True)),
    ],
)
def test_plan_text_round_trips(words: str, way: TrainingPlan) -> None:
    assert parse_plan(words) == way
    assert parse_plan(str(way)) == way
    assert str(TrainingPlan()) == "none"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("checkpointing", "unknown technique 'checkpointing'; known: gradient_accumulation, gradient_checkpointing"),
        ("", "unknown technique ''"),
        ("gradient_accumulation", "needs a number"),
        ("gradient_accumulation:1", "at least 2"),
        ("gradient_accumulation:99999999999999999999", "at least 2"),
        ("gradient_accumulation:four", "needs a number"),
        ("optimizer_8bit:2", "takes no number"),
        ("no_foreach+no_foreach", "is repeated"),
        ("optimizer_8bit+no_foreach", "remove no_foreach"),
    ],
)
def test_invalid_plan_text_is_refused_with_the_reason(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_plan(words)


def test_rows_that_fit_fill_the_device(observed) -> None:
    """A device with the memory that four micro-batches need fits their rows."""
    trace = observed["roberta+as"].trace
    techniques = [{"kind": "batch", "detail": {"batch_size": 64}}]
    needs = next(
        row for row in predict(StepFacts(trace, techniques=techniques)).rows if row.plan == TrainingPlan(4)
    ).peak_allocated_bytes
    card = replace(trace, device_total_bytes=int(needs * 1.0501), device_free_bytes=None)
    prediction = predict(StepFacts(card, techniques=techniques))
    fits = {row.plan: row.rows_that_fit for row in prediction.rows}
    assert fits[TrainingPlan(4)] == 16
    assert fits[TrainingPlan(8)] == 16, "eight of them have the same room, and gradients as well"
    assert (fits[TrainingPlan()] or 0) > 16, "without gradients in the forward more fit than beside them"
    assert (fits[TrainingPlan(4, True)] or 0) > 16
    assert prediction.furthest_rows == batch.FURTHEST * 64
    assert {row.rows for row in prediction.rows if row.plan.gradient_accumulation == 8} == {8}
    assert {row.rows_that_fit for row in predict(StepFacts(trace)).rows} == {None}, (
        "of how many rows a batch is, is not known"
    )


def test_no_more_micro_batches_than_rows(observed) -> None:
    prediction = predict(
        StepFacts(observed["roberta+as"].trace, techniques=[{"kind": "batch", "detail": {"batch_size": 3}}])
    )
    assert {row.plan.gradient_accumulation for row in prediction.rows} == {1, 2}
    assert {row.rows for row in prediction.rows if row.plan.gradient_accumulation == 2} == {None}, (
        "3 rows are no two equal parts"
    )


def test_techniques_in_use_are_not_predicted(observed) -> None:
    prediction = predict(StepFacts(observed["gpt2_checkpointed"].trace))
    assert not any(row.plan.gradient_checkpointing for row in prediction.rows)
    assert any("already recomputes" in note for note in prediction.notes)
    prediction = predict(
        StepFacts(observed["wide_eight_bit"].trace, techniques=[{"kind": "optimizer_8bit", "detail": {}}])
    )
    assert not any(row.plan.optimizer_8bit for row in prediction.rows)
    assert any("8-bit state: no" in note for note in prediction.notes)


def test_pairwise_loss_has_no_micro_batches(observed) -> None:
    prediction = predict(
        StepFacts(observed["contrastive"].trace, techniques=[{"kind": "batch", "detail": {"batch_size": 2048}}])
    )
    assert {row.plan.gradient_accumulation for row in prediction.rows} == {1}
    assert any("compares samples within a batch" in note for note in prediction.notes)


def test_a_layer_as_wide_as_the_batch_is_no_pairwise_loss(observed) -> None:
    """Sizes alone prove nothing: neither a loss that compares samples, nor copies of the weights."""
    known = observed["as_wide_as_the_batch"]
    facts = StepFacts(known.trace, techniques=[{"kind": "batch", "detail": {"batch_size": 1024}}])
    prediction = predict(facts)
    assert not any("compares samples" in note for note in prediction.notes)
    assert max(row.plan.gradient_accumulation for row in prediction.rows) > 1
    assert kept_copies.advise(facts) is None


def test_unknown_phases_have_no_prediction(observed) -> None:
    trace = observed["roberta+as"].trace
    columns = {name: getattr(trace.events, name) for name in trace.events.__slots__}
    evaluating = replace(
        trace, events=Events(**{**columns, "phase": np.full(len(trace.events), PHASES.index("eval"), np.int8)})
    )
    prediction = predict(StepFacts(evaluating))
    assert prediction.rows == [] and "in an evaluation" in prediction.notes[0]
    empty = replace(trace, events=Events(**{name: column[:0] for name, column in columns.items()}))
    assert predict(StepFacts(empty)).notes == ["This recording has no events."]
    snapshot = predict(StepFacts(observed["gpt2.snapshot"].trace))
    assert any("without recorded modules" in note for note in snapshot.notes)


def test_peak_step_prefers_steps_with_modules(observed) -> None:
    """A step without modules may be a little higher than the last one, which has them: a block with a remainder does that."""
    recorded = observed["vit+as"].trace
    assert known_peak_event(recorded) == peak_event(recorded), "all first steps have modules"
    columns = {name: getattr(recorded.events, name) for name in recorded.events.__slots__}
    last = int(recorded.events.step.max())
    module = np.where(recorded.events.step == last, recorded.events.module, -1)
    trace = replace(recorded, events=Events(**{**columns, "module": module}))
    exact, known = peak_event(trace), known_peak_event(trace)
    assert trace.events.step[exact] < last, "an earlier step is higher"
    assert trace.events.step[known] == last
    facts = StepFacts(trace)
    assert facts.allocated[known + 1] >= (1 - 1 / 256) * facts.allocated[exact + 1]


def test_inapplicable_techniques_have_a_note(observed) -> None:
    """LBFGS has no foreach; an evaluation in the peak does not scale with the batch; several ranks were not measured."""
    prediction = predict(StepFacts(observed["lbfgs"].trace), [TrainingPlan(no_foreach=True)])
    assert prediction.rows[1].peak_allocated_bytes is None
    assert any(
        "forward pass without backward" in note for note in predict(StepFacts(observed["evaluation"].trace)).notes
    )
    ranks = [{"kind": "distributed", "detail": {}}]
    assert any("Several ranks" in note for note in predict(StepFacts(observed["fsdp2"].trace, techniques=ranks)).notes)


def test_all_plans_are_the_distinct_combinations() -> None:
    ways = list(all_plans())
    assert len(ways) == len(set(ways)) == 4 * 2 * 3
    assert not any(way.optimizer_8bit and way.no_foreach for way in ways)
    assert set(TrainingPlan(4, True).simpler()) == {TrainingPlan(1, True), TrainingPlan(2, True), TrainingPlan(4)}
    assert list(TrainingPlan().simpler()) == []
