"""Advice rules on real traces to which they apply and do not apply, and promised against measured savings."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramscope_server.analysis.advice.all_rules import RULES, advise
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import batch, checkpointing
from vramscope_server.analysis.whatif.sweep import sweep

# The first test waits for twenty trainings.
pytestmark = [pytest.mark.xdist_group("anatomy"), pytest.mark.timeout(600)]


SAID: dict[int, dict[str, Advice]] = {}


def output_of(one: Any) -> dict[str, Advice]:
    """Advice on a training by rule, computed once."""
    if id(one) not in SAID:
        SAID[id(one)] = {advice.rule: advice for advice in advise(StepFacts(one.trace, sweep=sweep(one.trace)))}
    return SAID[id(one)]


@pytest.mark.parametrize(
    ("rule", "at", "remedied", "tolerance"),
    [
        ("checkpointing", "gpt2", "gpt2_checkpointed", 0.01),
        ("checkpointing", "t5", "t5_checkpointed", 0.01),
        ("foreach", "wide", "wide_loop", 0.001),
        ("late_clear", "zeros", "early_clear", 0.01),
        ("evaluation", "evaluation", "evaluation_no_grad", 0.001),
    ],
)
def test_remedy_saves_the_promised_bytes(observed, rule, at, remedied, tolerance) -> None:
    """The error is a share of the peak."""
    before, after = observed[at], observed[remedied]
    promised = output_of(before)[rule].saves_bytes
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert measured > 0
    assert abs(promised - measured) <= tolerance * before.peak_allocated_bytes
    assert rule not in output_of(after), "and it has nothing more to say then"


@pytest.mark.parametrize(("model", "head_gradient"), [("gpt2", 0), ("gpt2_half", 50257 * 768 * 2)])
def test_chunked_loss_saves_most_of_the_heads_bytes(observed, model: str, head_gradient: int) -> None:
    """Under autocast the head's gradient of a chunk has 16 instead of 32 bits, so the saving is larger by half of it."""
    before, after = observed[model], observed[f"{model}_chunked"]
    advice = output_of(before)["loss_head"]
    assert advice.module == "lm_head" and advice.evidence["at_most"]
    assert advice.file is not None and advice.file.endswith("known_trainings.py"), "your own line, not the library's"
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert 0.6 * advice.saves_bytes < measured <= advice.saves_bytes + head_gradient
    assert "loss_head" not in output_of(after)
    assert "loss_head" not in output_of(observed["wide_autocast"]), "blocks of one size, but no log-softmax"


@pytest.mark.parametrize("name", ["gpt2.snapshot", "gpt2.snapshot_with_cpp"])
def test_pytorch_snapshot_gets_advice_without_modules(observed, name: str) -> None:
    """The numbers equal those of the agent's recording of the same training."""
    seen, known = output_of(observed[name]), output_of(observed["gpt2"])
    assert seen["loss_head"].saves_bytes == known["loss_head"].saves_bytes
    assert seen["loss_head"].module is None and known["loss_head"].module == "lm_head"
    assert "checkpointing" in known and "checkpointing" not in seen


def test_larger_batch_needs_the_predicted_bytes(observed) -> None:
    """The batch that fits fills the device, except for fragmentation."""
    facts = StepFacts(observed["gpt2"].trace, techniques=[{"kind": "batch", "detail": {"batch_size": 4}}])
    goes, measured = batch.scaling_bytes(facts), observed["gpt2_more_rows"].peak_allocated_bytes
    assert abs(batch.peak_at(facts, goes, 3) - measured) <= 0.01 * measured
    assert batch.peak_at(facts, goes, 1) == facts.peak_bytes
    advice = {one.rule: one for one in advise(facts)}["batch"]
    assert advice.saves_bytes is None
    assert advice.evidence["largest_batch_size"] == 4 * batch.FURTHEST, "the card has room for more than was computed"
    assert advice.evidence["goes_with_batch_bytes"] + advice.evidence["stays_bytes"] == facts.peak_bytes
    assert "batch" not in output_of(observed["gpt2"]), "of how many rows it is, is not known"
    small = StepFacts(
        replace(observed["gpt2"].trace, device_total_bytes=int(facts.peak_bytes * 1.1), device_free_bytes=None)
    )
    assert "batch" not in {one.rule for one in advise(replace(small, techniques=facts.techniques))}, "it is full"


def test_pairwise_loss_scales_with_the_square_of_rows(observed) -> None:
    """The result is the smaller of both: a pairwise loss, and a layer as wide as the batch."""
    seen, rows = observed["contrastive"], 2048
    measured = observed["contrastive_more_rows"].peak_allocated_bytes
    facts = StepFacts(seen.trace, techniques=[{"kind": "batch", "detail": {"batch_size": rows}}])
    goes, pairs = batch.scaling_bytes(facts), batch.pair_bytes(facts, rows)
    first, last = facts.span
    step, scaled, squares = facts.allocated[first + 1 : last + 2], *(one[first + 1 : last + 2] for one in (goes, pairs))
    fits = batch.times_with_pairs(measured, step, scaled, squares)
    assert fits == pytest.approx(3, rel=0.01), "into what three times the rows took, three times the rows fit"
    assert batch.peak_at(facts, goes, 3) < 0.6 * measured, "which a line would not have told"
    card = replace(seen.trace, device_total_bytes=int(measured * 1.06), device_free_bytes=None)
    fields = {one.rule: one for one in advise(replace(facts, recorded=card))}["batch"]
    assert fields.evidence["largest_batch_size"] == pytest.approx(3 * rows, rel=0.05)
    assert "per pair of rows" in fields.sentence
    views = {"batch_size": rows // 2, "input_rows": rows}
    twice = replace(facts, recorded=card, techniques=[{"kind": "batch", "detail": views}])
    assert {one.rule: one for one in advise(twice)}["batch"] == fields, "two views of each sample: rows are the model's"
    plain = StepFacts(observed["gpt2"].trace, techniques=[{"kind": "batch", "detail": {"batch_size": 4}}])
    assert not batch.pair_bytes(plain, 4).any()


def test_single_layer_is_not_checkpointed(observed) -> None:
    """Its input and output are all that it saves."""
    assert "checkpointing" not in output_of(observed["contrastive"])


def test_eight_bit_state_is_calculated_per_tensor(observed) -> None:
    advice = output_of(observed["wide"])["optimizer_state"]
    matrix, vector = 1024 * 1024, 1024
    eight_bit = matrix + 4 * matrix // 256
    assert advice.evidence["kept_as_they_are"] == 32 * 2, "two states of each bias"
    assert advice.evidence["state_bytes"] == 32 * 2 * 4 * (matrix + vector)
    assert advice.evidence["eight_bit_bytes"] == 32 * 2 * (eight_bit + 4 * vector)
    assert "optimizer_state" not in output_of(observed["zeros"]), "plain SGD has none"
    moments = output_of(observed["sam"])["optimizer_state"].evidence
    assert moments["tensors"] == 2 * 26, "the copies of its weights are no moments"
    for name, foreach in (("wide_loop", False), ("wide", True)):
        before, after = observed[name], observed["wide_eight_bit"]
        measured = before.peak_allocated_bytes - after.peak_allocated_bytes
        promised = output_of(before)["optimizer_state"]
        assert (
            promised.evidence["foreach_too"]
            == foreach
            == ("no temporary copies of all parameters" in promised.sentence)
        )
        assert abs(promised.saves_bytes - measured) <= 0.02 * before.peak_allocated_bytes
    known = StepFacts(observed["wide"].trace, techniques=[{"kind": "optimizer_8bit"}])
    assert "optimizer_state" not in {one.rule for one in advise(known)}


def test_autocast_copies_are_found_by_module(observed) -> None:
    advice = output_of(observed["wide_autocast"])["weight_copies"]
    assert advice.evidence["copies"] == advice.evidence["modules"] - 1 == 31, (
        "the first layer's input needs no gradient"
    )
    assert advice.evidence["copies_bytes"] == 31 * 2 * 1024 * 1024
    before, after = observed["wide_autocast"], observed["wide_bfloat16"]
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert 0.6 * measured < advice.saves_bytes <= measured, "it is a least: the loss gets smaller, too"
    for name in ("gpt2", "gan", "reentrant", "evaluation_no_grad"):
        assert "weight_copies" not in output_of(observed[name])
    for seen, each in (("optimizer", False), ("mixed_precision", True)):
        known = StepFacts(before.trace, techniques=[{"kind": seen}])
        assert ("weight_copies" in {one.rule for one in advise(known)}) is each, (
            "of another precision it is something else"
        )


def test_autocasts_cache_is_promised_what_a_run_without_it_saves(observed) -> None:
    before, after = observed["rollouts"], observed["rollouts_without_cache"]
    advice = output_of(before)["autocast_cache"]
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert advice.saves_bytes == pytest.approx(measured, rel=0.05)
    for name in ("gpt2_autocast", "wide_autocast", "evaluation", "evaluation_no_grad"):
        assert "autocast_cache" not in output_of(observed[name])


def test_weight_copies_name_their_owner(observed) -> None:
    before, after = observed["best_state"], observed["best_state_on_the_host"]
    advice = output_of(before)["kept_copies"]
    assert "best" in advice.sentence and "another model" not in advice.sentence
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert measured - (2 << 20) <= advice.saves_bytes <= measured, (
        "the state dict has a mask of 2 MiB, too, which is no weight"
    )
    average = output_of(observed["ema"])["kept_copies"]
    assert "(AveragedModel, another model)" in average.sentence
    assert average.evidence["held_bytes"] == average.evidence["trained_bytes"]
    for name in ("best_state_on_the_host", "sam", "lora", "gan", "accumulated"):
        assert "kept_copies" not in output_of(observed[name]), (
            "an optimizer's, what is frozen, another network's, what is stepped with"
        )


def test_advice_on_allocator_settings_saves_the_promised_device_memory(observed) -> None:
    """The device of the snapshot is unknown, so that 2 % of what the run needs are worth a change."""
    before, after = observed["gpt2"], observed["gpt2.expandable"]
    advice = output_of(observed["gpt2.snapshot"])["fragmentation"]
    assert (advice.evidence["of"], advice.evidence["conf"]) == ("device", "expandable_segments:True")
    measured = before.peak_reserved_bytes - after.peak_reserved_bytes
    assert abs(advice.saves_bytes - measured) <= 0.02 * before.peak_reserved_bytes


def test_logits_are_found_by_what_the_loss_makes_of_them(observed) -> None:
    """No function of torch.nn.functional is in the stack of ``logits.log_softmax(-1)``."""
    before, after = observed["policy"], observed["policy_of_the_completion"]
    advice = output_of(before)["loss_head"]
    assert "The output of head and what the loss computes from it, 4 blocks of" in advice.sentence
    measured = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert 0.5 * advice.saves_bytes < measured <= advice.saves_bytes
    for name in ("wide", "transformer", "ema", "accumulated", "zeros", "contrastive"):
        assert name not in observed or "loss_head" not in output_of(observed[name])


SPEAKS_OF = {
    "loss_head": ("gpt2", "gpt2_chunked"),
    "checkpointing": ("gpt2", "gpt2_checkpointed"),
    "foreach": ("wide", "wide_loop"),
    "late_clear": ("zeros", "early_clear"),
    "evaluation": ("evaluation", "evaluation_no_grad"),
    "optimizer_state": ("wide", "zeros"),
    "weight_copies": ("wide_autocast", "gpt2"),
    "autocast_cache": ("rollouts", "rollouts_without_cache"),
    "kept_copies": ("best_state", "best_state_on_the_host"),
    "fragmentation": ("gpt2.snapshot", "gpt2"),
}
"""Rule -> a training with this advice, and one without. Rules that need only a recording."""
IN_OTHER_TESTS = {
    "batch": ("anatomy/test_advice.py", "test_larger_batch_needs_the_predicted_bytes"),
    "evaluation_batch": (
        "journey/test_from_training_to_pixel.py",
        "test_a_peak_in_an_evaluation_is_told_with_the_batch_that_would_be_as_high_as_the_training",
    ),
    "retries": (
        "gpu/test_time_advice.py",
        "test_memory_that_is_given_back_for_a_request_costs_at_least_the_time_between",
        "test_a_training_with_room_and_one_that_empties_the_cache_itself_are_no_retries",
    ),
    "waits_for_data": (
        "gpu/test_time_advice.py",
        "test_a_loop_with_a_slow_loader_is_told_how_long_it_waits_and_one_with_a_fast_loader_is_not",
    ),
}
"""Rule -> tests with and without this advice. Rules that need a profile or more of the run."""


def test_every_rule_has_a_positive_and_a_negative_case() -> None:
    """A new rule without both cases fails here."""
    names = [rule.__module__.rsplit(".", 1)[-1] for rule in RULES]
    assert sorted(names) == sorted([*SPEAKS_OF, *IN_OTHER_TESTS])
    for rule, (file, *tests) in IN_OTHER_TESTS.items():
        tree = ast.parse((Path(__file__).parents[1] / file).read_text())
        found = {
            one.name: ast.unparse(one) for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in tests
        }
        assert sorted(found) == sorted(tests), rule
        assert rule in "".join(found.values()), "they are about another rule"


@pytest.mark.parametrize("rule", SPEAKS_OF)
def test_rule_applies_to_its_training_only(observed, rule: str) -> None:
    speaks, silent = SPEAKS_OF[rule]
    assert rule in output_of(observed[speaks])
    assert rule not in output_of(observed[silent])


def test_sentence_has_its_number_and_source(observed) -> None:
    from vramscope_server.analysis.number_format import amount

    for one in observed.values():
        values = list(output_of(one).values())
        assert [advice.saves_bytes or 0 for advice in values] == sorted(
            [advice.saves_bytes or 0 for advice in values], reverse=True
        )
        for advice in values:
            if advice.saves_bytes is not None:
                assert amount(advice.saves_bytes) in advice.sentence
                assert advice.saves_bytes > 0
            assert advice.source.startswith("https://") or "/" not in advice.source, "a link, or a reason in words"


def test_nested_blocks_are_one_set_per_level() -> None:
    """Each stage of a ConvNeXt has its own layers: checkpointing all layers and checkpointing the stages are two sets."""
    names = [f"stages.{stage}.layers.{layer}.dense" for stage in range(2) for layer in range(2)]
    modules = ["stages", "stages.0", "stages.1", *names, "head.0"]
    result = checkpointing.siblings(modules)
    assert result == {
        "stages.": ["stages.0", "stages.1"],
        "stages.*.layers.": ["stages.0.layers.0", "stages.0.layers.1", "stages.1.layers.0", "stages.1.layers.1"],
    }
