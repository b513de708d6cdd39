"""Advice on the largest batch that fits, from the memory that scales with the batch.

Condition: batch size and device are known, and a quarter more rows would fit.
Calculation: at each event of the peak's step, input, activations and the temporaries of forward and backward scale with the
rows, and all else is constant. ``constant + rows / current rows * scaled`` must not exceed the memory available to PyTorch,
minus 5 % for fragmentation, at any event. The peak may move to another event. Tensors with exactly one value per pair of rows
(a contrastive loss) may scale with the square of the rows, or belong to a layer as wide as the batch. The sentence then has
both results, and the smaller one counts.
Error: if the recording has steps of other sizes, their peaks are predicted from this step and compared. Otherwise
docs/anatomy.md compares it with trainings that ran with other batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN
from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import weight_copies
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent
from vramscope_server.analysis.ownership.categories import ACTIVATIONS, CUBLAS_BYTES, INPUT, TEMPORARIES
from vramscope_server.analysis.simulator.replay import UNLIMITED
from vramscope_server.analysis.whatif.device import target_device_of

SOURCE: Final = "activations go with the batch, weights and their state do not"
WORTH: Final = 1.25
"""Minimum ratio of rows."""
FURTHEST: Final = 8
"""Maximum ratio of rows. Larger batches were not measured."""
ANOTHER_SIZE: Final = 0.05
"""Minimum relative difference of inputs for a step of another size."""
VALUE_BYTES: Final = (2, 4)
"""Bytes per value of a loss over pairs."""
MIN_PAIRS: Final = 0.01
"""Minimum share of the peak. Less does not change the number of rows that fit."""
MIN_PART: Final = 0.01
"""Minimum share of the peak of a gradient that is examined."""
IN_STEP: Final = [PHASES.index(phase) for phase in ("data", "forward", "backward")]

Flags = npt.NDArray[np.bool_]


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if batch or device are unknown, or no larger batch fits."""
    rows, available = rows_of(facts), available_bytes(facts)
    if rows is None or available is None:
        return None
    scaling = scaling_bytes(facts)
    first, last = facts.span
    step, scaled = facts.allocated[first + 1 : last + 2], scaling[first + 1 : last + 2]
    scales = scaled > 0
    if not scales.any():
        return None
    usable = int(available / (1 + FRAGMENTATION_MARGIN))
    at_most = int(rows * float(((usable - (step - scaled))[scales] / scaled[scales]).min()))
    pairs = pair_bytes(facts, rows)[first + 1 : last + 2]
    fits = (
        at_most
        if pairs.max() < MIN_PAIRS * facts.peak_bytes
        else int(rows * times_with_pairs(usable, step, scaled, pairs))
    )
    if fits < WORTH * rows:
        return None
    most = min(fits, FURTHEST * rows)
    fit = f"up to {most:,} rows fit" if most == fits else f"at least {FURTHEST} times as many rows fit"
    if most < min(at_most, FURTHEST * rows):
        fit += (
            f" if the tensors with one value per pair of rows ({amount(int(pairs.max()))}) grow with the square of the batch, "
            f"as in a contrastive loss; otherwise {'more' if at_most > FURTHEST * rows else f'{at_most:,}'}"
        )
    at_peak = int(scaling[facts.peak_event + 1])
    error = error_of(facts, scaling)
    measured = "" if error is None else f" (maximum error on other steps of this recording: {percent(error)})"
    return Advice(
        rule="batch",
        sentence=(
            f"The batch of {rows:,} rows takes {amount(at_peak)} of the peak of {amount(facts.peak_bytes)}, "
            f"{amount(at_peak // rows)} per row. In the {amount(available)} available to PyTorch {fit}{measured}."
        ),
        saves_bytes=None,
        evidence={
            "batch_size": rows,
            "largest_batch_size": most,
            "goes_with_batch_bytes": at_peak,
            "stays_bytes": facts.peak_bytes - at_peak,
            "room_bytes": available,
            "error": error,
        },
        source=SOURCE,
    )


def rows_of(facts: StepFacts) -> int | None:
    """Rows of the model's input, which may be more than the loader's batch; None if unknown."""
    detail: Mapping[str, Any] = next((one.get("detail", {}) for one in facts.techniques if one["kind"] == "batch"), {})
    rows = detail.get("input_rows", detail.get("batch_size"))
    return rows if isinstance(rows, int) and rows >= 1 else None


def available_bytes(facts: StepFacts) -> int | None:
    """Memory available to PyTorch on the recorded device; None if the device is unknown."""
    device = target_device_of(facts.trace)
    return None if device.total_bytes is None else min(device.room_bytes, device.limit_bytes or UNLIMITED)


def scaling_bytes(facts: StepFacts) -> IntArray:
    """Allocated bytes that scale with the batch, after each event; element 0 is before the first event."""
    return -facts.without(_scales(facts))


def _scales(facts: StepFacts) -> Flags:
    categories = facts.categories
    temporary = (categories == TEMPORARIES) & np.isin(_phase_of_allocation(facts), IN_STEP)
    chosen: Flags = (categories == ACTIVATIONS) | (categories == INPUT) | temporary
    constant = weight_copies.allocations_of_copies(facts) | _gradient_addends(facts, temporary)
    return chosen & ~constant & ~workspaces_of_one_product(facts)


def workspaces_of_one_product(facts: StepFacts) -> Flags:
    """Workspaces of one cuBLAS product each, freed before any other event, as PyTorch has them from 2.15 on."""
    lives = facts.trace.lives
    is_freed_at_once: Flags = lives.free_requested_event == lives.alloc_event + 1
    return is_freed_at_once & np.isin(lives.requested_bytes, CUBLAS_BYTES)


def _gradient_addends(facts: StepFacts, temporary: Flags) -> Flags:
    """Temporaries that are the two gradients of a shared weight (embedding and head). Their sum is the weight's gradient."""
    lives, addends = facts.trace.lives, np.zeros(len(temporary), np.bool_)
    requested, made, freed = lives.requested_bytes, lives.alloc_event, lives.free_requested_event
    within = facts.in_step() & facts.allocated_in("backward")
    gradients = facts.is_of("gradients") & within & (requested >= MIN_PART * facts.peak_bytes)
    for sum_ in np.flatnonzero(gradients).tolist():
        waiting = temporary & within & (requested == requested[sum_]) & (made < made[sum_]) & (freed > made[sum_])
        if np.count_nonzero(waiting) == 2:
            addends |= waiting
    return addends


def pair_bytes(facts: StepFacts, rows: int) -> IntArray:
    """Scaling bytes of tensors with one value per pair of rows, or of twice the rows (two views), after each event."""
    return -facts.without(_scales(facts) & np.isin(facts.trace.lives.requested_bytes, pair_sizes(rows)))


def pair_sizes(rows: int) -> list[int]:
    """Bytes of a tensor with one value per pair of rows, or of twice the rows."""
    return [(views * rows) ** 2 * size for views in (1, 2) for size in VALUE_BYTES]


def times_with_pairs(usable: int, step: IntArray, scaled: IntArray, pairs: IntArray) -> float:
    """Ratio of rows that fit if ``pairs``, a part of ``scaled``, scales with the square of the rows."""
    linear, room = (scaled - pairs).astype(np.float64), (usable - (step - scaled)).astype(np.float64)
    some = scaled > 0
    linear, square, room = linear[some], pairs[some].astype(np.float64), np.maximum(room[some], 0)
    # The root of square t^2 + linear t = room, in a form that is valid if square is 0.
    return float((2 * room / (linear + np.sqrt(linear**2 + 4 * square * room))).min())


def peak_at(facts: StepFacts, scaling: IntArray, times: float) -> int:
    """Peak of the peak's step with this ratio of rows."""
    first, last = facts.span
    step, scaled = facts.allocated[first + 1 : last + 2], scaling[first + 1 : last + 2]
    return int((step - scaled + times * scaled).max())


def error_of(facts: StepFacts, scaling: IntArray) -> float | None:
    """Maximum relative error of the predicted peaks of steps with another input size; None if there are none."""
    lives, steps = facts.trace.lives, facts.trace.events.step
    made = np.flatnonzero((facts.categories == INPUT) & (lives.alloc_event >= 0))
    input_bytes = dict.fromkeys(np.unique(steps).tolist(), 0)
    for life, step in zip(made.tolist(), steps[lives.alloc_event[made]].tolist(), strict=True):
        input_bytes[step] += int(lives.size_bytes[life])
    own = input_bytes.get(facts.step, 0)
    errors = [
        abs(peak_at(facts, scaling, size / own) / int(facts.allocated[1:][steps == step].max()) - 1)
        for step, size in input_bytes.items()
        if own and size and step != facts.step and abs(size / own - 1) > ANOTHER_SIZE
    ]
    return max(errors, default=None)


def _phase_of_allocation(facts: StepFacts) -> IntArray:
    born = facts.phase_intervals.born
    return np.where(born >= 0, facts.phase_intervals.phase[np.maximum(born, 0)], -1)
