"""Cause of an out-of-memory error: the first of an ordered list of rules that applies. ``prose`` has the sentences.

    available  most that PyTorch could have reserved
    shortfall  by how much the request exceeds what could still be reserved
    likely     what the whole step would have needed (demand.Estimate)

The order of RULES is the order of blame. What should not be there at all (a leak, a limit, another process, memory
outside PyTorch) comes before fragmentation, and that before the training's own need. Each earlier cause must have been
enough by itself: without it the request would have fitted, and the whole step too, as far as it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramscope.oom_diagnosis.cause import (
    Cause,
    CauseKind,
    FreeBlocks,
    FrozenGradients,
    GrownOutside,
    GrowthLeak,
    HostMemoryFull,
    LibraryRequest,
    Limiting,
    MemoryLimit,
    MemoryParts,
    Missing,
    NotKnown,
    OtherProcesses,
    OtherSoftware,
    RefusedByFraction,
    RetainedLeak,
    SupersededState,
    UsedElsewhere,
    WeightCopy,
)
from vramscope.oom_diagnosis.demand import SAME_ORDER, waits_for_backward
from vramscope.oom_diagnosis.estimate import Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input
from vramscope.oom_diagnosis.message_kinds import ON_HOST, OTHER_SOFTWARE, OUTSIDE_PYTORCH
from vramscope.oom_diagnosis.rule_numbers import (
    fits_in_one_block,
    is_outside_step,
    lacking_bytes,
    likely_bytes,
    numbers,
    update_bytes,
    wanted_more_bytes,
    weights_bytes,
)

NEARLY_ALL: Final = 0.8
"""A model below this share of the available memory is not too large where the rest of the step would have been larger."""
LEAK_SHARE: Final = 0.02
"""A leak below this share of the available memory is no cause, even where a single request would have fitted."""
DATA_SHARE: Final = 0.5
"""Outside of a step, data is the cause where it is so much of what has no owner."""
AS_LARGE: Final = 0.01
"""Difference up to which two parts count as equally large, as a share of the larger one."""
CONTEXT_BYTES: Final = 1 << 30
"""Device memory that CUDA itself may take in this process: its context, kernels and libraries."""
CONTEXT_SHARE: Final = 0.05
"""The same as a share of the device, with what the driver keeps for itself."""
MOSTLY_FREE: Final = 0.5
"""Share of the device. If more is free, a CUDA call without memory meant the host's memory."""


def cause_of(facts: Facts, estimate: Estimate | None) -> Cause:
    """First rule that applies. Never raises."""
    for rule in RULES:
        cause = rule(facts, estimate)
        if cause is not None:
            return cause
    return Cause(CauseKind.UNKNOWN, NotKnown(Missing.NUMBERS))


def _worker_not_killed(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if facts.kind == "worker_killed" and facts.host_kills == 0:
        return Cause(CauseKind.UNKNOWN, NotKnown(Missing.WORKER_NOT_KILLED))
    return None


def _host_memory(facts: Facts, estimate: Estimate | None) -> Cause | None:
    return Cause(CauseKind.OUTSIDE_PYTORCH, HostMemoryFull()) if facts.kind in ON_HOST else None


def _library_request(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if facts.kind not in OUTSIDE_PYTORCH:
        return None
    free, total = facts.free_bytes, facts.total_bytes
    mostly_free = facts.kind == "cuda" and bool(free and total and free > MOSTLY_FREE * total)
    pinned = facts.kind == "pinned" or mostly_free
    return Cause(CauseKind.OUTSIDE_PYTORCH, LibraryRequest(pinned))


def _other_software(facts: Facts, estimate: Estimate | None) -> Cause | None:
    return Cause(CauseKind.UNKNOWN, OtherSoftware()) if facts.kind in OTHER_SOFTWARE else None


def _limit_of_mps(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if facts.kind != "mps":
        return None
    if facts.limit_bytes is None:  # the text is of Metal itself
        return Cause(CauseKind.UNKNOWN, OtherSoftware())
    return Cause(CauseKind.LIMIT, MemoryLimit(None, facts.limit_bytes, facts.used_bytes))


def _refused_by_fraction(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if facts.kind == "preemptive" and (facts.reserved_bytes is None or facts.limit_bytes is not None):
        return Cause(CauseKind.LIMIT, RefusedByFraction())
    return None


def _larger_than_device(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """The request in a text is larger than the device: no setting makes room for it."""
    if facts.from_text and (facts.no_size or (facts.asked_bytes or 0) > (facts.total_bytes or facts.asked_bytes or 0)):
        return Cause(CauseKind.UNKNOWN, NotKnown(Missing.LARGER_THAN_DEVICE))
    return None


def _too_few_numbers(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if None in (facts.asked_bytes, facts.shortfall_bytes, facts.available_bytes, likely_bytes(facts, estimate)):
        return Cause(CauseKind.UNKNOWN, NotKnown(Missing.NUMBERS))
    return None


def _free_was_enough(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """The request in a text is smaller than the free memory. Neither fragmentation nor the training explains that."""
    if facts.from_text and facts.limit_bytes is None and (facts.asked_bytes or 0) <= (facts.free_bytes or 0):
        return Cause(CauseKind.UNKNOWN, NotKnown(Missing.FREE_WAS_ENOUGH, facts.available_bytes))
    return None


def _retained_leak(facts: Facts, estimate: Estimate | None) -> Cause | None:
    shortfall, available, likely = numbers(facts, estimate)
    leaked = max(facts.leaked_bytes, 0)
    lacking = lacking_bytes(facts, estimate) if has_larger_input(facts) else shortfall
    if leaked >= max(lacking, LEAK_SHARE * available) and likely - leaked <= available:
        return Cause(CauseKind.LEAK, RetainedLeak(facts.leak_name, facts.leak_line, leaked))
    return None


def _growth_leak(facts: Facts, estimate: Estimate | None) -> Cause | None:
    shortfall, available, likely = numbers(facts, estimate)
    growth = facts.growth_beside_state_bytes
    least = max(shortfall, LEAK_SHARE * available, wanted_more_bytes(facts, likely))
    if growth < least or likely - growth > available:
        return None
    # Growth over few steps may be wanted. In an evaluation one container has accumulated it; the larger of both is the cause.
    wanted = facts.phase != "eval" or growth <= (facts.idle_bytes or 0)
    in_doubt = facts.growth_is_young and wanted and not facts.growing_tensor_advice
    # Free blocks that the growth of one more step fills would hardly have helped.
    next_step = growth // facts.growth_steps if facts.growth_steps else 0
    if in_doubt and (facts.idle_bytes or 0) >= shortfall + next_step and fits_in_one_block(facts, estimate):
        return None
    return Cause(CauseKind.LEAK, GrowthLeak(growth, facts.leak_name, facts.leak_line, facts.phase == "eval"))


def _superseded_state(facts: Facts, estimate: Estimate | None) -> Cause | None:
    shortfall, available, likely = numbers(facts, estimate)
    state = facts.superseded_state_bytes
    if state >= max(shortfall, LEAK_SHARE * available, 1) and likely - state <= available:
        return Cause(CauseKind.LEAK, SupersededState(state))
    return None


def _frozen_gradients(facts: Facts, estimate: Estimate | None) -> Cause | None:
    shortfall, available, likely = numbers(facts, estimate)
    gradients = facts.frozen_gradients_bytes
    if gradients >= max(shortfall, LEAK_SHARE * available, 1) and likely - gradients <= available:
        return Cause(CauseKind.WEIGHTS, FrozenGradients(gradients))
    return None


def _has_bounded_need(facts: Facts, estimate: Estimate | None) -> bool:
    """Whether more memory can have been enough. Graphs that accumulate may fill any device."""
    return not (waits_for_backward(facts) or (estimate is not None and estimate.may_grow))


def _memory_limit(facts: Facts, estimate: Estimate | None) -> Cause | None:
    _, _, likely = numbers(facts, estimate)
    whole = facts.available_without_limit_bytes or 0
    fits = likely <= whole and _has_bounded_need(facts, estimate)
    if fits and facts.limit_bytes is not None and (facts.asked_bytes or 0) <= (facts.free_bytes or 0):
        return Cause(CauseKind.LIMIT, MemoryLimit(facts.free_bytes, facts.limit_bytes, facts.reserved_bytes))
    return None


def _other_processes(facts: Facts, estimate: Estimate | None) -> Cause | None:
    _, available, likely = numbers(facts, estimate)
    others = facts.others_bytes or 0
    fits = likely <= available + others and _has_bounded_need(facts, estimate)
    if fits and others >= max(lacking_bytes(facts, estimate), facts.idle_bytes or 0):
        return Cause(CauseKind.OTHER_PROCESS, OtherProcesses(others))
    return None


def _used_elsewhere(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """Device memory that neither PyTorch has nor a named process; the part that CUDA itself may need here is left out."""
    _, available, likely = numbers(facts, estimate)
    elsewhere = facts.outside_pytorch_bytes or 0
    others = elsewhere - CONTEXT_BYTES
    least = max(lacking_bytes(facts, estimate), facts.idle_bytes or 0, int(CONTEXT_SHARE * (facts.total_bytes or 0)))
    if others > least and likely <= available + others:
        return Cause(CauseKind.OTHER_PROCESS, UsedElsewhere(elsewhere))
    return None


def _grown_outside(facts: Facts, estimate: Estimate | None) -> Cause | None:
    _, available, likely = numbers(facts, estimate)
    outside, before = facts.outside_bytes, facts.outside_before_bytes
    grown = 0 if outside is None or before is None else max(0, outside - before)
    fits = likely <= available + grown and _has_bounded_need(facts, estimate)
    if fits and grown >= max(lacking_bytes(facts, estimate), facts.idle_bytes or 0):
        return Cause(CauseKind.OUTSIDE_PYTORCH, GrownOutside(outside or 0, grown))
    return None


def _weight_copy(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """A copy of the weights in a variable, if all fits without it; otherwise free blocks or all weights would be the cause."""
    _, available, likely = numbers(facts, estimate)
    size = facts.named_copy_bytes
    fixed = _unknown_parts(facts, estimate) is None and (facts.fixed_bytes or 0) > available
    least = max(lacking_bytes(facts, estimate), facts.idle_bytes or 0, 1)
    if size < least or likely - size > available or not (fixed or _fragmentation(facts, estimate)):
        return None
    return Cause(CauseKind.WEIGHTS, WeightCopy(facts.copy_name, facts.copy_line, size))


def _fragmentation(facts: Facts, estimate: Estimate | None) -> Cause | None:
    # Where graphs of many forwards are alive and no backward has come, more of them keep coming: one block would be
    # full soon.
    if not fits_in_one_block(facts, estimate) or waits_for_backward(facts):
        return None
    _, available, _ = numbers(facts, estimate)
    return Cause(
        CauseKind.FRAGMENTATION,
        FreeBlocks(facts.idle_bytes or 0, facts.used_bytes or 0, facts.asked_bytes or 0, available),
    )


def _unknown_parts(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if None in (facts.parameters_bytes, facts.fixed_bytes, facts.working_bytes, facts.weights_bytes):
        _, available, _ = numbers(facts, estimate)
        exceeds = (facts.used_bytes or 0) + (facts.asked_bytes or 0) > available
        return Cause(CauseKind.UNKNOWN, NotKnown(Missing.PARTS, available, exceeds))
    return None


def _fixed_parts(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """Weights, gradients and state alone exceed the available memory."""
    _, available, _ = numbers(facts, estimate)
    fixed = facts.fixed_bytes or 0
    if fixed <= available:
        return None
    # Where other models or copies are too much, they are the cause; a model that is wanted, if the update fits without it.
    update = 0 if facts.copies_bytes else update_bytes(facts)
    other_models = facts.other_models_bytes > 0 and fixed - facts.other_models_bytes + update <= available
    state = weights_bytes(facts) <= available and facts.full_state_bytes > 0 and not other_models
    return _parts(CauseKind.OPTIMIZER if state else CauseKind.WEIGHTS, Limiting.FIXED, facts, estimate)


def _optimizer_update(facts: Facts, estimate: Estimate | None) -> Cause | None:
    return _parts(CauseKind.OPTIMIZER, Limiting.UPDATE, facts, estimate) if facts.phase == "optimizer" else None


def _weights_being_loaded(facts: Facts, estimate: Estimate | None) -> Cause | None:
    if facts.phase not in ("other", "data", None):
        return None
    working = facts.working_bytes or 0
    before_training = working < (facts.parameters_bytes or 0) and not facts.step
    moving = facts.waiting_bytes > 0 and working <= (facts.weights_bytes or 0)
    if before_training or facts.is_reading or moving or facts.copy_of:
        return _parts(CauseKind.WEIGHTS, Limiting.LOADING, facts, estimate)
    return None


def _data_on_device(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """Outside of a step nothing else needs memory than what the program puts there itself.

    Within one, data without a graph need not be there. It is the cause where it is most of what has no owner, and more than weights
    or state, and where the step fits without it as far as that is known.
    """
    _, available, likely = numbers(facts, estimate)
    outside_step = is_outside_step(facts)
    factor = SAME_ORDER if estimate is not None and estimate.is_crude else 1.0
    fits = facts.phase in ("forward", "backward") and likely - facts.data_bytes <= factor * available
    alone = fits and (1 - AS_LARGE) * facts.data_bytes > max(weights_bytes(facts), facts.full_state_bytes)
    unowned = (facts.working_bytes or 0) + (0 if outside_step else facts.asked_bytes or 0)
    least = max(facts.shortfall_bytes or 0, DATA_SHARE * unowned, 1)
    if (outside_step or alone) and facts.data_bytes >= least:
        return _parts(CauseKind.DATA, Limiting.STEP, facts, estimate)
    return None


def _before_forward(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """Before any forward pass there are no activations: what has no owner is what the program made."""
    if facts.is_before_first_forward and (facts.working_bytes or 0) + (facts.asked_bytes or 0) > weights_bytes(facts):
        return _parts(CauseKind.DATA, Limiting.BEFORE, facts, estimate)
    return None


def _outside_step(facts: Facts, estimate: Estimate | None) -> Cause | None:
    """Tensors that the program makes between two steps, or after the last: more than the steps or the model need."""
    in_step = max(0, (facts.peak_before_bytes or 0) - (facts.fixed_bytes or 0))
    if is_outside_step(facts) and facts.outside_step_bytes > max(in_step, facts.full_state_bytes, weights_bytes(facts)):
        return _parts(CauseKind.DATA, Limiting.OUTSIDE, facts, estimate)
    return None


def _largest_part(facts: Facts, estimate: Estimate | None) -> Cause | None:
    _, available, likely = numbers(facts, estimate)
    fixed, working = facts.fixed_bytes or 0, facts.working_bytes or 0
    weights, state = weights_bytes(facts), facts.full_state_bytes
    data = min(facts.data_bytes, working)
    in_step = facts.phase in ("forward", "backward", "eval") or working > 0
    activations = working - data + (facts.asked_bytes or 0 if in_step else 0)
    if fixed < NEARLY_ALL * available:  # otherwise no batch is small enough to help much
        activations = max(activations, likely - fixed - data)
    parts = (
        (activations, CauseKind.ACTIVATIONS),
        (data, CauseKind.DATA),
        (state, CauseKind.OPTIMIZER),
        (weights, CauseKind.WEIGHTS),
    )
    # Of parts that are as large the last by name: weights, with their gradients, rather than the state, which follows from them.
    most = max(size for size, _ in parts)
    largest = max((kind for size, kind in parts if size >= (1 - AS_LARGE) * most), key=lambda kind: kind.value)
    if facts.phase == "eval" and not facts.full_gradients_bytes and weights < NEARLY_ALL * available:
        largest = CauseKind.ACTIVATIONS
    return _parts(largest, Limiting.STEP, facts, estimate)


Rule = Callable[[Facts, Estimate | None], Cause | None]
RULES: Final[tuple[Rule, ...]] = (
    _worker_not_killed,
    _host_memory,
    _library_request,
    _other_software,
    _limit_of_mps,
    _refused_by_fraction,
    _larger_than_device,
    _too_few_numbers,
    _free_was_enough,
    _retained_leak,
    _growth_leak,
    _superseded_state,
    _frozen_gradients,
    _memory_limit,
    _other_processes,
    _used_elsewhere,
    _grown_outside,
    _weight_copy,
    _fragmentation,
    _unknown_parts,
    _fixed_parts,
    _optimizer_update,
    _weights_being_loaded,
    _data_on_device,
    _before_forward,
    _outside_step,
    _largest_part,
)
"""Rules from ``_retained_leak`` on may rely on the numbers that ``_too_few_numbers`` asks for."""


def _parts(kind: CauseKind, reason: Limiting, facts: Facts, estimate: Estimate | None) -> Cause:
    _, available, likely = numbers(facts, estimate)
    data, working = min(facts.data_bytes, facts.working_bytes or 0), facts.working_bytes or 0
    outside = 0
    if reason is Limiting.OUTSIDE:
        outside = min(working - data, facts.outside_step_bytes - (facts.asked_bytes or 0))
    elif reason is Limiting.BEFORE:
        outside = working - data
    return Cause(
        kind,
        MemoryParts(
            reason=reason,
            parameters_bytes=facts.parameters_bytes or 0,
            waiting_bytes=facts.waiting_bytes,
            buffers_bytes=facts.buffers_bytes or 0,
            other_models_bytes=facts.other_models_bytes,
            gradients_bytes=facts.full_gradients_bytes,
            bucket_bytes=facts.bucket_bytes,
            state_bytes=facts.full_state_bytes,
            data_bytes=data,
            outside_bytes=outside,
            working_bytes=working - data - outside,
            asked_bytes=0 if facts.waiting_bytes else facts.asked_bytes or 0,
            likely_bytes=likely,
            rest_is_known=estimate is not None and estimate.working_bytes is not None and not estimate.is_crude,
            available_bytes=available,
        ),
    )
