"""A cause must be counterfactual: without it, the whole step would have fitted."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from vramscope.leaks.holders.holder import leads_through_one_cache
from vramscope.oom import error_stack
from vramscope.oom import forward_progress as forward
from vramscope.oom_diagnosis.cause import Cause, CauseKind
from vramscope.oom_diagnosis.demand import estimate_of
from vramscope.oom_diagnosis.diagnosis import Diagnosis, diagnose
from vramscope.oom_diagnosis.estimate import Basis
from vramscope.oom_diagnosis.estimate_prose import basis_words
from vramscope.oom_diagnosis.evidence import _batch_size
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.growth import growing, growth_of, retained_by, retained_by_all
from vramscope.oom_diagnosis.size_curve import curve_bytes
from vramscope.protocol import messages
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS, Frame, ModuleBytes
from vramscope_server.analysis.comparison.batch_size import BatchSize
from vramscope_server.analysis.oom.remedies import alternatives, batch, optimizer_state, remove_cause
from vramscope_server.analysis.oom.remedies.ranking import remedies
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Remedy, RemedyContext
from vramscope_server.api.oom.other_runs import did_as_much, differs, script_of

MIB = 1 << 20
DIED = Facts(
    asked_bytes=200 * MIB, total_bytes=2000 * MIB, free_bytes=100 * MIB, reserved_bytes=1400 * MIB, used_bytes=1390 * MIB,
    parameters_bytes=100 * MIB, gradients_bytes=0, optimizer_bytes=0, buffers_bytes=0, trainable_bytes=100 * MIB,
    before_forward_bytes=100 * MIB, phase="forward", progress=0.25, step=0, batch_size=64,
)  # fmt: skip
"""A quarter of the forward took 1.3 GiB: how much it would have been nobody knows, as layers differ."""
KNOWN = replace(DIED, to_come_bytes=4400 * MIB)
"""The same, of blocks that are alike."""


def steps(floors: list[int], peaks: list[int]) -> dict[str, bytes]:
    numbers = array("q", range(1, len(floors) + 1)).tobytes()
    return {
        "step": numbers,
        "end_allocated_bytes": array("q", floors).tobytes(),
        "peak_allocated_bytes": array("q", peaks).tobytes(),
    }


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"others_bytes": 400 * MIB}, "activations"),
        ({"limit_bytes": 1450 * MIB, "free_bytes": 400 * MIB}, "activations"),
        ({"outside_bytes": 700 * MIB, "outside_before_bytes": 300 * MIB}, "activations"),
        ({"growth_bytes": 300 * MIB}, "activations"),
        ({"progress": 0.95, "others_bytes": 400 * MIB}, "other_process"),
        ({"progress": 0.95, "limit_bytes": 1450 * MIB, "free_bytes": 400 * MIB}, "limit"),
        ({"progress": 0.95, "outside_bytes": 700 * MIB, "outside_before_bytes": 300 * MIB}, "outside_pytorch"),
        ({"progress": 0.95, "growth_bytes": 300 * MIB}, "leak"),
    ],
)
def test_a_cause_must_have_been_enough_by_itself(more: dict[str, Any], cause: str) -> None:
    assert diagnose(replace(DIED, **more)).kind == cause


@pytest.mark.parametrize(
    "more",
    [
        {"limit_bytes": 1450 * MIB, "free_bytes": 400 * MIB},
        {"others_bytes": 400 * MIB},
        {"outside_bytes": 700 * MIB, "outside_before_bytes": 300 * MIB},
    ],
    ids=["limit", "other processes", "grown outside"],
)
def test_more_memory_is_no_remedy_for_graphs_that_accumulate(more: dict[str, Any]) -> None:
    """Each forward adds its graph, and how many forwards follow is not known: no amount is known to be enough."""
    once = replace(DIED, progress=0.95, **more)
    assert diagnose(once).kind in ("limit", "other_process", "outside_pytorch")
    assert diagnose(replace(once, step=10, evaluates=True, forwards=8)).kind == "activations"
    assert diagnose(replace(once, step=10, forwards=8)).kind == "activations"


def test_a_smaller_batch_is_not_the_first_remedy_for_a_sum_of_losses() -> None:
    """The graphs of all micro-batches are alive until the one backward: smaller and more of them need as much."""
    died = replace(DIED, step=5, forwards=9)
    assert diagnose(died).first_aid == (
        "If the loss is a sum over 9 forwards, call backward after each: the graph of each is then freed."
    )
    first = min(batch.remedies_for(context_of(died)), key=lambda one: one.rank)
    assert first.what.startswith("call backward after each of the 9 forwards")


def test_an_earlier_step_overrules_an_extrapolation() -> None:
    """Extrapolated, this forward exceeds the earlier steps by far, though it is the same."""
    known = replace(
        DIED, used_bytes=1300 * MIB, progress=0.6, step=9, peak_before_bytes=1450 * MIB, others_bytes=200 * MIB
    )
    assert diagnose(known).kind == "other_process"
    assert diagnose(replace(known, peak_before_bytes=300 * MIB)).kind == "activations", "those were of another batch"


def test_usual_free_blocks_are_not_fragmentation() -> None:
    died = replace(DIED, phase="backward", progress=None, used_bytes=1280 * MIB, asked_bytes=140 * MIB)
    few = diagnose(replace(died, reserved_bytes=1330 * MIB, free_bytes=100 * MIB))
    many = diagnose(replace(died, reserved_bytes=1430 * MIB, free_bytes=10 * MIB))
    assert (few.kind, many.kind) == ("activations", "fragmentation")


LONG_SEQUENCE = Facts(
    asked_bytes=301989888, total_bytes=2147483648, free_bytes=37748736, reserved_bytes=1564475392, used_bytes=1267156992,
    outside_bytes=545259520, parameters_bytes=17856512, gradients_bytes=0, optimizer_bytes=35713024, buffers_bytes=0,
    trainable_bytes=17856512, expected_state_bytes=35713024, before_forward_bytes=120702976, batch_size=1,
    input_shape=(1, 3072), input_shape_before=(1, 1024), peak_now_bytes=138543104, peak_before_bytes=592598016,
    end_before_bytes=138543104, step=3, phase="forward", forwards=1, update="foreach",
)  # fmt: skip
"""The record of a GPT-2 that keeps its scores, which go with the square of the length: 283 MiB lay in pieces."""


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({}, "activations"),
        ({"progress": 0.3}, "activations"),
        ({"progress": 0.999}, "fragmentation"),
        ({"input_shape": (1, 1024)}, "activations"),  # as long as before: why it wants more is not known
        ({"input_shape": (), "input_shape_before": ()}, "activations"),
        ({"peak_before_bytes": 1400 << 20}, "fragmentation"),  # one almost as large had fitted
        ({"scales_with_length": True, "peak_before_bytes": 595 << 20}, "fragmentation"),  # in proportion it fits
        ({"used_bytes": 700 << 20}, "fragmentation"),  # far more lies in pieces than it wants beyond the last one
    ],
)
def test_free_blocks_are_not_blamed_for_a_larger_step(more: dict[str, Any], cause: str) -> None:
    """If the rest of the forward is unknown, one block would only have been enough for this request."""
    died = replace(LONG_SEQUENCE, **more)
    assert diagnose(died).kind == cause
    told = cause == "activations" and died.input_ratio is not None and died.input_ratio > 1
    assert ("this step's input is 1 x 3,072" in diagnose(died).sentence.lower()) == told


@pytest.mark.parametrize(
    ("died", "took_bytes"),
    [
        (replace(LONG_SEQUENCE, progress=0.2763), 3514 * MIB),
        (
            replace(
                LONG_SEQUENCE, asked_bytes=603979776, free_bytes=457179136, reserved_bytes=1145044992, used_bytes=1110939648,
                before_forward_bytes=120875008, batch_size=16, input_shape=(16, 1536), input_shape_before=(16, 300),
                peak_before_bytes=958970880, end_before_bytes=138573312, step=5, progress=0.0879,
            ),
            8513 * MIB,
        ),
    ],
)  # fmt: skip
def test_a_larger_input_is_bounded_by_its_square(died: Facts, took_bytes: int) -> None:
    """The need of both steps on a larger device is known. Extrapolated from their first layers it would be 10 and
    37 GiB.
    """
    need = estimate_of(died)
    most = need.high_bytes if need is not None else None
    assert need is not None and most is not None
    assert took_bytes < most < 3 * took_bytes
    assert need.likely_bytes <= most
    alone = estimate_of(replace(died, input_shape=(), input_shape_before=()))
    assert alone is not None and alone.high_bytes is None, "of its first layers alone nobody knows it"
    assert need.basis is Basis.SQUARE_OF_INPUT and "with the square of the input" in basis_words(need, died)
    assert alone.basis is not Basis.SQUARE_OF_INPUT
    come = replace(died, before_forward_bytes=(died.before_forward_bytes or 0) + 90 * MIB)
    later = estimate_of(come)
    assert later is not None and (later.high_bytes or 0) > most, (
        "what has come since was no part of what the last one took"
    )
    growing = estimate_of(replace(died, growth_bytes=50 * MIB)) or need
    assert growing.basis is not Basis.SQUARE_OF_INPUT, "nor is it known what it took"


SIZES = tuple(((16, length), mib * MIB) for length, mib in ((128, 194), (200, 324), (240, 405), (256, 440), (300, 544)))
"""What earlier steps took of the second of these."""


def test_two_input_sizes_give_a_tighter_bound() -> None:
    died = replace(
        LONG_SEQUENCE, asked_bytes=603979776, free_bytes=457179136, reserved_bytes=1145044992, used_bytes=1110939648,
        before_forward_bytes=120875008, batch_size=16, input_shape=(16, 1536), input_shape_before=(16, 300),
        peak_before_bytes=958970880, end_before_bytes=138573312, step=5, progress=0.0879, input_sizes=SIZES,
    )  # fmt: skip
    need, alone = estimate_of(died), estimate_of(replace(died, input_sizes=SIZES[-1:]))
    assert need is not None and alone is not None
    assert (need.high_bytes or 0) < 0.7 * (alone.high_bytes or 0)
    assert (need.basis, alone.basis) == (Basis.OTHER_SIZES, Basis.SQUARE_OF_INPUT)
    as_before = estimate_of(replace(died, input_sizes=(*SIZES, ((16, 2048), 9000 * MIB))))
    assert as_before is not None and as_before.working_bytes == (9000 - 17.029296875) * MIB, "a longer one had fitted"


def test_cubic_growth_shows_in_the_sizes() -> None:
    """With four times the length, values for each triple are 64 times as many."""
    straight, squared, cubed = (lambda n, power=power: 3 * n + n**power / 50 for power in (1, 2, 3))
    for took in (straight, squared, cubed):
        sizes = [((2, n), took(n)) for n in (64, 96, 128)]
        result = curve_bytes((2, 512), sizes)
        assert result is not None and result == pytest.approx(took(512), rel=0.01)
        assert curve_bytes((2, 512), sizes[::2]) == pytest.approx(result), "two are enough where it is steep"
    hidden = [((2, n), 300 * n + n**3 / 50) for n in (64, 96, 128)]
    at_most = curve_bytes((2, 512), hidden)
    assert at_most is not None and at_most >= 300 * 512 + 512**3 / 50, "three show what two would hide"
    assert curve_bytes((4, 512), hidden) is None, "more rows, and longer ones"
    assert curve_bytes((2, 512), hidden[:1]) is None
    assert curve_bytes((2, 80), hidden) == hidden[1][1], "a longer one took as much"
    pictures = [((8, 3, size, size), float(size**2)) for size in (64, 128)]
    assert curve_bytes((8, 3, 256, 256), pictures) == 256**2
    assert curve_bytes((8, 3, 256, 128), pictures) is None


def test_memory_is_proportional_to_the_rows() -> None:
    """Rows that are tokens of one sequence may have a value for each pair."""
    died = replace(
        DIED, step=3, gradients_bytes=100 * MIB, peak_before_bytes=500 * MIB, end_before_bytes=200 * MIB,
        input_shape=(256, 8, 8), input_shape_before=(64, 8, 8), batch_size=256,
    )  # fmt: skip
    took = 4 * (500 - 200) * MIB
    for more, factor in (({}, 1.25), ({"batch_size": 8}, 4), ({"input_shape": (64, 32, 8), "batch_size": 64}, 4)):
        need = estimate_of(replace(died, used_bytes=600 * MIB, **more))
        assert need is not None and need.working_bytes is not None
        assert 0.99 < (need.working_bytes + need.error_bytes) / (factor * took) < 1.06
    tokens = replace(died, used_bytes=600 * MIB, input_shape=(256, 8), input_shape_before=(64, 8))
    for knows, factor in ((True, 1.25), (False, 4)):
        need = estimate_of(replace(tokens, scales_with_length=knows))
        assert need is not None and need.working_bytes is not None
        assert 0.99 < (need.working_bytes + need.error_bytes) / (factor * took) < 1.06


@pytest.mark.parametrize(("asked_bytes", "factor"), [(4 * 4096**2, 4), (3 * 4096**2, 1.25)])
def test_a_request_for_each_pair_of_rows_is_not_proportional(asked_bytes: int, factor: float) -> None:
    """The similarities of a contrastive loss: half of the rows was called enough, and was not."""
    died = replace(
        DIED, step=3, gradients_bytes=100 * MIB, peak_before_bytes=500 * MIB, end_before_bytes=200 * MIB, batch_size=4096,
        input_shape=(4096, 8, 8), input_shape_before=(1024, 8, 8), used_bytes=600 * MIB, asked_bytes=asked_bytes,
    )  # fmt: skip
    need = estimate_of(died)
    assert need is not None and need.working_bytes is not None
    assert 0.99 < (need.working_bytes + need.error_bytes) / (factor * 4 * 300 * MIB) < 1.06


def test_a_larger_input_likely_needs_more_than_the_last() -> None:
    """The need grows with the input, up to the extrapolated value."""
    died = replace(
        DIED, progress=0.7, used_bytes=1150 * MIB, step=9, peak_before_bytes=1250 * MIB, others_bytes=250 * MIB
    )
    assert diagnose(died).kind == "other_process"
    assert diagnose(replace(died, input_shape=(66, 8), input_shape_before=(64, 8))).kind == "other_process"
    assert diagnose(replace(died, input_shape=(128, 8), input_shape_before=(64, 8))).kind == "activations"


def test_a_limit_is_a_share_of_a_larger_device_too() -> None:
    """A device of 2.75 GiB was called enough under a fraction of 0.4, and ran out."""
    sizes = [
        next(one.card_bytes for one in alternatives.remedies_for(context_of(facts)) if one.card_bytes)
        for facts in (KNOWN, replace(KNOWN, free_bytes=100 * MIB, limit_bytes=1000 * MIB))
    ]
    assert sizes[0] is not None and sizes[1] is not None and sizes[1] > 1.8 * sizes[0]


def test_the_state_of_an_unknown_optimizer_is_unknown_in_its_first_update() -> None:
    """It makes it one parameter after the other. What needs no state fits: forward and backward did."""
    died = replace(
        DIED, phase="optimizer", progress=None, optimizer_bytes=900 * MIB, gradients_bytes=100 * MIB, state_is_unknown=True,
        peak_now_bytes=500 * MIB,
    )  # fmt: skip
    assert not any(one.enough for one in alternatives.remedies_for(context_of(died)))
    for peak, enough in ((500 * MIB, True), (1400 * MIB, None)):
        record = SimpleNamespace(
            techniques=(), state_bytes_per_parameter_byte=None, optimizer_kind="Mixed", bucket_bytes=None
        )
        found = optimizer_state.remedies_for(context_of(replace(died, peak_now_bytes=peak), record))
        assert next(one for one in found if one.what == "SGD without momentum").enough is enough


def test_the_batch_of_a_larger_step_counts_once() -> None:
    """It is there before the forward, and a part of what the step before took."""
    died = replace(
        DIED, step=3, parameters_bytes=0, trainable_bytes=0, used_bytes=700 * MIB, reserved_bytes=750 * MIB, free_bytes=750 * MIB,
        limit_bytes=800 * MIB, before_forward_bytes=230 * MIB, progress=0.5, peak_before_bytes=200 * MIB,
        end_before_bytes=70 * MIB, input_shape=(40000, 1024, 1), input_shape_before=(4000, 1024, 1), batch_size=40000,
    )  # fmt: skip
    need = estimate_of(died)
    assert need is not None and need.likely_bytes == (70 + 10 * (200 - 70)) * MIB
    assert need.working_bytes is not None and need.working_bytes > 10 * (200 - 70) * MIB, "the bound stays as it was"
    assert diagnose(died).kind == "limit"


@pytest.mark.parametrize(
    ("kind", "update", "copies"),
    [("AdamW", "foreach", 1), ("AdamW", "fused", 0), ("SGD", "foreach", 0), ("RAdam", "foreach", 2), (None, None, 0)],
)
def test_a_smaller_batch_does_not_make_the_update_smaller(kind: str | None, update: str | None, copies: int) -> None:
    """256 rows were called enough, and ran out in opt.step()."""
    died = replace(DIED, progress=0.7, used_bytes=1150 * MIB, optimizer_kind=kind, update=update)
    need = estimate_of(died)
    assert need is not None and need.update_bytes == copies * (died.trainable_bytes or 0)
    least = need.fixed_bytes + need.constant_bytes + need.update_bytes
    assert need.high_with(share=0.0) is None or (need.high_with(share=0.0) or 0) >= least
    share = need.largest_share(int(1.04 * least))
    assert share is None or not need.update_bytes


def test_growth_rises_in_every_interval() -> None:
    rising = growth_of(steps([100, 200, 300, 400, 500], [1000, 1100, 1200, 1300, 1400]))
    assert rising is not None
    assert rising == (400, 1000, 4, False)
    longer = growth_of(steps([100, 200, 300, 400, 500], [1000, 2000, 3000, 4000, 5000]))
    assert longer is not None and longer.of_work, "a batch that is longer in each step, and referred to after it"
    for floors in (
        [100, 200, 300],
        [100, 100, 100, 500, 500, 500],
        [100, 300, 200, 400, 300, 500],
        [500, 400, 300, 200],
    ):
        assert growth_of(steps(floors, floors)) is None, floors
    long = [100 + 10 * n + (60 if n % 5 else 0) for n in range(100)]
    assert growth_of(steps(long, long)) is not None, "what some steps leave behind does not hide it"
    assert growth_of({}) is None


def test_a_larger_batch_is_not_a_leak() -> None:
    died = replace(DIED, phase="backward", progress=None, growth_bytes=150 * MIB, peak_at_first_bytes=500 * MIB, step=6)
    assert diagnose(died).kind == "activations"
    assert diagnose(replace(died, peak_at_first_bytes=1400 * MIB)).kind == "leak"


def context_of(
    facts: Facts, record: Any = None, kind: CauseKind = CauseKind.ACTIVATIONS, others: Any = ()
) -> RemedyContext:
    estimate = estimate_of(facts)
    assert estimate is not None and facts.available_bytes is not None and facts.shortfall_bytes is not None
    record = SimpleNamespace(techniques=()) if record is None else record
    return RemedyContext(facts, record, estimate, kind, lambda confs: [], others)


def diagnosed(facts: Facts, kind: CauseKind) -> Diagnosis:
    """Diagnosis of facts, with another cause."""
    diagnosis = diagnose(facts)
    return replace(diagnosis, cause=Cause(kind, diagnosis.cause.details))


def found(facts: Facts) -> list[Remedy]:
    return list(batch.remedies_for(context_of(facts)))


def test_growth_of_a_young_run_is_not_a_leak_if_one_block_fits() -> None:
    died = replace(DIED, phase="data", progress=None, used_bytes=1000 * MIB, growth_bytes=600 * MIB, step=6)
    assert diagnose(replace(died, growth_is_young=True)).kind == "fragmentation"
    assert diagnose(died).kind == "leak"
    full = replace(died, growth_is_young=True, used_bytes=1390 * MIB)
    assert diagnose(full).kind == "leak"


def test_a_small_leak_is_not_the_cause_where_the_input_has_grown_more() -> None:
    """60 MiB are leaked and 50 MiB are lacking. The last step needed 400 MiB, with a tenth of the input."""
    died = replace(DIED, asked_bytes=150 * MIB, progress=None, leaked_bytes=60 * MIB, step=5)
    assert died.shortfall_bytes == 50 * MIB
    assert diagnose(replace(died, peak_before_bytes=1500 * MIB)).kind == "leak"
    grown = replace(died, peak_before_bytes=400 * MIB, input_shape=(640, 512), input_shape_before=(64, 512))
    assert diagnose(grown).kind == "activations"


def test_growth_of_the_optimizer_s_state_is_no_leak() -> None:
    """One that keeps past gradients needs more in each of its first steps."""
    died = replace(DIED, phase="optimizer", progress=None, used_bytes=1450 * MIB, growth_bytes=1100 * MIB, step=11)
    died = replace(died, reserved_bytes=1450 * MIB, free_bytes=50 * MIB, gradients_bytes=100 * MIB)
    assert diagnose(died).kind == "leak"
    assert diagnose(replace(died, optimizer_bytes=1200 * MIB)).kind == "optimizer"


def test_a_forward_that_exceeds_the_last_step_by_more_than_is_free_is_not_fragmented() -> None:
    """A cell that is unrolled for longer is called more often, with as large an input. 150 MiB are free in blocks."""
    died = replace(DIED, progress=None, asked_bytes=120 * MIB, used_bytes=1250 * MIB, step=3)
    assert diagnose(replace(died, peak_before_bytes=1300 * MIB)).kind == "fragmentation"
    assert diagnose(replace(died, peak_before_bytes=500 * MIB)).kind == "activations"


def test_activations_do_not_count_as_growth_beside_the_optimizer_s_state() -> None:
    """The state has grown by 550 MiB. After the last step, 130 MiB were there beside it and the weights; now, 650 MiB are."""
    died = replace(DIED, phase="backward", progress=None, used_bytes=1450 * MIB, reserved_bytes=1450 * MIB, step=11)
    died = replace(
        died, free_bytes=50 * MIB, gradients_bytes=100 * MIB, growth_bytes=550 * MIB, peak_before_bytes=1300 * MIB
    )
    assert diagnose(replace(died, optimizer_bytes=600 * MIB, end_before_bytes=830 * MIB)).kind == "activations"
    assert diagnose(replace(died, end_before_bytes=830 * MIB)).kind == "leak"
    at_once = replace(died, optimizer_bytes=600 * MIB, end_before_bytes=830 * MIB, growth_is_young=True)
    assert diagnose(at_once).kind == "leak", "accumulated in an evaluation, after that step"


def test_free_blocks_that_the_next_step_fills_do_not_excuse_growth() -> None:
    """300 MiB are lacking and 400 MiB are free in blocks."""
    died = replace(DIED, phase="data", progress=None, used_bytes=1000 * MIB, growth_bytes=600 * MIB, step=6)
    died = replace(died, growth_is_young=True, free_bytes=0)
    shortfall, idle = died.shortfall_bytes, died.idle_bytes
    assert shortfall == 200 * MIB and idle == 400 * MIB
    for steps, kind in ((2, "leak"), (4, "fragmentation"), (None, "fragmentation")):
        assert diagnose(replace(died, growth_steps=steps)).kind == kind, steps


def test_a_first_forward_needs_the_gradient_of_the_request_too() -> None:
    """One block would be enough for the request alone."""
    died = replace(DIED, progress=None, used_bytes=1250 * MIB)
    assert died.idle_bytes == 150 * MIB
    assert diagnose(died).kind == "activations"
    assert diagnose(replace(died, no_graph_yet=True)).kind == "fragmentation"
    assert diagnose(replace(died, used_bytes=1050 * MIB)).kind == "fragmentation"


def test_a_batch_is_split_at_most_into_rows() -> None:
    (parted,) = found(KNOWN)
    assert parted.enough
    assert parted.micro_batches == 8
    assert "8 micro-batches of 8 rows instead of 64 rows" in parted.what
    rows = int(parted.source_words.split("; ")[-1].split()[0])
    assert 8 <= rows < 16, "the largest batch that fits by the same arithmetic"
    assert found(replace(KNOWN, batch_size=4)) == [], "even single rows are not known to fit"
    (single,) = found(replace(KNOWN, batch_size=8))
    assert "8 micro-batches of 1 row instead of 8 rows" in single.what
    (one,) = found(replace(KNOWN, batch_size=1))
    assert (one.enough, one.micro_batches) == (None, None)
    (unknown,) = found(replace(KNOWN, batch_size=None))
    assert unknown.micro_batches == 8


def test_a_crude_extrapolation_promises_nothing() -> None:
    """Extrapolated by output widths, a ResNet that had hardly begun came to fifty times its need."""
    need = estimate_of(DIED)
    assert need is not None
    assert (need.high_bytes, need.largest_share(1500 * MIB)) == (None, None)
    assert need.low_bytes == (1390 + 200) * MIB
    assert basis_words(need, DIED).endswith("the rest of the forward pass is unknown")
    (parted,) = found(DIED)
    assert (parted.micro_batches, parted.enough, parted.saves_bytes) == (8, None, None), "a number to begin with"
    assert not any(remedy.enough for remedy in alternatives.remedies_for(context_of(DIED)))


def test_weights_read_onto_the_device_suggest_map_location() -> None:
    read = replace(DIED, other_models_bytes=1000 * MIB, phase="data", progress=None, step=3, is_reading=True)
    assert (diagnose(read).kind, "map_location" in diagnose(read).first_aid) == ("weights", True)
    assert "map_location" not in diagnose(replace(read, is_reading=False)).first_aid


def test_the_length_that_fits_is_reported() -> None:
    """An input so much shorter needs at most so much less."""
    long = replace(KNOWN, input_shape=(64, 4096), input_shape_before=(64, 256), to_come_bytes=1000 * MIB, step=3)
    shorter = next(one for one in found(long) if one.what.startswith("inputs of a length of"))
    need = estimate_of(long)
    assert need is not None and shorter.enough
    fits = int(shorter.what.split()[5].replace(",", ""))
    assert 256 < fits < 4096 and need.fits(1500 * MIB, fits / 4096)


@pytest.mark.parametrize("before", [(), (64,), (64, 8, 8)])
def test_an_input_of_another_rank_has_no_length_that_fits(before: tuple[int, ...]) -> None:
    died = replace(KNOWN, input_shape=(64, 512), input_shape_before=before)
    assert not any(one.what.startswith("inputs of a length") for one in found(died))


@pytest.mark.parametrize("kind", ["tensor-growth", "overlap-unfreed"])
def test_freeing_a_growing_tensor_is_enough(kind: str) -> None:
    """Memory of the last step was not there in the first one, so that step proves nothing."""
    bank = SimpleNamespace(
        kind=kind, name="bank", file="/home/ada/train.py", line=9, advice="clear it", growth_bytes_per_step=0,
        last_step=20, exclusive_bytes=700 * MIB, emptied_after=None,
    )  # fmt: skip
    died = replace(DIED, phase="other", progress=None, leaked_bytes=700 * MIB, step=20)
    for line, enough in ((9, True if kind == "tensor-growth" else None), (12, None)):
        own = Frame(file="/home/ada/train.py", line=line, function="main", own=True)
        box = SimpleNamespace(
            leaks=[bank], last_look=(), step=20, stack=(own,), own_frame=own, holders=(), neighbours=()
        )
        case = context_of(died, box, CauseKind.LEAK)
        assert [(one.what, one.enough) for one in remove_cause.remedies_for(case)] == [
            ("bank (train.py:9): clear it", enough)
        ]


def test_unexplained_memory_promises_nothing() -> None:
    """It may be graphs of other forwards, or a data set that was there before."""
    unheard = replace(KNOWN, before_forward_bytes=None, forward_bytes=1290 * MIB)
    assert estimate_of(unheard).high_bytes is not None  # type: ignore[union-attr]
    a_result = estimate_of(replace(unheard, forward_bytes=900 * MIB))
    assert a_result is not None and a_result.high_bytes is not None, (
        "two as large as what was asked for have no name yet"
    )
    beside = estimate_of(replace(unheard, forward_bytes=400 * MIB))
    assert beside is not None and beside.high_bytes is None
    words = basis_words(beside, replace(unheard, forward_bytes=400 * MIB))
    assert words.startswith("890 MiB do not belong to this forward pass; the rest of the forward pass")
    assert estimate_of(replace(KNOWN, forward_bytes=400 * MIB)) == estimate_of(KNOWN), (
        "what was there before it is known"
    )


def test_similar_blocks_are_known_to_a_half() -> None:
    need = estimate_of(KNOWN)
    assert need is not None
    full = (1490 + 4400) * MIB
    assert need.working_bytes == full
    assert need.error_bytes == pytest.approx(0.5 * 4400 * MIB + 0.1 * full)
    in_the_last = estimate_of(replace(KNOWN, to_come_bytes=10 * MIB))
    assert in_the_last is not None and in_the_last.working_bytes == (1490 + 200) * MIB, (
        "the gradient of what was asked for comes while all that was made before it is there"
    )
    in_its_own_code = estimate_of(replace(KNOWN, progress=None))
    assert in_its_own_code is not None and in_its_own_code.high_bytes == need.high_bytes, (
        "the loss of a model that computes it itself"
    )


def test_the_largest_share_of_the_batch_fits() -> None:
    need = estimate_of(KNOWN)
    assert need is not None
    share = need.largest_share(1500 * MIB)
    assert share is not None
    assert need.fits(1500 * MIB, share * 0.999) is True
    assert need.fits(1500 * MIB, share * 1.001) is not True


def test_accumulation_needs_one_more_gradient() -> None:
    """A gradient is allocated before it is added to the existing one. For an embedding that is much."""
    need, plain = estimate_of(replace(KNOWN, largest_parameter_bytes=80 * MIB)), estimate_of(KNOWN)
    assert need is not None and plain is not None
    assert need.high_bytes == plain.high_bytes, "with the whole batch there is none to add it to"
    assert need.high_with(0.5) == pytest.approx(plain.high_with(0.5) + 1.05 * 80 * MIB, abs=2)  # type: ignore[operator]
    share = need.largest_share(1500 * MIB)
    assert share is not None and need.fits(1500 * MIB, share * 0.999) is True
    frozen = estimate_of(replace(KNOWN, largest_parameter_bytes=800 * MIB, trainable_bytes=5 * MIB))
    assert frozen is not None and frozen.in_flight_bytes == 5 * MIB


def test_ddp_buckets_are_not_activations() -> None:
    """Buckets are as large as the gradients, whatever the batch, unless gradients are views of them."""
    died = replace(KNOWN, bucket_bytes=100 * MIB, before_forward_bytes=200 * MIB)
    assert died.working_bytes == KNOWN.working_bytes - 100 * MIB  # type: ignore[operator]
    assert died.fixed_bytes == KNOWN.fixed_bytes + 100 * MIB  # type: ignore[operator]
    assert "DistributedDataParallel's copies of them 0.10 GiB" in diagnose(died).sentence
    (view,) = optimizer_state._buckets(context_of(died))
    assert ("gradient_as_bucket_view" in view.what, view.saves_bytes, view.enough) == (True, 100 * MIB, None)
    assert list(optimizer_state._buckets(context_of(KNOWN))) == []


def test_saving_less_than_the_shortfall_is_not_enough() -> None:
    class Box:  # what the remedies ask of a record
        leaks, last_look, techniques, neighbours, holders, step = (), (), (), (), (), 0
        optimizer_kind, largest_parameter_bytes, narrow_bytes, update = "AdamW", MIB, 0, "foreach"

    facts = replace(DIED, optimizer_bytes=20 * MIB, expected_state_bytes=20 * MIB)
    fields = {one.what: one for one in remedies(diagnosed(facts, CauseKind.ACTIVATIONS), Box())}  # type: ignore[arg-type]
    assert facts.shortfall_bytes == 100 * MIB
    assert fields["SGD without momentum"].enough is False
    assert not any(one.enough for one in fields.values() if one.saves_bytes is not None and one.saves_bytes < 100 * MIB)


def test_progress_is_measured_by_output_widths() -> None:
    """At a language model's last module the loss is still to come, which needs several times as much as all before."""
    from torch import nn

    even = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64, device="meta"), nn.ReLU()) for _ in range(6)))
    assert forward._progress(even, even[2][1]) == 6 / (12 + 3)
    words = nn.Sequential(nn.Embedding(64000, 256, device="meta"), nn.Linear(256, 64000, device="meta"))
    assert forward._progress(words, words[0]) == 256 / (256 + 64000 + 3 * 64000)
    at_the_end = forward._progress(words, words[1])
    assert at_the_end is not None
    assert at_the_end < 0.3
    assert forward._progress(words, words) is None, "its own code runs: where, nobody knows"


def test_a_decorated_forward_is_found_by_its_call() -> None:
    """All forwards of transformers are decorated."""
    import sys

    from torch import nn

    seen: list[forward.RunningModule | None] = []

    def passed_on(forward: Any) -> Any:
        return lambda *args: forward(*args)  # (and no word of what it wraps)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8, device="meta")

        @passed_on
        def forward(self, x: Any) -> Any:
            seen.append(forward.running_module(error_stack.stack_of(sys._getframe()), [model]))
            return self.inner(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))

        @passed_on
        def forward(self, x: Any) -> Any:
            return [layer(x) for layer in self.layers]

    model = Model()
    model(torch.empty(2, 8, device="meta"))
    assert seen == [forward.RunningModule(f"layers.{n}", (n + 1) / 6) for n in range(3)]


SERVED = replace(
    DIED,
    phase="eval",
    parameters_bytes=800 * MIB,
    trainable_bytes=0,
    before_forward_bytes=800 * MIB,
    used_bytes=1390 * MIB,
)
"""A model that answers requests, and is never trained."""


def test_a_batch_of_one_is_not_advised_to_shrink() -> None:
    one = diagnose(replace(SERVED, phase="eval", batch_size=1))
    assert (one.kind, one.first_aid) == (
        "activations",
        "Use a shorter sequence or a smaller input. The batch size is 1 already.",
    )
    trained = diagnose(replace(DIED, batch_size=1))
    assert (trained.kind, "checkpointing" in trained.first_aid) == ("activations", True)
    assert "smaller batch" not in trained.first_aid


def test_an_inference_model_needs_no_gradients() -> None:
    assert diagnose(SERVED).kind == "activations"
    assert "gradients" not in diagnose(SERVED).sentence
    assert "accumulation" not in diagnose(SERVED).first_aid
    full = replace(SERVED, parameters_bytes=1300 * MIB, before_forward_bytes=1300 * MIB)
    assert diagnose(full).kind == "weights", "it leaves next to nothing"


def test_evaluation_blames_the_larger_of_leak_and_free_blocks() -> None:
    died = replace(DIED, phase="eval", progress=None, used_bytes=1100 * MIB, growth_is_young=True, step=6)
    assert diagnose(replace(died, growth_bytes=600 * MIB)).kind == "leak"
    assert diagnose(replace(died, growth_bytes=200 * MIB)).kind == "fragmentation"


def test_unknown_optimizer_state_promises_nothing() -> None:
    unknown = replace(KNOWN, state_is_unknown=True)
    assert "optimizer's state is not known yet" in diagnose(unknown).sentence
    assert not any(one.enough for one in found(unknown))
    assert any(one.enough for one in found(KNOWN))


def test_other_models_do_not_depend_on_the_batch() -> None:
    with_teacher = replace(
        DIED, other_models_bytes=1000 * MIB, phase="data", progress=None, waiting_bytes=600 * MIB, step=3
    )
    assert diagnose(with_teacher).kind == "weights"
    assert "other models and copies of weights 0.98 GiB" in diagnose(with_teacher).sentence
    assert (with_teacher.working_bytes or 0) == 290 * MIB
    assert not any(one.enough for one in found(replace(with_teacher, peak_before_bytes=500 * MIB)))


def test_a_model_that_fits_alone_is_not_said_not_to_fit() -> None:
    room = (DIED.available_bytes or 0) - (DIED.fixed_bytes or 0)
    beside = replace(DIED, other_models_bytes=room + MIB, copies_bytes=room + MIB)
    alone = replace(DIED, parameters_bytes=(DIED.parameters_bytes or 0) + room + MIB)
    assert "does not fit beside other models and copies of weights" in diagnose(beside).sentence
    assert "does not fit, even without activations" in diagnose(alone).sentence


def test_a_copy_in_a_variable_is_named_where_all_fits_without_it() -> None:
    size = 1280 * MIB
    beside = replace(DIED, used_bytes=1380 * MIB, progress=None, phase="backward", expected_state_bytes=200 * MIB,
                     other_models_bytes=size, copies_bytes=size, named_copy_bytes=size, copy_name="read['model']",
                     copy_line="train.py:9")  # fmt: skip
    diagnosis = diagnose(beside)
    assert diagnosis.kind == "weights"
    assert diagnosis.sentence.startswith("read['model'] (train.py:9) has a copy of the model's weights, ")
    assert diagnosis.first_aid == "Keep read['model'] on the host, or free it where it is not used any more."
    part = diagnose(replace(beside, named_copy_bytes=70 * MIB))
    assert part.sentence.startswith("The model does not fit beside other models"), "it is not enough"
    assert "(read['model'], train.py:9)" in part.sentence


def test_of_free_blocks_and_a_copy_the_larger_is_the_cause() -> None:
    died = replace(DIED, phase="backward", progress=None, used_bytes=1280 * MIB, asked_bytes=140 * MIB,
                   reserved_bytes=1430 * MIB, free_bytes=10 * MIB, copy_name="ema", other_models_bytes=200 * MIB)  # fmt: skip
    assert diagnose(replace(died, named_copy_bytes=200 * MIB)).kind == "weights"
    assert diagnose(replace(died, named_copy_bytes=149 * MIB)).kind == "fragmentation"


def test_a_request_of_another_thread_is_not_the_batch() -> None:
    asked = replace(DIED, phase=None, progress=None, thread="warm_cache", step=3)
    assert "by thread 'warm_cache' during step 4" in diagnose(asked).sentence
    assert found(asked) == []


def test_a_failed_cuda_call_on_a_free_device_is_pinned_memory() -> None:
    pinned = Facts(kind="cuda", total_bytes=2000 * MIB, free_bytes=1500 * MIB)
    assert "pinned" in diagnose(pinned).sentence and "pin_memory" in diagnose(pinned).first_aid
    assert "pinned" not in diagnose(replace(pinned, free_bytes=100 * MIB)).sentence


def test_optimizer_remedies_depend_on_update_and_precision() -> None:
    class Box:
        leaks, last_look, techniques, neighbours, holders, step = (), (), (), (), (), 0
        optimizer_kind, largest_parameter_bytes, narrow_bytes, update = "AdamW", MIB, 0, "foreach"
        state_bytes_per_parameter_byte, window = 2.0, None

    died = replace(
        DIED, phase="optimizer", progress=None, parameters_bytes=500 * MIB, gradients_bytes=500 * MIB, trainable_bytes=500 * MIB,
        optimizer_bytes=300 * MIB, expected_state_bytes=1000 * MIB, peak_now_bytes=1100 * MIB, before_forward_bytes=500 * MIB,
    )  # fmt: skip

    def report_of(**changes: Any) -> dict[str, Remedy]:
        box = type("Box", (Box,), changes)()
        facts = replace(died, update=box.update)
        return {one.what: one for one in remedies(diagnosed(facts, CauseKind.OPTIMIZER), box)}

    eight, half = (
        "an 8-bit optimizer (bitsandbytes; torchao needs weights whose number of elements is a multiple of 256)",
        "weights, gradients and state in bfloat16",
    )
    wide, narrow = report_of(), report_of(narrow_bytes=500 * MIB)
    assert any("foreach=False" in what for what in wide)
    assert not any("foreach=False" in what for what in [*report_of(update="one by one"), *report_of(update="fused")])
    assert estimate_of(replace(died, update="fused")).update_bytes == 0  # type: ignore[union-attr]
    assert half in wide and half not in narrow
    assert wide[eight].saves_bytes == int(1000 * MIB * (1 - (2 + 8 / 256) / 8))
    assert narrow[eight].saves_bytes == int(1000 * MIB * (1 - (2 + 8 / 256) / 4))


def test_forwards_without_backward_promise_nothing() -> None:
    died = replace(DIED, forwards=6)
    assert "6 forwards of this step have had no backward" in diagnose(died).sentence
    first, second = found(died)
    assert "backward after each of the 6 forwards" in first.what and "micro-batches" in second.what
    assert not any(one.enough for one in found(died))
    assert found(replace(DIED, forwards=2)) == found(DIED), "two views of one batch, a critic's two: one loss"


def test_evaluation_with_gradients_promises_nothing() -> None:
    """The number of forwards to come is not known. A single one is extrapolated like one of a training."""
    died = replace(DIED, step=3, evaluates=True, forwards=9)
    assert diagnose(died).kind == "activations"
    assert "evaluation mode with gradients on" in diagnose(died).sentence
    assert diagnose(died).first_aid.startswith("Run the evaluation under torch.no_grad()")
    assert [one.what for one in found(died)] == [
        "torch.no_grad() around the evaluation",
        "smaller batches in the evaluation",
    ]
    assert found(replace(died, batch_size=1))[0].what == "torch.no_grad() around the evaluation"
    assert estimate_of(died).high_bytes is None  # type: ignore[union-attr]
    assert not any(one.enough for one in found(died))
    without = replace(died, leaked_bytes=1100 * MIB, to_come_bytes=40 * MIB)
    need = estimate_of(without)
    assert need is not None and need.fits(1500 * MIB, less=1100 * MIB, without_growth=True), "free what grows, it fits"
    assert estimate_of(replace(died, forwards=1)) == estimate_of(replace(DIED, step=3))
    # What was there before the first of these forwards is no part of what was gathered since; and a step's batch as large fitted.
    fitted = replace(
        died, leaked_bytes=1100 * MIB, before_forward_bytes=170 * MIB, input_shape=(64, 512), input_shape_before=(64, 512),
        peak_before_bytes=700 * MIB, end_before_bytes=170 * MIB,
    )  # fmt: skip
    need = estimate_of(fitted)
    assert need is not None and need.fits(1500 * MIB, less=1100 * MIB, without_growth=True)
    larger = estimate_of(replace(fitted, input_shape=(64, 4096)))
    assert larger is not None and not larger.fits(1500 * MIB, less=1100 * MIB, without_growth=True)


def test_a_request_between_steps_may_not_be_the_batch() -> None:
    """A copy of the weights does not depend on the batch. Without a known input nothing is promised."""
    before = {"phase": "data", "progress": None, "step": 4, "peak_before_bytes": 1400 * MIB}
    batch = replace(DIED, **before, input_shape_before=(64, 3, 512, 512))  # 200 MiB of float32
    assert estimate_of(batch).working_bytes is not None  # type: ignore[union-attr]
    assert any(
        one.enough
        for one in found(replace(batch, total_bytes=2300 * MIB, free_bytes=150 * MIB, reserved_bytes=1500 * MIB))
    )
    for shape in ((64, 4096), ()):
        died = replace(batch, input_shape_before=shape)
        need, whole = estimate_of(died), estimate_of(batch)
        assert need is not None and whole is not None
        assert need.high_bytes == pytest.approx(whole.high_bytes, rel=0.01), "as much is needed in all"
        assert need.high_with(1 / 64) >= 1.05 * (died.used_bytes + died.asked_bytes)  # type: ignore[operator]
        assert not any(one.enough for one in found(died))
        copies = estimate_of(replace(died, other_models_bytes=50 * MIB))
        assert copies is not None and copies.high_bytes is None, "how much of a copy was to come is not known"


def test_the_whole_step_decides_the_cause() -> None:
    """A forward that fails early has allocated little; but weights that leave almost nothing are the cause."""
    at_first = replace(
        DIED, parameters_bytes=1000 * MIB, trainable_bytes=10 * MIB, before_forward_bytes=1000 * MIB, progress=0.1
    )
    assert diagnose(at_first).kind == "activations"
    assert diagnose(replace(at_first, parameters_bytes=1300 * MIB, before_forward_bytes=1300 * MIB)).kind == "weights"
    assert diagnose(replace(at_first, progress=0.9)).kind == "weights"


def test_a_model_that_is_the_largest_part_is_not_said_not_to_fit() -> None:
    """Weights and gradients fit; what the program makes beside them after the backward does not."""
    part = replace(
        DIED, phase="other", progress=None, before_forward_bytes=None, parameters_bytes=400 * MIB, trainable_bytes=400 * MIB,
        gradients_bytes=400 * MIB, step=1,
    )  # fmt: skip
    diagnosis = diagnose(part)
    assert (diagnosis.kind, diagnosis.first_aid) == ("weights", "Use smaller weights (bf16), a smaller model, or FSDP.")
    whole = diagnose(replace(part, parameters_bytes=1200 * MIB, trainable_bytes=1200 * MIB))
    assert whole.first_aid.startswith("The model does not fit with this precision.")


def test_another_model_is_blamed_if_the_update_fits_without_it() -> None:
    """``foreach`` copies what it updates; an average of the weights is not part of that."""
    died = replace(
        DIED, phase="optimizer", progress=None, parameters_bytes=320 * MIB, trainable_bytes=320 * MIB,
        gradients_bytes=320 * MIB, optimizer_bytes=400 * MIB, expected_state_bytes=640 * MIB, other_models_bytes=320 * MIB,
    )  # fmt: skip
    assert diagnose(replace(died, update="one by one")).kind == "weights"
    assert diagnose(replace(died, update="foreach")).kind == "optimizer"
    assert diagnose(replace(died, update="foreach", copies_bytes=320 * MIB)).kind == "weights", (
        "nobody wants a copy there at all"
    )


def test_inference_has_no_training_remedies() -> None:
    """A cache that is allocated before the first forward."""
    died = replace(DIED, phase="other", progress=None, trainable_bytes=0, before_forward_bytes=None)
    assert diagnose(died).kind == "activations"
    assert "gradients" not in diagnose(died).sentence
    assert [one.what for one in found(died)] == ["fewer sequences or rows at a time, or shorter ones"]
    unheard = replace(died, trainable_bytes=100 * MIB)  # of a training under torch.func, say
    assert [one.what for one in found(unheard)] == ["fewer sequences or rows at a time, or shorter ones"]
    assert found(replace(unheard, step=3)) == []


def test_trainer_predictions_have_their_own_remedy() -> None:
    class Box:
        stack = (Frame(file="/lib/transformers/trainer.py", line=1, function="Trainer.evaluation_loop", own=False),)

    class Loop:
        stack = (Frame(file="/home/ada/train.py", line=1, function="evaluation_loop", own=True),)

    died = replace(DIED, phase="eval", progress=None)
    need = estimate_of(died)
    assert need is not None
    fields = {
        box: [one.what for one in batch.remedies_for(context_of(died, box()))]  # type: ignore[arg-type]
        for box in (Box, Loop)
    }
    assert "eval_accumulation_steps" in fields[Box][0]
    assert len(fields[Loop]) == 1, "a loop of one's own has no such setting"


def test_other_models_can_move_to_the_host() -> None:
    class Box:
        leaks, last_look, techniques, neighbours, step, settings, own_frame = (), (), (), (), 0, "", None
        optimizer_kind, largest_parameter_bytes, narrow_bytes, update, node = None, MIB, 0, None, None
        holders = (
            ModuleBytes(module="Teacher", category=OTHER_MODELS, held_bytes=300 * MIB, tensors=9),
            ModuleBytes(module=COPIES, category=OTHER_MODELS, held_bytes=150 * MIB, tensors=9),
            ModuleBytes(module="Teacher", category="gradients", held_bytes=1, tensors=1),
        )

    died = replace(DIED, phase="backward", progress=None, other_models_bytes=450 * MIB, asked_bytes=120 * MIB)
    fields = {one.what: one for one in remedies(diagnosed(died, CauseKind.WEIGHTS), Box())}  # type: ignore[arg-type]
    teacher = next(one for what, one in fields.items() if "(Teacher) on the host" in what)
    copies = next(one for what, one in fields.items() if "copies of weights" in what)
    assert (teacher.saves_bytes, copies.saves_bytes) == (300 * MIB, 150 * MIB)
    assert (teacher.enough, copies.enough) == (True, None), "what a step may still want beyond this request counts"


def test_a_dense_gradient_of_an_embedding_can_be_sparse() -> None:
    def proposed(facts: Facts, node: str | None) -> list[str]:
        found = alternatives.remedies_for(context_of(facts, SimpleNamespace(techniques=(), node=node)))
        return [one.what for one in found if "sparse" in one.what]

    died = replace(DIED, phase="backward", progress=None, module="table")
    assert proposed(died, "EmbeddingBackward0")[0].startswith("sparse=True for the embedding table: ")
    assert proposed(died, "EmbeddingBagBackward0")
    assert not proposed(died, "MmBackward0") and not proposed(died, None)
    assert not proposed(replace(died, phase="forward"), "EmbeddingBackward0")


def test_data_of_the_program_is_a_cause_where_it_is_the_largest_part_or_nothing_else_runs() -> None:
    """It is part of the sum in the sentence, once."""
    outside = replace(
        DIED, phase="data", progress=None, before_forward_bytes=None, parameters_bytes=MIB, trainable_bytes=MIB,
        data_bytes=900 * MIB, data_name="images", data_line="train.py:7",
    )  # fmt: skip
    found = diagnose(outside)
    assert found.kind == "data" and "data in images (train.py:7) 900 MiB" in found.sentence, found.sentence
    sizes = [
        float(size) for size in re.findall(r"([\d.]+) MiB", found.sentence.partition(" in total")[0].replace(",", ""))
    ]
    assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.011), found.sentence
    assert "host" in found.first_aid
    assert diagnose(replace(outside, data_bytes=100 * MIB)).kind == "activations", "it is a small part"
    in_step = replace(outside, phase="forward", used_bytes=1400 * MIB, reserved_bytes=1400 * MIB)
    assert diagnose(in_step).kind == "data"
    assert diagnose(replace(in_step, data_bytes=300 * MIB)).kind == "activations"


def test_an_equally_large_model_may_replace_the_old_one() -> None:
    """A notebook's cell that runs again creates the new model while the old one and its optimizer exist."""
    arrived = ModuleBytes(module="Sequential", category=OTHER_MODELS, held_bytes=40 * MIB, tensors=3)
    box = SimpleNamespace(leaks=(), last_look=(), step=4, stack=(), own_frame=None, holders=(arrived,), neighbours=())
    comes = replace(DIED, phase="data", progress=None, step=4, optimizer_bytes=200 * MIB, waiting_bytes=60 * MIB)

    def report_of(facts: Facts) -> list[int | None]:
        case = context_of(facts, box)
        return [one.saves_bytes for one in remove_cause.remedies_for(case) if "replaces the old one" in one.what]

    assert report_of(comes) == [(100 + 200) * MIB]
    assert report_of(replace(comes, waiting_bytes=300 * MIB)) == [], "a teacher that is larger"
    assert report_of(replace(comes, step=0)) == report_of(replace(comes, waiting_bytes=0)) == []


def test_unallocated_state_frees_nothing() -> None:
    class Box:
        leaks, last_look, techniques, neighbours, holders, step, own_frame, settings = (), (), (), (), (), 0, None, ""
        optimizer_kind, largest_parameter_bytes, narrow_bytes, update = "AdamW", MIB, 0, "foreach"

    def sgd(facts: Facts) -> bool | None:
        fields = {one.what: one for one in remedies(diagnosed(facts, CauseKind.ACTIVATIONS), Box())}  # type: ignore[arg-type]
        return fields["SGD without momentum"].enough

    first = replace(DIED, expected_state_bytes=200 * MIB)
    assert first.shortfall_bytes == 100 * MIB
    assert sgd(first) is False, "in the first forward none of it is there"
    assert sgd(replace(first, optimizer_bytes=200 * MIB, step=3, progress=0.9)) is None


def test_a_moving_layer_is_not_the_cause_of_larger_use() -> None:
    """Layers are moved to the device one by one; the batch fills it."""
    moves = replace(
        DIED, parameters_bytes=0, trainable_bytes=250 * MIB, waiting_bytes=250 * MIB, phase="other", progress=None,
        before_forward_bytes=None,
    )  # fmt: skip
    result = diagnose(moves)
    assert result.kind == "activations" and "temporaries 1.36 GiB" in result.sentence, result.sentence
    model_alone = diagnose(
        replace(moves, used_bytes=100 * MIB, reserved_bytes=110 * MIB, free_bytes=10 * MIB, total_bytes=320 * MIB)
    )
    assert model_alone.kind == "weights" and "still on the host" in model_alone.sentence


def test_first_step_lists_expected_gradients_and_state() -> None:
    first = replace(DIED, gradients_bytes=0, optimizer_bytes=0, expected_state_bytes=500 * MIB)
    assert "(expected)" in diagnose(first).sentence
    assert "(expected)" not in diagnose(replace(first, gradients_bytes=250 * MIB)).sentence


def test_another_run_is_proof_only_within_a_step() -> None:
    lean = OtherRun("aaaa", "lean", ("AdamW",), 1200 * MIB, None, did_as_much=True)

    class Box:
        techniques = ()

    def words_of(cause: str, facts: Facts, other: OtherRun = lean) -> bool | None:
        need = estimate_of(facts)
        assert need is not None
        case = context_of(facts, Box(), CauseKind(cause), (other,))
        return next(one for one in alternatives.remedies_for(case) if one.run_id == "aaaa").enough

    assert words_of("activations", DIED) is True
    assert words_of("leak", DIED) is None, "it may have ended earlier"
    assert words_of("activations", replace(DIED, phase="data", progress=None)) is None
    assert words_of("leak", DIED, replace(lean, peak_reserved_bytes=1600 * MIB)) is False
    assert words_of("activations", DIED, replace(lean, did_as_much=False)) is None, "its batches may have been smaller"


@pytest.mark.parametrize(
    ("other", "own", "rows", "expected"),
    [
        (
            BatchSize(samples=4, accumulation=4, ranks=1, length=128),
            BatchSize(samples=16, accumulation=1, ranks=1, length=128),
            16,
            True,
        ),
        (
            BatchSize(samples=2, accumulation=4, ranks=1, length=128),
            BatchSize(samples=16, accumulation=1, ranks=1, length=128),
            16,
            False,
        ),
        (
            BatchSize(samples=16, accumulation=1, ranks=1, length=64),
            BatchSize(samples=16, accumulation=1, ranks=1, length=128),
            16,
            False,
        ),
        (
            BatchSize(samples=16, accumulation=1, ranks=1, length=128),
            BatchSize(samples=16, accumulation=1, ranks=1, length=128),
            64,  # the batch that was too large: none before was, here or there
            False,
        ),
        (BatchSize(samples=2, accumulation=4, ranks=1, length=None), BatchSize(None, None, 1, None), 16, False),
        (BatchSize(samples=16, accumulation=None, ranks=1, length=None), BatchSize(16, 1, 1, None), 16, None),
        (BatchSize(samples=16, accumulation=1, ranks=1, length=None), BatchSize(None, None, 1, None), None, None),
        (BatchSize(samples=16, accumulation=1, ranks=1, length=None), BatchSize(16, 1, 1, length=128), 16, None),
    ],
)
def test_a_run_with_less_work_is_no_remedy(
    other: BatchSize, own: BatchSize, rows: int | None, expected: bool | None
) -> None:
    assert did_as_much(other, own, rows) is expected


def run_of(command: list[str]) -> Any:
    return SimpleNamespace(command=command)


def test_only_runs_of_the_same_script_are_compared() -> None:
    assert script_of(run_of(["/home/ada/train.py", "--lr", "1"])) == "train.py"
    assert script_of(run_of(["python", "C:\\work\\train.py"])) == "train.py"
    assert script_of(run_of(["-m", "package"])) != script_of(run_of(["train.py"]))
    assert script_of(run_of([])) is None


def test_one_cache_and_a_container_of_caches_differ() -> None:
    """A cache grows by design until the generation ends."""
    one = ("local 'out' of main()", "DynamicCache.layers", "list[4]", "DynamicLayer.values", "Tensor")
    many = ("local 'sessions' of main()", "dict[6]", "DynamicCache.layers", "list[*]", "Tensor")
    assert leads_through_one_cache(one)
    assert leads_through_one_cache(("local 'past_key_values' of main()", "tuple[12]", "Tensor"))
    assert not leads_through_one_cache(many)
    assert not leads_through_one_cache(("local 'features' of main()", "list[60]", "Tensor"))


@pytest.mark.parametrize(
    ("running", "now", "before", "rows"),
    [
        (None, [8, 512], [1, 512], 8),  # the loss asked, no module ran: another batch than those before
        (4, [8, 512], [1, 512], 4),  # a module ran, and was given these rows
        (None, [512, 8], [512, 1], 1),  # what stands first is no batch
        (None, [], [], 1),
    ],
)
def test_rows_are_those_of_the_failed_step(running: int | None, now: list[int], before: list[int], rows: int) -> None:
    """A batch of eight must not be reported as a batch of one that cannot be split."""
    seen = messages.Technique(kind="batch", chip="batch 1", observed="rows of the input", detail={"batch_size": 1})
    box: Any = SimpleNamespace(techniques=[seen], batch_size=running, input_shape=now, input_shape_before=before)
    assert _batch_size(box) == rows


def test_rows_of_the_model_exceed_the_loaders_batch() -> None:
    """With two views of each sample, the model has twice the loader's rows."""
    seen = messages.Technique(
        kind="batch", chip="batch 8", observed="8 of the loader", detail={"batch_size": 8, "input_rows": 16}
    )
    before = [16, 64]
    box: Any = SimpleNamespace(techniques=[seen], batch_size=None, input_shape=[12, 64], input_shape_before=before)
    assert _batch_size(box) == 12
    box.input_shape = []
    assert _batch_size(box) == 16
    box.input_shape, box.input_shape_before = [24, 64], [12, 64]
    assert _batch_size(box) is None, "24 rows must not be reported as 16"


def test_a_container_emptied_each_epoch_retains_its_fill() -> None:
    """A leak is reported with its size at the epoch's end; the error may come just after it was emptied."""
    emptied = messages.Leak(
        kind="growing", name="losses", holder="", count=100, first_step=11, last_step=199, held_bytes=100 * MIB,
        exclusive_bytes=100 * MIB, growth_bytes_per_step=0.0, emptied_after=100, advice="",
    )  # fmt: skip
    assert [retained_by(emptied, step) // MIB for step in (200, 205, 299)] == [0, 5, 99]
    evaluation = msgspec.structs.replace(emptied, per="batch")
    assert [retained_by(evaluation, step) for step in (200, 205, 299)] == [0, 0, 0]
    box = SimpleNamespace(leaks=[evaluation], last_look=["what it holds now"], step=205)
    assert growing(box) == ["what it holds now"]  # type: ignore[arg-type]


def test_a_graph_that_the_newest_output_shares_is_retained_by_the_leak() -> None:
    """Nothing of it is exclusive. Of several leaks that share a graph, one counts."""
    state = messages.Leak(
        kind="growing-eval", name="state", holder="", count=22, first_step=0, last_step=0, held_bytes=100 * MIB,
        exclusive_bytes=0, growth_bytes_per_step=4.0 * MIB, peak_effect_bytes=98 * MIB, advice="",
    )  # fmt: skip
    other = msgspec.structs.replace(state, name="other", exclusive_bytes=3 * MIB, peak_effect_bytes=90 * MIB)
    overlap = msgspec.structs.replace(state, kind="overlap", name="out", peak_effect_bytes=200 * MIB)
    emptied = msgspec.structs.replace(state, name="losses", emptied_after=10, peak_effect_bytes=300 * MIB)
    assert retained_by_all([state, other, overlap, emptied], 0) == 98 * MIB
    assert retained_by_all([overlap, emptied], 0) == 0
    large = msgspec.structs.replace(other, exclusive_bytes=120 * MIB)
    assert retained_by_all([state, large], 0) == 120 * MIB
    assert retained_by_all([], 0) == 0


def test_a_run_that_was_trained_in_the_same_way_is_no_remedy() -> None:
    own = {"techniques": [{"chip": "AdamW"}, {"chip": "batch 8"}], "allocator_settings": ""}
    assert not differs(own | {"techniques": [{"chip": "batch 8"}, {"chip": "AdamW"}]}, own)
    assert differs(own | {"techniques": [{"chip": "AdamW"}, {"chip": "batch 8"}, {"chip": "checkpointing"}]}, own)
    assert differs(own | {"allocator_settings": "expandable_segments:True"}, own)


AFTER_A_STEP = replace(
    DIED, before_forward_bytes=None, progress=None, phase="data", step=300, input_shape_before=(64, 512),
    peak_before_bytes=300 * MIB, end_before_bytes=250 * MIB, gradients_bytes=0, optimizer_bytes=0,
)  # fmt: skip


def test_tensors_made_outside_of_a_step_are_no_activations() -> None:
    found = diagnose(AFTER_A_STEP)
    assert found.kind is CauseKind.DATA
    assert (
        "between a step and the next forward pass" in found.sentence
        and "tensors made since the last step 1.11 GiB" in found.sentence
    )
    assert "checkpointing" not in found.first_aid and ".cpu()" in found.first_aid


@pytest.mark.parametrize(
    "more",
    [
        {"input_shape_before": ()},  # steps call no module: these may be activations
        {"before_forward_bytes": 260 * MIB},  # a forward runs, or has run
        {"phase": "forward"},
        {"peak_before_bytes": 1900 * MIB},  # the steps themselves need more
        {"thread": "worker"},
    ],
)
def test_elsewhere_the_largest_part_of_the_step_counts(more: dict[str, Any]) -> None:
    assert diagnose(replace(AFTER_A_STEP, **more)).kind is CauseKind.ACTIVATIONS
