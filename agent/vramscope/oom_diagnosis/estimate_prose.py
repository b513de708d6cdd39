"""Sentences for the evidence of an estimate, and for a larger input."""

from __future__ import annotations

from typing import Final

from vramscope.oom_diagnosis.demand import forward_rest_bytes
from vramscope.oom_diagnosis.estimate import Basis, Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input
from vramscope.protocol.number_format import amount

_BASIS: Final = {
    Basis.STATE_UNKNOWN: "the size of the optimizer's state is not known",
    Basis.OTHER_THREAD: "a request of another thread does not depend on the training's batch",
    Basis.BACKWARD_DONE: "forward and backward passes had ended",
    Basis.FORWARD_DONE: "the forward pass had ended",
    Basis.EARLIER_STEP: "an earlier step was complete",
    Basis.OTHER_SIZES: "earlier steps with inputs of other sizes were complete",
    Basis.BETWEEN_STEPS: "earlier steps were complete",
    Basis.BETWEEN_STEPS_NOT_THE_BATCH: "the request came between two steps and is not the batch; earlier steps were complete",
    Basis.BETWEEN_STEPS_UNKNOWN: "the request came between two steps; it may not depend on the batch",
    Basis.FORWARD_REST_UNKNOWN: "the rest of the forward pass is unknown",
    Basis.NO_FORWARD: "no forward pass had started",
}


def basis_words(estimate: Estimate, facts: Facts) -> str:
    """Evidence of an estimate, as a clause."""
    basis = estimate.basis
    if basis in _BASIS:
        return _BASIS[basis]
    if basis is Basis.FORWARDS_WITHOUT_BACKWARD:
        return f"{facts.forwards} forwards had no backward; which share is the last one's, and how many follow, is not known"
    if basis is Basis.EVALUATION_GRAPHS:
        return (
            f"{facts.forwards} forwards of an evaluation: how many graphs are kept, and how many follow, is not known"
        )
    if basis is Basis.GRAPH:
        rest = forward_rest_bytes(facts) or 0
        return f"extrapolated from the completed layers: {amount(rest)} more for the rest of the forward pass"
    if basis is Basis.PROGRESS:
        return _crude(facts)
    larger = (
        f"an earlier step was complete. {input_words(facts)}"
        if has_larger_input(facts)
        else "an earlier step was complete"
    )
    if basis is Basis.MORE_ROWS:
        return f"{larger}, in more rows of the same length"
    if basis is Basis.SQUARE_OF_INPUT:
        return f"{larger}. Assumed: memory grows at most with the square of the input"
    return larger  # Basis.SMALLER_INPUT


def _crude(facts: Facts) -> str:
    unknown = _BASIS[Basis.FORWARD_REST_UNKNOWN]
    if facts.unexplained_bytes >> 20:
        return f"{amount(facts.unexplained_bytes)} do not belong to this forward pass; {unknown}"
    return unknown if facts.progress is None else f"about {facts.progress:.0%} of the forward pass had run; {unknown}"


def input_words(facts: Facts) -> str:
    """Both shapes of a larger input."""
    now, before = (" x ".join(f"{size:,}" for size in shape) for shape in (facts.input_shape, facts.input_shape_before))
    return f"This step's input is {now}, {facts.input_ratio:.3g} times the largest of the step before ({before})"
