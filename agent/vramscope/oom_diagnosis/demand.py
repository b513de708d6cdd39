"""Memory that the training would have needed, had it not run out, estimated from its state at the error.

    needed = fixed + constant + working * share of the batch

*fixed* is weights, a full set of gradients and all of the optimizer's state, allocated or expected. *constant* was
allocated before the forward and has no owner. *working* is what the step had allocated when it failed, and the request.
In the forward it is extrapolated: from what the graph keeps, where the model's blocks are alike and one of them was
done; else from the completed share of the forward. The second is crude, because layers differ, and promises nothing
unless an earlier step bounds it.

So an estimate has three numbers. ``low_bytes`` is certain. ``likely_bytes`` decides about the cause. ``high_bytes``
includes the error and a margin for fragmentation; only a remedy that fits it is called enough.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from vramscope.oom_diagnosis.earlier_steps import (
    BYTES_A_NUMBER,
    LARGER_INPUT_ERROR,
    LEAST_SEGMENT,
    at_most,
    converts_input,
    in_proportion,
    scaled_by_length,
    took_bytes,
)
from vramscope.oom_diagnosis.estimate import UPPER_BOUNDS, Basis, Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input
from vramscope.oom_diagnosis.size_curve import curve_bytes

EXTRAPOLATION_ERROR: Final = 0.5
"""Error of what was still to come of a forward, as a share of it, where it is extrapolated from the graph."""
AFTER_FORWARD_ERROR: Final = 0.10
"""Error after the forward: the rest of a backward frees more than it allocates."""
BEGINNING_GRADIENTS: Final = 2
"""Number of gradients as large as the request that may still come at the begin of a backward: the one that is computed from it,
and one in a block that cannot be used again."""
REPEAT_ERROR: Final = 0.05
"""Error where an earlier step was complete."""
UNEXPLAINED: Final = 0.1
"""Unexplained share of the available memory that is tolerated. More may be graphs of other forwards, which keep coming."""
UNNAMED_RESULTS: Final = 2
"""Allowance for unnamed results of the current line, and their limit as a multiple of UNEXPLAINED."""
MANY_FORWARDS: Final = 4
"""Forwards before one backward. Two or three are two views, or a critic's two batches, of one loss."""
KEPT_MODELS: Final = 2
"""Number of kept models of one size, or states of optimizers, from which on more are expected: folds, members of an ensemble."""
SAME_ORDER: Final = 2.0
"""A crude extrapolation says no more than this factor."""
FIRST_WORKSPACES: Final = 64 << 20
"""Workspaces of cuBLAS, one for the training's thread and one for autograd's, on Hopper; 16 MiB on older devices."""


def waits_for_backward(facts: Facts) -> bool:
    """Whether many forwards of one model have had no backward, so that their graphs may be alive together."""
    return facts.phase == "forward" and facts.forwards >= MANY_FORWARDS and not facts.evaluates


def has_piled_up_state(facts: Facts) -> bool:
    """Whether more than one optimizer keeps state for the weights: one for each restart or task, say. More of them may follow."""
    beside = KEPT_MODELS - (facts.phase == "optimizer")  # another one may be made in this update
    return facts.superseded_state_bytes > 0 or facts.other_state_bytes >= beside * max(
        1, facts.expected_state_bytes or 0
    )


def forward_rest_bytes(facts: Facts) -> int | None:
    """Bytes that the rest of the forward would have kept, at least the gradient of the request; None: not known."""
    if facts.to_come_bytes is None or facts.unexplained_bytes > _explicable_bytes(facts):
        return None
    return max(facts.to_come_bytes, facts.asked_bytes or 0)


def outgrew_bytes(facts: Facts, estimate: Estimate | None) -> int:
    """Bytes by which a step exceeded the last complete one, if the rest of its forward is unknown. 0 elsewhere.

    Its input may be larger, or it calls its layers more often.
    """
    if estimate is None or estimate.working_bytes is not None or facts.phase != "forward":
        return 0
    used, asked, before = facts.used_bytes, facts.asked_bytes, facts.peak_before_bytes
    return max(0, used + asked - before) if used is not None and asked is not None and before else 0


def estimate_of(facts: Facts) -> Estimate | None:
    """Memory that the whole step would have needed; None where too little is known."""
    state = _State.of(facts)
    if state is None:
        return None
    estimate = _estimate(facts, state)
    estimate = replace(
        estimate,
        in_flight_bytes=min(facts.largest_parameter_bytes or 0, facts.full_gradients_bytes),
        update_bytes=facts.update_copies_bytes,
        unscaled_bytes=_unscaled_bytes(facts, state, estimate),
        error_bytes=estimate.error_bytes + _hidden_bytes(facts, estimate),
        absent_gradients_bytes=_absent_gradients_bytes(facts, estimate.basis),
        workspace_bytes=FIRST_WORKSPACES
        if facts.phase == "forward" and not facts.step and facts.trainable_bytes
        else 0,
    )
    if facts.kept_models >= KEPT_MODELS or has_piled_up_state(facts) or facts.more_arrives:
        estimate = replace(estimate, may_grow=True)
    if facts.evaluates and facts.forwards > 1:
        return replace(estimate, likely_bytes=estimate.low_bytes, basis=Basis.EVALUATION_GRAPHS, may_grow=True)
    return estimate


def _unscaled_bytes(facts: Facts, state: _State, estimate: Estimate) -> int:
    """Bytes that may have been computed from the weights, as large a part of the whole step as of what was allocated so far.

    0 where a step with fewer rows bounds this one: it needed them too.
    """
    if facts.phase not in ("forward", "backward") or estimate.basis in UPPER_BOUNDS or state.scaling <= 0:
        return 0
    return int((estimate.working_bytes or 0) * min(1.0, facts.weight_sized_bytes / state.scaling))


def _absent_gradients_bytes(facts: Facts, basis: Basis) -> int:
    """Bytes of gradients that may not have been allocated yet at the peak that an estimate is based on.

    So much more may have been activations. Micro-batches after the first begin with all gradients.
    """
    there = facts.gradients_bytes or 0
    if basis is Basis.FORWARD_DONE:
        return min(there, facts.full_gradients_bytes)
    return max(0, facts.full_gradients_bytes - (there if facts.phase == "forward" else 0))


def _hidden_bytes(facts: Facts, estimate: Estimate) -> int:
    """Bytes that a larger input may need more, because these gradients were absent at the peak of a smaller one."""
    basis, ratio = estimate.basis, facts.input_ratio or 1.0
    absent = _absent_gradients_bytes(facts, basis)
    if basis is Basis.OTHER_SIZES:
        most = curve_bytes(facts.input_shape, facts.input_sizes) or 0.0
        return max(0, int(most) - absent - (estimate.working_bytes or 0) - estimate.error_bytes)
    factors = {
        Basis.SMALLER_INPUT: ratio,
        Basis.MORE_ROWS: ratio * (1 + LARGER_INPUT_ERROR),
        Basis.SQUARE_OF_INPUT: ratio**2,
    }
    return int(absent * max(0.0, factors.get(basis, 1.0) - 1))


class _State(NamedTuple):
    """Numbers that every estimate starts from."""

    fixed: int
    constant: int
    scaling: int
    """Allocated by this step so far, and the request."""
    before: int
    """Allocated by the last complete step."""
    low: int
    asked: int
    owned: int
    """Used bytes with an owner."""

    @property
    def resting(self) -> int:
        return self.fixed + self.constant

    @classmethod
    def of(cls, facts: Facts) -> _State | None:
        fixed, working, asked = facts.fixed_bytes, facts.working_bytes, facts.asked_bytes
        used, low = facts.used_bytes, facts.low_bytes
        if fixed is None or working is None or asked is None or used is None or low is None:
            return None
        constant = facts.constant_bytes
        # The request of a model that is being moved is one of the waiting bytes.
        scaling = working - constant + (0 if facts.waiting_bytes else asked)
        return cls(fixed, constant, scaling, took_bytes(facts, fixed), low, asked, used - working)

    def unknown(self, basis: Basis, likely: int | None = None) -> Estimate:
        """An estimate without an upper bound."""
        return Estimate(self.fixed, self.constant, None, 0, self.low, max(self.low, likely or 0), basis)

    def known(self, working: float, error: float, likely: float, basis: Basis) -> Estimate:
        """``error``: as a share of working."""
        whole = int(working)
        most_likely = max(self.low, self.resting + int(likely))
        return Estimate(self.fixed, self.constant, whole, int(working * error), self.low, most_likely, basis)


def _estimate(facts: Facts, state: _State) -> Estimate:
    if facts.state_is_unknown:
        return state.unknown(Basis.STATE_UNKNOWN)
    if facts.thread is not None:
        return state.unknown(Basis.OTHER_THREAD)
    if waits_for_backward(facts):
        return state.unknown(Basis.FORWARDS_WITHOUT_BACKWARD)
    scaled = scaled_by_length(facts, state.before)
    if scaled is not None and scaled >= state.scaling:
        whole = int(scaled)
        return replace(state.known(whole, 0, whole, Basis.SMALLER_INPUT), error_bytes=int(scaled * LARGER_INPUT_ERROR))
    if facts.phase == "forward" and (_has_begun(facts) or _is_bounded(facts, state)):
        return _in_forward(facts, state)
    if facts.phase == "backward":
        return _in_backward(facts, state)
    if facts.phase == "optimizer":
        return _in_optimizer(facts, state)
    if facts.phase == "data" and state.asked <= (facts.peak_before_bytes or 0):
        return _between_steps(facts, state)
    if facts.phase in ("data", "other") and facts.peak_before_bytes:
        # A batch larger than any before allocates many times its own size; and between two steps it may be no batch.
        return state.unknown(Basis.BETWEEN_STEPS_UNKNOWN, state.resting + state.before)
    return _elsewhere(facts, state)


def _in_forward(facts: Facts, state: _State) -> Estimate:
    extrapolated, error, basis = _extrapolated(facts, state.scaling)
    ratio = (facts.input_ratio or 1.0) if has_larger_input(facts) else 1.0
    if not _has_begun(facts):
        extrapolated = max(state.scaling, state.before * ratio)
    full, (most, why) = extrapolated, at_most(facts)
    if why is not None and state.scaling <= most and (error is None or most < extrapolated * (1 + error)):
        full, basis = min(extrapolated, most), why
        error = max(most / full - 1, REPEAT_ERROR) if full else REPEAT_ERROR
    # A larger input needs at least as many times as much, if no more than is extrapolated.
    before = state.before
    scaled = before * ratio - (_batch_bytes(facts, state) if ratio > 1 else 0)
    likely = max(before, min(scaled, full)) if before * ratio >= full / SAME_ORDER else full
    if error is None and before < full:
        return replace(state.known(full, 0, likely, basis), is_crude=True)
    return _or_the_step_before(state, full, error or REPEAT_ERROR, likely, basis)


def _in_backward(facts: Facts, state: _State) -> Estimate:
    """From here on activations are freed as gradients are made: the memory used so far is the most that is likely."""
    full = max(state.scaling, (facts.peak_now_bytes or 0) - state.owned - state.constant)
    if not facts.recomputes:
        begins = BEGINNING_GRADIENTS * state.asked / full if facts.gradients_begin and full else 0
        return _or_the_step_before(state, full, AFTER_FORWARD_ERROR + begins, 0.0, Basis.FORWARD_DONE)
    # How much of the part is still to come is not known: at least one more request like this one.
    return state.unknown(Basis.FORWARD_REST_UNKNOWN, state.resting + int(full) + state.asked)


def _in_optimizer(facts: Facts, state: _State) -> Estimate:
    """The peak of this step's forward and backward, and the state that was not allocated then."""
    there = facts.optimizer_bytes or 0 if facts.step else 0
    full = max(0, (facts.peak_now_bytes or 0) + facts.full_state_bytes - there - state.resting)
    owned_then = (facts.weights_bytes or 0) + (facts.gradients_bytes or 0) + facts.bucket_bytes + there
    return replace(
        state.known(full, AFTER_FORWARD_ERROR, full, Basis.BACKWARD_DONE),
        in_update=True,
        beside_update_bytes=max(0, (facts.before_update_bytes or 0) - owned_then - state.constant),
    )


def _between_steps(facts: Facts, state: _State) -> Estimate:
    """Before a step: this request, and a step like the last one, are known to be wanted."""
    if _may_be_the_batch(facts):
        full = max(state.scaling, state.before)
        return _or_the_step_before(state, full, REPEAT_ERROR, 0.0, Basis.BETWEEN_STEPS)
    # The same, but a smaller batch makes nothing less of the request.
    rest = max(0, state.before - state.scaling)
    likely = state.resting + state.scaling
    if not facts.gradients_bytes and state.owned + state.asked + facts.full_gradients_bytes > (
        facts.peak_before_bytes or 0
    ):
        likely = state.low  # if the last step made this request, it was freed before there were gradients
    return Estimate(
        state.fixed,
        state.constant + state.scaling,
        rest,
        int((state.scaling + rest) * REPEAT_ERROR),
        state.low,
        max(state.low, likely),
        Basis.BETWEEN_STEPS_NOT_THE_BATCH,
        may_grow=facts.other_models_bytes > 0,
    )


def _elsewhere(facts: Facts, state: _State) -> Estimate:
    basis = Basis.FORWARD_REST_UNKNOWN if facts.phase in ("forward", "eval", None) else Basis.NO_FORWARD
    # Free blocks must suffice for the rest of the forward too: with a cache of keys it grows as with gradients.
    drawn = state.low
    if facts.phase == "forward" and not facts.step and facts.trainable_bytes and not facts.no_graph_yet:
        drawn += state.asked  # the gradient of the request, at least
    if facts.phase == "eval" and facts.progress:
        drawn = state.resting + int(state.scaling / facts.progress)
    return state.unknown(basis, state.low if state.before >= (drawn - state.resting) / SAME_ORDER else drawn)


def _or_the_step_before(state: _State, full: float, error: float, likely: float, basis: Basis) -> Estimate:
    """This estimate, or the last complete step where that needed more."""
    if state.before >= full:
        full, error, basis = state.before, REPEAT_ERROR, Basis.EARLIER_STEP
    return state.known(full, error, likely, basis)


def _batch_bytes(facts: Facts, state: _State) -> int:
    """Bytes that came between the last step and this forward, at most the input's: constant here, and of the last step a part."""
    came = state.constant - max(0, (facts.end_before_bytes or 0) - state.fixed)
    return max(0, min(came, BYTES_A_NUMBER * prod(facts.input_shape) if facts.input_shape else 0))


def _may_be_the_batch(facts: Facts) -> bool:
    """Whether a request between two steps is no larger than the last step's input can be."""
    most = BYTES_A_NUMBER * prod(facts.input_shape_before) + LEAST_SEGMENT if facts.input_shape_before else 0
    return (facts.asked_bytes or 0) <= most


def _has_begun(facts: Facts) -> bool:
    """Whether a module has ended, so that the rest of the forward can be extrapolated."""
    return bool(facts.progress) or facts.to_come_bytes is not None


def _is_bounded(facts: Facts, state: _State) -> bool:
    """Whether earlier steps bound what this one allocates: of two sizes, or the request converts the input.

    Any other request of the outermost module may go with the square of the rows.
    """
    most, why = at_most(facts)
    return state.scaling <= most and (why is Basis.OTHER_SIZES or (why is Basis.MORE_ROWS and converts_input(facts)))


def _explicable_bytes(facts: Facts) -> float:
    """Tolerated bytes beside a forward whose beginning was not observed: a little, and unnamed results of the current line.

    Of ``a(x) + b(x)`` one has no name while the other is made; it is about as large as the request.
    """
    available = facts.available_bytes or 0
    unnamed = min(UNNAMED_RESULTS * (facts.asked_bytes or 0), UNNAMED_RESULTS * UNEXPLAINED * available)
    return UNEXPLAINED * available + unnamed


def _extrapolated(facts: Facts, scaling: int) -> tuple[float, float | None, Basis]:
    """Bytes that the step allocates in all, extrapolated from its forward; the error as a share of it (None: not known).

    scaling   allocated so far, and the request
    """
    rest = forward_rest_bytes(facts)
    if rest is None:
        return scaling / (facts.progress or 1.0), None, Basis.PROGRESS
    full = max(1, scaling + rest)
    error = max(EXTRAPOLATION_ERROR * rest, BEGINNING_GRADIENTS * (facts.asked_bytes or 0) - rest)
    proportional, most = in_proportion(facts)
    if most > full + error + AFTER_FORWARD_ERROR * full:  # more may come than this model's rest and its loss
        return max(full, proportional), LARGER_INPUT_ERROR, Basis.SMALLER_INPUT
    return full, error / full + AFTER_FORWARD_ERROR, Basis.GRAPH
