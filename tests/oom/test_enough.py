"""What is promised of a remedy: only what is known within a few percent, and never room that something keeps filling."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.demand import estimate_of, has_piled_up_state
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.estimate import Basis, Estimate
from vramscope.oom_diagnosis.evidence import facts_of_record
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.window import Layout
from vramscope_server.analysis.oom.remedies import defragment
from vramscope_server.analysis.oom.remedies.defragment import EXPANDABLE
from vramscope_server.analysis.oom.remedies.remedy import Remedy, RemedyContext, Replayed, ReplayFn
from vramscope_server.analysis.oom.saving import saving_words

MIB, GIB = 1 << 20, 1 << 30
BACKWARD = Facts(
    asked_bytes=158 * MIB, total_bytes=2000 * MIB, free_bytes=32 * MIB, reserved_bytes=1490 * MIB, used_bytes=1340 * MIB,
    parameters_bytes=32 * MIB, gradients_bytes=0, optimizer_bytes=0, buffers_bytes=0, trainable_bytes=32 * MIB,
    phase="backward", step=0, batch_size=64, peak_now_bytes=1340 * MIB,
)  # fmt: skip


def record(step: int, **more: Any) -> OomRecord:
    return OomRecord(
        record="1" * 16, seen_by="observer", time_ns=1, rank=0, world_size=1, device=0, asked_bytes=MIB, step=step, stack=[],
        seconds=0.1, **more,
    )  # fmt: skip


def estimate(working: int, error: int, **more: int | bool) -> Estimate:
    return Estimate(100 * MIB, 0, working * MIB, error * MIB, 0, 0, Basis.GRAPH, **more)  # type: ignore[arg-type]


def test_a_saving_of_a_smaller_batch_is_promised_only_where_the_need_is_known() -> None:
    assert estimate(1000, 50).saved_by(0.25) == 750 * MIB
    assert estimate(1000, 51).saved_by(0.25) is None, "extrapolated"
    assert estimate(1000, 0, may_grow=True).saved_by(0.25) is None
    assert replace(estimate(1000, 50), basis=Basis.OTHER_SIZES).saved_by(0.25) is None, "an upper bound"


def test_copies_of_the_update_bound_the_saving_of_a_smaller_batch() -> None:
    """No batch makes them smaller."""
    assert estimate(1000, 0, update_bytes=600 * MIB).saved_by(0.25) == 400 * MIB
    assert estimate(1000, 0, update_bytes=1200 * MIB).saved_by(0.25) == 0


def test_what_was_allocated_when_the_update_began_comes_beside_its_copies() -> None:
    """A search for flat minima keeps its climb of 272 MiB until the update. The step needs 1,634 MiB; 1,528 are available."""
    climbs = replace(
        BACKWARD, asked_bytes=16 * MIB, used_bytes=1506 * MIB, reserved_bytes=1518 * MIB, free_bytes=10 * MIB,
        parameters_bytes=272 * MIB, gradients_bytes=272 * MIB, trainable_bytes=272 * MIB, optimizer_bytes=544 * MIB,
        expected_state_bytes=544 * MIB, phase="optimizer", step=5, update="foreach", optimizer_kind="AdamW",
        peak_now_bytes=1396 * MIB, before_forward_bytes=818 * MIB, before_update_bytes=1362 * MIB,
    )  # fmt: skip
    known, before = estimate_of(climbs), estimate_of(replace(climbs, before_update_bytes=None))
    assert known is not None and before is not None
    assert known.beside_update_bytes == 274 * MIB
    assert known.fits(1528 * MIB) is None
    assert before.fits(1528 * MIB) is True, "nothing shows the climb"
    assert known.high_bytes == int(1634 * MIB * 1.05)
    alone = replace(known, update_bytes=32 * MIB)  # foreach=False
    assert alone.fits(1528 * MIB) is True


def test_what_is_computed_from_the_weights_does_not_shrink_with_the_batch() -> None:
    """Casts of autocast, or float copies of weights in 8 bits."""
    known = estimate(1000, 0, unscaled_bytes=600 * MIB)
    assert known.saved_by(0.25) == 300 * MIB
    high, part = known.high_with(), known.high_with(0.25)
    assert high is not None and part is not None
    assert high - part in range(315 * MIB, 316 * MIB)
    share = known.largest_share(1050 * MIB)
    assert share is not None and 0.749 < share < 0.751
    assert known.largest_share(600 * MIB) is None


@pytest.mark.parametrize(
    ("more", "unscaled"),
    [
        ({}, 0),
        ({"weight_sized_bytes": 400 * MIB}, 400 * MIB),
        ({"weight_sized_bytes": 400 * MIB, "phase": "optimizer"}, 0),
        ({"weight_sized_bytes": 9000 * MIB}, 1466 * MIB),
    ],
)
def test_blocks_as_large_as_weights_count_as_computed_from_them(more: dict[str, Any], unscaled: int) -> None:
    need = estimate_of(replace(BACKWARD, **more))
    assert need is not None and abs(need.unscaled_bytes - unscaled) <= MIB


def test_a_step_with_fewer_rows_has_its_own_copies_of_the_weights() -> None:
    shape = (640, 4, 84, 84)
    died = replace(
        BACKWARD, phase="forward", step=5, peak_before_bytes=400 * MIB, used_bytes=1200 * MIB, batch_size=640,
        input_shape=shape, input_shape_before=(160, *shape[1:]), asked_bytes=4 * math.prod(shape), weight_sized_bytes=300 * MIB,
    )  # fmt: skip
    need = estimate_of(died)
    assert need is not None and (need.basis, need.unscaled_bytes) == (Basis.MORE_ROWS, 0)


def test_models_that_pile_up_leave_no_device_large_enough() -> None:
    """One model as large as the training one may be a reference. Of two, as of folds, more are expected."""
    for kept, known in ((1, True), (2, False)):
        need = estimate_of(replace(BACKWARD, other_models_bytes=kept * 32 * MIB, kept_models=kept))
        assert need is not None
        assert (need.high_bytes is not None) is known


def test_states_of_optimizers_that_pile_up_leave_no_device_large_enough() -> None:
    """A second optimizer for the same weights may take turns with the first. Of three, as of restarts, more are expected."""
    for optimizers, known in ((1, True), (2, True), (3, False)):
        there = replace(BACKWARD, optimizer_bytes=optimizers * 64 * MIB, expected_state_bytes=64 * MIB)
        died = diagnose(replace(there, used_bytes=1340 * MIB + (optimizers - 1) * 64 * MIB))
        assert died.estimate is not None
        assert (died.estimate.high_bytes is not None) is known
        assert (
            "128 MiB of the state exceed what one optimizer keeps for the same weights." in died.sentence
        ) is not known
    there = replace(BACKWARD, optimizer_bytes=128 * MIB, expected_state_bytes=64 * MIB)
    assert has_piled_up_state(replace(there, phase="optimizer")), "the state of a third one may be made in this update"
    assert not has_piled_up_state(there)
    many = replace(BACKWARD, optimizer_bytes=192 * MIB, expected_state_bytes=None)
    assert many.other_state_bytes == 0, "how much one needs is not known"


def test_the_state_of_weights_that_were_frozen_is_not_of_more_optimizers() -> None:
    """One Adam has trained all weights, and now trains an eighth of them."""
    adam = {"parameters_bytes": 256 * MIB, "trainable_bytes": 32 * MIB, "expected_state_bytes": 64 * MIB}
    one = replace(BACKWARD, optimizer_bytes=512 * MIB, **adam)
    assert one.other_state_bytes == 0 and not has_piled_up_state(one)
    assert replace(one, optimizer_bytes=600 * MIB).other_state_bytes == 88 * MIB


def test_the_first_gradient_of_its_size_may_have_two_more() -> None:
    """The gradient that is computed from it is as large, and the block of another one may not be free in one piece."""
    known = replace(BACKWARD, used_bytes=1480 * MIB)
    usual, begins = estimate_of(known), estimate_of(replace(known, gradients_begin=True))
    assert usual is not None and begins is not None
    assert begins.error_bytes - usual.error_bytes in range(315 * MIB, 317 * MIB)
    assert begins.likely_bytes == usual.likely_bytes


@pytest.mark.parametrize(
    ("node", "begins"),
    [
        ("NllLossBackward0", True),
        ("MeanBackward0", True),
        ("GatherBackward0", True),
        ("MmBackward0", False),
        (None, False),
    ],
)
def test_a_gradient_of_a_smaller_result_begins(node: str | None, begins: bool) -> None:
    assert facts_of_record(record(step=3, node=node)).gradients_begin is begins


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ({}, True),
        ({"peak_before_bytes": 300 * MIB}, False),  # something else needs memory
        ({"asked_bytes": 4 * 640 * 640}, False),  # a number for each pair of rows, which need not be in proportion
        ({"input_shape": (640, 640), "input_shape_before": (160, 640), "asked_bytes": 4 * 640 * 640}, False),
    ],
)
def test_earlier_steps_bound_a_forward_that_begins_by_converting_its_input(more: dict[str, Any], known: bool) -> None:
    """Such as ``frames.float()``: a request of the outermost module comes before its children run."""
    shape = (640, 4, 84, 84)
    died = replace(
        BACKWARD, phase="forward", step=5, progress=None, peak_before_bytes=400 * MIB, used_bytes=1200 * MIB, batch_size=640,
        input_shape=shape, input_shape_before=(160, *shape[1:]), asked_bytes=4 * math.prod(shape),
    )  # fmt: skip
    need = estimate_of(replace(died, **more))
    assert need is not None
    assert (need.high_bytes is not None) is known
    assert (need.basis is Basis.MORE_ROWS) is known


def test_no_model_is_kept_in_the_first_step() -> None:
    """Nothing was trained before it that could be kept. An older agent does not count them."""
    for step, counted, kept in ((0, 2, 0), (1, 2, 2), (1, None, 0)):
        assert facts_of_record(record(step=step, kept_models=counted)).kept_models == kept


def test_the_rest_of_a_pass_is_given_as_an_amount_only_where_it_is_known() -> None:
    """An evaluation keeps no graph: what its rest needs does not follow from its beginning."""
    evaluates = replace(BACKWARD, phase="eval", progress=0.3, used_bytes=1330 * MIB, trainable_bytes=0)
    evaluates = replace(evaluates, reserved_bytes=1300 * MIB, free_bytes=200 * MIB, used_bytes=1290 * MIB)
    sentence = diagnose(evaluates).sentence
    assert "The rest of the pass needs more. How much is not known." in sentence
    assert "would need about" not in sentence


def test_a_part_that_is_recomputed_wants_more_than_this_request() -> None:
    """Within the backward a checkpointed part runs again: its forward goes on after the request."""
    assert diagnose(BACKWARD).kind is CauseKind.FRAGMENTATION
    again = diagnose(replace(BACKWARD, recomputes=True))
    assert again.kind is CauseKind.ACTIVATIONS
    assert again.estimate is not None and again.estimate.high_bytes is None


@pytest.mark.parametrize(("kind", "enough"), [(CauseKind.FRAGMENTATION, True), (CauseKind.LEAK, None)])
def test_no_setting_is_enough_against_a_leak(kind: CauseKind, enough: bool | None) -> None:
    """It would come a few steps later: the leak fills the room that the setting makes."""
    estimate = SimpleNamespace(fits=lambda available: True, low_bytes=0)
    replayed = SimpleNamespace(conf=EXPANDABLE, saves_bytes=MIB, survives=True, exact=True)
    record = SimpleNamespace(torch="2.13.0", hip=None, settings="", layout=None)
    for replays in ([replayed], []):
        context = RemedyContext(BACKWARD, record, estimate, kind, lambda confs, found=replays: found, [])  # type: ignore[misc, arg-type]
        [remedy] = defragment.remedies_for(context)
        assert remedy.enough is enough


@pytest.mark.parametrize(("hole", "enough"), [(15 * MIB, None), (300 * MIB, True)])
def test_holes_smaller_than_a_page_are_not_known_to_be_returned(hole: int, enough: bool | None) -> None:
    """84 clips of 5 MiB had one live block in each 20 MiB: expandable segments ran out of memory as well."""
    count = 1200 * MIB // hole
    column = {
        "segment": range(count), "size_bytes": [hole] * count, "state": [0] * count, "large": [1] * count,
    }  # fmt: skip
    columns = {name: array("q", values).tobytes() for name, values in column.items()}
    record = SimpleNamespace(torch="2.13.0", hip=None, settings="", layout=Layout(segments=columns, blocks=columns))
    facts = replace(BACKWARD, reserved_bytes=1600 * MIB, used_bytes=400 * MIB)
    available = facts.available_bytes
    assert available is not None
    estimate = SimpleNamespace(fits=lambda room: room >= available - 200 * MIB, low_bytes=0)
    context = RemedyContext(facts, record, estimate, CauseKind.FRAGMENTATION, lambda confs: [], [])  # type: ignore[arg-type]
    [remedy] = defragment.remedies_for(context)
    assert remedy.enough is enough


@pytest.mark.parametrize(
    ("phase", "high", "enough"),
    [
        ("backward", None, None),
        ("backward", 1600, None),
        ("backward", 1560, True),
        ("optimizer", None, None),
        ("data", None, True),
    ],
)
def test_a_replay_up_to_the_error_does_not_show_the_rest_of_the_step(
    phase: str, high: int | None, enough: bool | None
) -> None:
    """1,522 MiB are available. Of the rest of the step the bound is known, or nothing."""
    estimate = SimpleNamespace(
        fits=lambda available: None, low_bytes=1500 * MIB, high_bytes=None if high is None else high * MIB
    )
    replayed = SimpleNamespace(conf=EXPANDABLE, saves_bytes=MIB, survives=True, exact=True)
    record = SimpleNamespace(torch="2.13.0", hip=None, settings="", layout=None)
    facts = replace(BACKWARD, phase=phase)
    context = RemedyContext(facts, record, estimate, CauseKind.FRAGMENTATION, lambda confs: [replayed], [])  # type: ignore[arg-type]
    [remedy] = defragment.remedies_for(context)
    assert remedy.enough is enough


@pytest.mark.parametrize(
    ("kind", "saves"), [(CauseKind.FRAGMENTATION, None), (CauseKind.OTHER_PROCESS, 0), (CauseKind.LEAK, 0)]
)
def test_a_setting_that_survives_and_saves_nothing_is_listed_against_fragmentation_only(
    kind: CauseKind, saves: int | None
) -> None:
    """A remedy that is not enough and saves 0 bytes is left out; one whose saving is not known stays."""
    estimate = SimpleNamespace(fits=lambda available: None, low_bytes=1500 * MIB, high_bytes=None)
    replayed = SimpleNamespace(conf="max_split_size_mb:128", saves_bytes=0, survives=True, exact=True)
    record = SimpleNamespace(torch="2.13.0", hip=None, settings="", layout=None)
    context = RemedyContext(BACKWARD, record, estimate, kind, lambda confs: [replayed], [])  # type: ignore[arg-type]
    [remedy] = defragment.remedies_for(context)
    assert (remedy.enough, remedy.saves_bytes) == (None, saves)


@pytest.mark.parametrize(
    ("saves", "enough", "card", "need", "words"),
    [
        (3 * GIB, True, None, 33 * GIB, "3.00 GiB"),
        (None, True, None, 33 * GIB, "at least 2.00 GiB"),
        (None, True, None, 31 * GIB, "unknown"),
        (None, True, None, None, "unknown"),
        (None, None, None, 33 * GIB, "unknown"),
        (11 * GIB, True, 43 * GIB, 33 * GIB, "11.0 GiB more"),
    ],
)
def test_a_remedy_that_is_enough_saves_at_least_the_excess(
    saves: int | None, enough: bool | None, card: int | None, need: int | None, words: str
) -> None:
    error = {"needed_least_bytes": need, "room_bytes": 31 * GIB}
    assert saving_words({"saves_bytes": saves, "enough": enough, "card_bytes": card}, error) == words


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", ["expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512", "max_split_size_mb:32"]),
        (
            "garbage_collection_threshold:0.8, max_split_size_mb:512",
            [
                "garbage_collection_threshold:0.8,max_split_size_mb:512,expandable_segments:True",
                "garbage_collection_threshold:0.8,max_split_size_mb:128",
                "garbage_collection_threshold:0.8,max_split_size_mb:32",
            ],
        ),
        (
            "roundup_power2_divisions:[256:1,>:4],expandable_segments:False",
            [
                "roundup_power2_divisions:[256:1,>:4],expandable_segments:True",
                "roundup_power2_divisions:[256:1,>:4],expandable_segments:False,max_split_size_mb:128",
                "roundup_power2_divisions:[256:1,>:4],expandable_segments:False,max_split_size_mb:512",
                "roundup_power2_divisions:[256:1,>:4],expandable_segments:False,max_split_size_mb:32",
            ],
        ),
    ],
)
def test_settings_are_replayed_and_offered_beside_those_of_the_run(own: str, expected: list[str]) -> None:
    """Whoever copies the line keeps what the run had set. A setting that the run had is no remedy."""
    estimate = SimpleNamespace(fits=lambda available: True, low_bytes=0)
    record = SimpleNamespace(torch="2.13.0", hip=None, settings=own, layout=None)

    def remedies(replay: ReplayFn) -> list[Remedy]:
        context = RemedyContext(BACKWARD, record, estimate, CauseKind.FRAGMENTATION, replay, [])  # type: ignore[arg-type]
        return list(defragment.remedies_for(context))

    replayed = remedies(lambda confs: [Replayed(conf, True, MIB, True) for conf in confs])
    assert [remedy.conf for remedy in replayed] == expected
    assert [remedy.what for remedy in replayed] == [f"PYTORCH_CUDA_ALLOC_CONF={conf}" for conf in expected]
    assert [remedy.cost for remedy in replayed].count("almost none") == 1, (
        "of expandable segments, with others beside it, too"
    )
    assert [remedy.conf for remedy in remedies(lambda confs: [])] == expected[:1]
