"""The largest batch that fits: what goes with the batch, and what does not.

Condition: the step was recorded with its batch's size and the card is known, and a quarter more rows would fit.
Arithmetic: of what is allocated at each event of the peak's step, input, activations and the temporaries of forward and backward
go with the rows, all else stays; so ``stays + rows / rows now * goes`` must not exceed what PyTorch can have, less 5 % for
loose pieces, at any event. The peak may move: it need not be the present one that fills the card first. What has exactly one
value for each pair of rows (a contrastive loss compares all with all) may go with their square, or be of a layer that is as wide
as the batch is long: how many fit is then told for both, and the fewer counts.
Error: where the recording has steps of other sizes, their peaks are reckoned from this one and compared; else against
trainings that were run with other batches, in docs/anatomy.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.oom_diagnosis.demand import PIECES
from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import weight_copies
from vramscope_server.analysis.ownership.categories import ACTIVATIONS, INPUT, TEMPORARIES
from vramscope_server.analysis.simulator.replay import UNLIMITED
from vramscope_server.analysis.units import amount, percent
from vramscope_server.analysis.whatif.device import card_of

SOURCE: Final = "activations go with the batch, weights and their state do not"
WORTH: Final = 1.25
"""times the rows: less is not worth a sentence"""
FURTHEST: Final = 8
"""times the rows: how the step goes with more of them has not been measured"""
ANOTHER_SIZE: Final = 0.05
"""by which the input of a step must differ to be one of another size"""
VALUE_BYTES: Final = (2, 4)
"""of what such a loss works with"""
LEAST_PAIRS: Final = 0.01
"""of the peak: less does not change how many rows fit"""
LEAST_PART: Final = 0.01
"""of the peak: a smaller gradient is nothing to tell apart"""
IN_STEP: Final = [PHASES.index(phase) for phase in ("data", "forward", "backward")]

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where the batch or the card is not known, or there is no room for more."""
    rows, room = rows_of(facts), room_bytes(facts)
    if rows is None or room is None:
        return None
    goes = scaling_bytes(facts)
    first, last = facts.span
    step, scaled = facts.allocated[first + 1 : last + 2], goes[first + 1 : last + 2]
    some = scaled > 0
    if not some.any():
        return None
    usable = int(room / (1 + PIECES))
    at_most = int(rows * float(((usable - (step - scaled))[some] / scaled[some]).min()))
    pairs = pair_bytes(facts, rows)[first + 1 : last + 2]
    fits = (
        at_most
        if pairs.max() < LEAST_PAIRS * facts.peak_bytes
        else int(rows * times_with_pairs(usable, step, scaled, pairs))
    )
    if fits < WORTH * rows:
        return None
    most = min(fits, FURTHEST * rows)
    words = f"up to {most:,} rows fit" if most == fits else f"{FURTHEST} times the rows fit, and more"
    if most < min(at_most, FURTHEST * rows):
        words += (
            f", if what has one value for each pair of rows ({amount(int(pairs.max()))}) grows with their square, as in a "
            f"contrastive loss; else {'more' if at_most > FURTHEST * rows else f'{at_most:,}'}"
        )
    at_peak = int(goes[facts.peak_event + 1])
    error = error_of(facts, goes)
    seen = "" if error is None else f" (other steps of this recording: off by {percent(error)} at most)"
    return Advice(
        rule="batch",
        sentence=(
            f"The batch of {rows:,} rows takes {amount(at_peak)} of the peak of {amount(facts.peak_bytes)}, "
            f"{amount(at_peak // rows)} a row; all else stays as it is. "
            f"{amount(room)} is what PyTorch can have here: {words}{seen}."
        ),
        saves_bytes=None,
        evidence={
            "batch_size": rows,
            "largest_batch_size": most,
            "goes_with_batch_bytes": at_peak,
            "stays_bytes": facts.peak_bytes - at_peak,
            "room_bytes": room,
            "error": error,
        },
        source=SOURCE,
    )


def rows_of(facts: StepFacts) -> int | None:
    """Of a batch as it is given to the model, which may be more than the loader's; None: not known."""
    told: Mapping[str, Any] = next((one.get("detail", {}) for one in facts.techniques if one["kind"] == "batch"), {})
    rows = told.get("input_rows", told.get("batch_size"))
    return rows if isinstance(rows, int) and rows >= 1 else None


def room_bytes(facts: StepFacts) -> int | None:
    """What PyTorch can have on the recorded card; None: the card is not known."""
    card = card_of(facts.trace)
    return None if card.total_bytes is None else min(card.room_bytes, card.limit_bytes or UNLIMITED)


def scaling_bytes(facts: StepFacts) -> Whole:
    """What goes with the batch of all that is allocated, after each event; element 0 is before the first."""
    return -facts.without(_goes(facts))


def _goes(facts: StepFacts) -> Flags:
    categories = facts.categories
    passing = (categories == TEMPORARIES) & np.isin(_phase_of_birth(facts), IN_STEP)
    chosen: Flags = (categories == ACTIVATIONS) | (categories == INPUT) | passing
    return chosen & ~weight_copies.lifetimes_of(facts) & ~_parts_of_gradients(facts, passing)


def _parts_of_gradients(facts: StepFacts, passing: Flags) -> Flags:
    """Of temporaries, the two gradients of a weight that two modules share (an embedding and the head): both wait for their sum,
    which is the gradient, and are as large as it."""
    lives, parts = facts.trace.lives, np.zeros(len(passing), np.bool_)
    asked, born, gone = lives.requested_bytes, lives.alloc_event, lives.requested_event
    within = facts.in_step() & facts.born_in("backward")
    gradients = facts.is_of("gradients") & within & (asked >= LEAST_PART * facts.peak_bytes)
    for sum_ in np.flatnonzero(gradients).tolist():
        waiting = passing & within & (asked == asked[sum_]) & (born < born[sum_]) & (gone > born[sum_])
        if np.count_nonzero(waiting) == 2:
            parts |= waiting
    return parts


def pair_bytes(facts: StepFacts, rows: int) -> Whole:
    """Of what goes with the batch: what has one value for each pair of rows, or of twice as many (two views), after each event."""
    asked = facts.trace.lives.requested_bytes
    pairs = np.isin(asked, [(views * rows) ** 2 * size for views in (1, 2) for size in VALUE_BYTES])
    return -facts.without(_goes(facts) & pairs)


def times_with_pairs(usable: int, step: Whole, scaled: Whole, pairs: Whole) -> float:
    """How many times the rows fit where ``pairs``, a part of ``scaled``, goes with their square."""
    linear, room = (scaled - pairs).astype(np.float64), (usable - (step - scaled)).astype(np.float64)
    some = scaled > 0
    linear, square, room = linear[some], pairs[some].astype(np.float64), np.maximum(room[some], 0)
    # The root of square t^2 + linear t = room, in the form that holds where square is 0.
    return float((2 * room / (linear + np.sqrt(linear**2 + 4 * square * room))).min())


def peak_at(facts: StepFacts, goes: Whole, times: float) -> int:
    """The peak of the peak's step with so many times the rows."""
    first, last = facts.span
    step, scaled = facts.allocated[first + 1 : last + 2], goes[first + 1 : last + 2]
    return int((step - scaled + times * scaled).max())


def error_of(facts: StepFacts, goes: Whole) -> float | None:
    """By how much the peaks of steps with another input were missed, at most, as a share; None: there are none."""
    lives, steps = facts.trace.lives, facts.trace.events.step
    made = np.flatnonzero((facts.categories == INPUT) & (lives.alloc_event >= 0))
    given = dict.fromkeys(np.unique(steps).tolist(), 0)
    for life, step in zip(made.tolist(), steps[lives.alloc_event[made]].tolist(), strict=True):
        given[step] += int(lives.size_bytes[life])
    own = given.get(facts.step, 0)
    missed = [
        abs(peak_at(facts, goes, size / own) / int(facts.allocated[1:][steps == step].max()) - 1)
        for step, size in given.items()
        if own and size and step != facts.step and abs(size / own - 1) > ANOTHER_SIZE
    ]
    return max(missed, default=None)


def _phase_of_birth(facts: StepFacts) -> npt.NDArray[np.int64]:
    born = facts.phase_intervals.born
    return np.where(born >= 0, facts.phase_intervals.phase[np.maximum(born, 0)], -1)
