"""How much the training would have needed in all, had it not run out: from where it stood when it did.

    needed = fixed + what does not depend on the batch + working * share of the batch

*fixed* is weights, a full set of gradients and all of the optimizer's state, made or to come. *working* is what the step had
made when it died, and what it asked for; in the forward it is drawn out. By what its graph kept, where its blocks are alike and one
of them was over; else by how far the forward was, which is crude (layers differ) and promises nothing, unless an earlier step
bounds it. So there are two numbers. For blame, what is likely: where the drawn-out number is of the order of what earlier steps
took, what those took. For a remedy, the larger one with its error, within which nothing counts as enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Final

from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.size_curve import curve_bytes

DRAWN_OUT: Final = 0.5
"""error of what was still to come of a forward, as a share of it, where it is drawn out from what its graph kept"""
DIED_LATER: Final = 0.10
"""where the forward was over: the rest of a backward frees more than it makes"""
STEADY: Final = 0.05
"""where an earlier step had reached its end"""
UNEXPLAINED: Final = 0.1
"""of the room, that may lie beside a forward which was not heard to begin: more may be graphs of others, which go on coming"""
NAMELESS: Final = 2
"""results of the line that runs, and at most so many times as much as may lie beside"""
PIECES: Final = 0.05
"""of what is needed, what must be reserved beyond it, as pieces never fit quite"""
MANY_FORWARDS: Final = 4
"""before one backward: two or three are two views, or a critic's two batches, of one loss"""
LONGER: Final = 0.25
"""where it follows from a step with a shorter input: what goes with rows alone, or with neither, is a part of it"""
GREW: Final = 1.1
"""times as large: what is called larger"""
BYTES_A_NUMBER: Final = 8
"""at most, of an input whose kind of numbers is not known"""
LEAST_SEGMENT: Final = 20 << 20
"""what the allocator takes for a tensor of 1 MiB"""
SAME_ORDER: Final = 2.0
"""what is drawn out from a part of the forward says no more than that"""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that PyTorch would have needed; ``error_bytes``: by how much that may be too little."""

    fixed_bytes: int
    beside_bytes: int
    """used before the forward and none of the owners': does not shrink with the batch"""
    working_bytes: int | None
    """that scales with the batch; None: how much was still to come is not known"""
    error_bytes: int
    least_bytes: int
    """known to be needed for certain"""
    likely_bytes: int
    """what the step would have come to, without any error or loose pieces; ``least_bytes`` where that is not known"""
    words: str
    update_bytes: int = 0
    """of ``foreach``: the optimizer's copies of all that it updates, where that is what it died of"""
    in_flight_bytes: int = 0
    """of one gradient more, where micro-batches add up: it is made before it is added to the one that is there"""
    crude: bool = False
    """``working_bytes`` is drawn out from layers that say little of the rest: no more than a guess"""
    grew: bool = False
    """something that went on growing may have been in the midst of it (a copy of weights, graphs that an evaluation keeps): how
    much of it was to come is not known"""

    def at(self, share: float = 1.0, *, less: int = 0, without_growth: bool = False) -> int | None:
        """With this share of the batch, and so much less of the rest; error and loose pieces included.

        without_growth   what is less is all that went on growing, so that nothing more of it comes
        """
        if self.working_bytes is None or self.crude or (self.grew and not without_growth):
            return None
        working = max((self.working_bytes + self.error_bytes) * share, self.update_bytes)
        more = self.in_flight_bytes if share < 1 else 0
        most = self.fixed_bytes + self.beside_bytes + more + working - less
        return int(max(most, 0) * (1 + PIECES))

    def fits(self, room_bytes: int, share: float = 1.0, *, less: int = 0, without_growth: bool = False) -> bool | None:
        """Whether that is enough room; None: it may be."""
        most = self.at(share, less=less, without_growth=without_growth)
        if most is not None and most <= room_bytes:
            return True
        least = self.least_bytes - less
        return False if share == 1.0 and least > room_bytes else None

    def largest_share(self, room_bytes: int) -> float | None:
        """Of the batch, that fits for sure: above 1 a larger one does; None: none, or that is not known."""
        if self.working_bytes is None or self.crude or self.update_bytes:
            return None
        left = room_bytes / (1 + PIECES) - self.fixed_bytes - self.beside_bytes - self.in_flight_bytes
        working = self.working_bytes + self.error_bytes
        return left / working if left > 0 and working > 0 else None


def waits_for_backward(facts: Facts) -> bool:
    """Many forwards of one model and no backward: their graphs may be alive together (where nothing of them was let go)."""
    return facts.phase == "forward" and facts.forwards >= MANY_FORWARDS and not facts.evaluates


def input_words(facts: Facts) -> str:
    """That the input is larger than the last step's, with both shapes; "" where it is not, or that is not known."""
    times = facts.input_times
    if times is None or times < GREW or facts.phase not in ("forward", "backward"):
        return ""
    now, before = (" x ".join(f"{size:,}" for size in shape) for shape in (facts.input_shape, facts.input_shape_before))
    return f"this step's input is {now}, the last one's was at most {before}: {times:.3g} times as much"


def _may_be_the_batch(facts: Facts) -> bool:
    """What was asked for between two steps is no larger than the last step's input is at most."""
    most = BYTES_A_NUMBER * prod(facts.input_shape_before) + LEAST_SEGMENT if facts.input_shape_before else 0
    return (facts.asked_bytes or 0) <= most


def _of_longer(facts: Facts, before_bytes: int) -> float | None:
    """What the step before took, for as many rows of a greater length; None elsewhere. Rows are drawn out of the forward."""
    if _by_sizes(facts) is not None:
        return None  # (which says more)
    same_rows = facts.input_shape[:1] == facts.input_shape_before[:1]
    if not input_words(facts) or not same_rows or not facts.goes_with_length or not before_bytes:
        return None
    return before_bytes * (facts.input_times or 0.0)


def _at_most(facts: Facts) -> tuple[float, str]:
    """The most that a step makes, from what earlier ones made of their inputs, and why; 0 where they say nothing of it."""
    curve = _by_sizes(facts)
    if curve is not None:
        return curve, "earlier steps had reached their end, with inputs of other sizes"
    times = facts.input_times
    grows = bool(facts.growth_bytes or facts.leaked_bytes) and not facts.evaluates
    if times is None or not facts.peak_before_bytes or grows:
        return 0.0, ""
    fixed = facts.fixed_bytes or 0
    took = _took_bytes(facts, fixed)
    words = "an earlier step had reached its end"
    if times <= 1 or not input_words(facts):
        return took * max(1.0, times), words
    words += f", and {input_words(facts)}"
    if facts.only_more_rows:
        return took * times * (1 + LONGER), f"{words}, in more rows of the same length"
    return took * times**2, f"{words}; at most it goes with the square of that, if nothing has a value for each triple"


def _took_bytes(facts: Facts, fixed_bytes: int) -> int:
    """What the last good step made. Of what lies beside by now, only that which was there when it ended was a part of its peak."""
    beside = min(facts.beside_bytes, max(0, (facts.end_before_bytes or 0) - fixed_bytes))
    return max(0, (facts.peak_before_bytes or 0) - fixed_bytes - beside)


def _by_sizes(facts: Facts) -> float | None:
    """The same from steps whose inputs had other sizes; None where they say nothing of it."""
    gradients = facts.full_gradients_bytes
    return curve_bytes(facts.input_shape, [(shape, risen - gradients) for shape, risen in facts.input_sizes])


def _explicable_bytes(facts: Facts) -> float:
    """What may lie beside a forward that was not heard to begin: a little, and what has no name yet in the line that runs (of
    ``a(x) + b(x)`` the one, while the other is made), which is of the size of what was asked for."""
    room = facts.room_bytes or 0
    return UNEXPLAINED * room + min(NAMELESS * (facts.asked_bytes or 0), NAMELESS * UNEXPLAINED * room)


def _of_forward(facts: Facts, scaling: int) -> tuple[float, float | None, str]:
    """What the step makes in all, drawn out from where its forward died, with the error of that (None: nobody knows) and its
    words. ``scaling``: made so far, and asked for."""
    # (At least the gradient of what was asked for, while all that was made before it is there.)
    to_come = None if facts.to_come_bytes is None else max(facts.to_come_bytes, facts.asked_bytes or 0)
    if facts.unexplained_bytes > _explicable_bytes(facts):
        to_come = None
    done = (
        ""
        if facts.progress is None
        else f"the forward was {facts.progress:.0%} done, by its modules and how wide their outputs are"
    )
    if to_come is None:
        return scaling / (facts.progress or 1.0), None, done
    full = max(1, scaling + to_come)
    words = (
        f"what the graph of its forward kept so far, drawn out over the blocks to come, {to_come / (1 << 20):,.0f} MiB"
    )
    return full, DRAWN_OUT * to_come / full + DIED_LATER, words


def outgrew_bytes(facts: Facts, need: Need | None) -> int:
    """By how much a step with a larger input wanted more than the last good one took, when it died in a forward of which nobody
    knows how much was to come. 0 elsewhere."""
    if need is None or need.working_bytes is not None or facts.phase != "forward" or not input_words(facts):
        return 0
    used, asked, before = facts.used_bytes, facts.asked_bytes, facts.peak_before_bytes
    return max(0, used + asked - before) if used is not None and asked is not None and before else 0


def need_of(facts: Facts) -> Need | None:
    """None where the record tells too little."""
    need = _drawn_out(facts)
    if need is not None:
        need = replace(need, in_flight_bytes=min(facts.largest_parameter_bytes or 0, facts.full_gradients_bytes))
    if need is not None and facts.evaluates and facts.forwards > 1:
        words = f"{facts.forwards} forwards of an evaluation: how much of their graphs is kept, and how many come, is not known"
        return replace(need, likely_bytes=need.least_bytes, words=words, grew=True)
    return need


def _drawn_out(facts: Facts) -> Need | None:
    fixed, working, asked = facts.fixed_bytes, facts.working_bytes, facts.asked_bytes
    used, least = facts.used_bytes, facts.least_bytes
    if fixed is None or working is None or asked is None or used is None or least is None:
        return None
    beside = facts.beside_bytes
    # (Of a model on its way what is asked for is among what is waited for.)
    scaling, resting = working - beside + (0 if facts.waiting_bytes else asked), fixed + beside
    before = _took_bytes(facts, fixed)
    if facts.state_is_unknown:
        return Need(fixed, beside, None, 0, least, least, "how much state the optimizer will keep is not known")
    if facts.thread is not None:
        return Need(
            fixed, beside, None, 0, least, least, "what another thread asks for goes with no batch of the training's"
        )
    if waits_for_backward(facts):
        words = f"{facts.forwards} forwards and no backward: how much is the last one's, and how many were to come, is not known"
        return Need(fixed, beside, None, 0, least, least, words)
    longer = _of_longer(facts, before)
    if longer is not None and longer >= scaling:
        words = f"an earlier step had reached its end, and {input_words(facts)}"
        return Need(fixed, beside, int(longer), int(longer * LONGER), least, max(least, resting + int(longer)), words)
    if facts.phase == "forward" and (facts.progress or facts.to_come_bytes is not None):
        drawn, error, words = _of_forward(facts, scaling)
        times = (facts.input_times or 1.0) if input_words(facts) else 1.0
        full, (most, why) = drawn, _at_most(facts)
        if scaling <= most and (error is None or most < drawn * (1 + error)):
            full, words = min(drawn, most), why
            error = max(most / full - 1, STEADY)
        # A larger input takes at least as many times as much, if no more than is drawn out.
        likely = max(before, min(before * times, full)) if before >= full / SAME_ORDER else full
        if error is None and before < full:
            beside_it = facts.unexplained_bytes >> 20
            words = f"{beside_it:,} MiB lie beside this forward, whatever made them" if beside_it else words
            words += f"{'; ' if words else ''}how much of it was to come is not known"
            return Need(fixed, beside, int(full), 0, least, max(least, resting + int(likely)), words, crude=True)
        error = error or STEADY
    elif facts.phase == "backward":
        # (From here on activations go as gradients come: what there was, and was asked for, is the most that is likely.)
        likely, full = 0.0, max(scaling, (facts.peak_now_bytes or 0) - (used - working) - beside)
        error, words = DIED_LATER, "the forward was over"
    elif facts.phase == "optimizer":
        # What this step's forward and backward took at most, and beside it the state that was not there then.
        state, there = facts.full_state_bytes, facts.optimizer_bytes or 0 if facts.step else 0
        full = max(0, (facts.peak_now_bytes or 0) + state - there - resting)
        copies = facts.update in ("foreach", None)
        words, update = "forward and backward were over", (facts.trainable_bytes or 0) if copies else 0
        return Need(fixed, beside, full, int(full * DIED_LATER), least, max(least, resting + full), words, update)
    elif facts.phase == "data" and asked <= (facts.peak_before_bytes or 0) and _may_be_the_batch(facts):
        # Before a step: this request, and a step as the last one, are what is known to be wanted.
        likely, full = 0.0, max(scaling, before)
        error, words = STEADY, "earlier steps had reached their end"
    elif facts.phase == "data" and asked <= (facts.peak_before_bytes or 0):
        # The same, but a smaller batch makes nothing less of it.
        rest, likely = max(0, before - scaling), max(least, resting + scaling)
        words = "what was asked for between two steps is no batch; earlier steps had reached their end"
        grew = facts.other_models_bytes > 0
        error = int((scaling + rest) * STEADY)
        return Need(fixed, beside + scaling, rest, error, least, likely, words, grew=grew)
    elif facts.phase in ("data", "other") and facts.peak_before_bytes:
        # A batch larger than any before makes many times as much as itself; and between two steps it may be no batch.
        words = "between two steps: what was asked for, and what it would have led to, need not go with the batch"
        return Need(fixed, beside, None, 0, least, max(least, resting + before), words)
    else:
        of_forward = facts.phase in ("forward", "eval", None)
        words = "how much of the forward was still to come is not known" if of_forward else "no forward had begun"
        # For blame what lies free must do for the rest of the forward too: with a cache of keys it grows as with gradients.
        drawn = resting + int(scaling / facts.progress) if facts.phase == "eval" and facts.progress else least
        likely = least if before >= (drawn - resting) / SAME_ORDER else drawn
        return Need(fixed, beside, None, 0, least, max(least, likely), words)
    if before >= full:
        full, error, words = before, STEADY, "an earlier step had reached its end"
    return Need(fixed, beside, int(full), int(full * error), least, max(least, resting + int(likely)), words)
