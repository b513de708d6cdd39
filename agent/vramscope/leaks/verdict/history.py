"""History of one holder from scan to scan: its state, what each scan saw, and whether it grows, has settled or was emptied."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.periodic import AccumulationCycle, RestartCycle
from vramscope.leaks.verdict.states import HolderState, Reason, Transition

MOST_TRANSITIONS: Final = 16
"""Transitions that are stored; of more, the first ones and the newest."""


@dataclasses.dataclass
class Observation:
    """One holder in one scan."""

    step: int
    iteration: int
    tensors: int
    graphs: int
    held_bytes: int
    reach: int
    """Iterations that the graphs reach back."""
    overlaps: bool
    optimizer: int
    """Id of the optimizer that stepped last."""
    nodes: int
    references: list[weakref.ref[Any]]
    """To the tensors."""
    input_elements: int = 0
    """Elements of the newest input of the model; 0 if unknown."""
    elements: int = 0
    """Elements of the container, tensors or not; 0 where it has no length."""


class HolderHistory:
    """State and observations of one holder. It keeps no tensor."""

    def __init__(self, step: int) -> None:
        self.observations: list[Observation] = []
        self.transitions: list[Transition] = [Transition(HolderState.NEW, Reason.FIRST_SEEN, step)]
        self.highest_tensors = 0
        """Tensors when it was emptied. Only above that it grows again."""
        self.growth: tuple[str, bool] | None = None
        """Kind of its growth, and whether one value's graph gets longer; None where it does not grow."""
        self.accumulation: AccumulationCycle | None = None
        """Present once a container was found to grow."""
        self.restarts: RestartCycle | None = None
        """Present once a graph was found to get longer."""

    @property
    def state(self) -> HolderState:
        return self.transitions[-1].state

    def move(self, state: HolderState, reason: Reason, step: int) -> None:
        """Change the state. A transition that changes neither state nor reason is not stored."""
        if self.transitions[-1][:2] == (state, reason):
            return
        self.transitions.append(Transition(state, reason, step))
        if len(self.transitions) > MOST_TRANSITIONS:
            del self.transitions[MOST_TRANSITIONS // 2]

    def suspect(self, reason: Reason, step: int) -> None:
        if self.state is HolderState.NEW:
            self.move(HolderState.SUSPECTED, reason, step)

    def settle(self, reason: Reason, step: int) -> None:
        """Growth has stopped."""
        self.growth = None
        if self.state is not HolderState.NEW:
            self.move(HolderState.SETTLED, reason, step)

    def empty(self, reason: Reason, step: int) -> None:
        """The tensors are gone. It must have more than it had to be reported again."""
        self.highest_tensors = max(self.highest_tensors, *(seen.tensors for seen in self.observations))
        self.observations.clear()
        self.growth = None
        self.move(HolderState.EMPTIED, reason, step)

    def restart(self, step: int) -> None:
        """A container that is emptied periodically was emptied."""
        self.observations.clear()
        self.move(HolderState.EMPTIED, Reason.EMPTIED_AT_ONCE, step)

    def add(self, now: Observation) -> None:
        self.observations.append(now)
        del self.observations[: -POLICY.remembered_scans]

    @property
    def has_grown(self) -> bool:
        """True where a scan saw more tensors than the one before."""
        return any(one.tensors < two.tensors for one, two in pairwise(self.observations))

    @property
    def emptied_after(self) -> int | None:
        return None if self.accumulation is None else self.accumulation.after


def was_renewed(before: Sequence[Observation]) -> bool:
    """True where all tensors of the previous scan are dead: those of now were made since."""
    return bool(before) and all(reference() is None for reference in before[-1].references)


def rises(scans: list[Observation], value: Callable[[Observation], int], iterations: int, least_scans: int) -> bool:
    """True where a value rose without a fall over that many iterations and scans, and has not slowed down."""
    rising = _rising(scans, value)
    newest, oldest = rising[0], rising[-1]
    span = newest.iteration - oldest.iteration
    # Not simply the previous scan: where optimizers take turns it lies within the same batch.
    recent = span * POLICY.recent_share
    second = next((seen for seen in rising[1:] if newest.iteration - seen.iteration >= recent), oldest)
    gained = value(newest) - value(oldest)
    if len(rising) < least_scans or span < iterations or gained < POLICY.least_rise:
        return False
    pace = (value(newest) - value(second)) / (newest.iteration - second.iteration)
    return pace >= POLICY.recent_pace * gained / span


def gains_elements(seen: Sequence[Observation]) -> bool:
    """True if the container itself has more elements than at the first scan, and not only what is in them."""
    return seen[-1].elements > seen[0].elements


def gains_keys_lately(seen: Sequence[Observation]) -> bool:
    """True if the container has more elements than at any scan of the first half of the iterations."""
    first, last = seen[0], seen[-1]
    early = [one.elements for one in seen if 2 * one.iteration <= first.iteration + last.iteration]
    return last.elements > max(early)


def keys_recur(seen: Sequence[Observation]) -> bool:
    """True if some keys came again: the container got fewer elements than there were iterations, or fewer as time went on."""
    first, last = seen[0], seen[-1]
    if last.elements - first.elements < last.iteration - first.iteration:
        return True
    half = next(one for one in seen if 2 * one.iteration >= first.iteration + last.iteration)
    return half is not last and _pace(_elements, half, last) < POLICY.recent_pace * _pace(_elements, first, half)


def fills_slots(seen: Sequence[Observation]) -> bool:
    """True if each element of the container may get one tensor, and no more: ``cache = [None] * batches``, or objects that compute
    an attribute at its first use. It ends when all have."""
    first, now = seen[0], seen[-1]
    return len(seen) > 1 and now.tensors - first.tensors <= now.elements == first.elements


def lengthens(scans: list[Observation], iterations: int, least_scans: int) -> bool:
    """True where a loop makes one tensor longer and longer. A tensor of varying size, such as a batch of texts, rises over some
    scans by chance: real growth starts no lower than any value before, and keeps its pace from scan to scan."""
    rising = _rising(scans, _bytes)
    start, span = rising[-1], rising[0].iteration - rising[-1].iteration
    highest_before = max((seen.held_bytes for seen in scans if seen.iteration < start.iteration), default=0)
    if rises(scans, _input_elements, iterations, least_scans):
        return False  # the inputs get longer, and each result with them
    if start.held_bytes < highest_before or not rises(scans, _bytes, iterations, least_scans):
        return False
    least = POLICY.steady_pace * _pace(_bytes, start, rising[0])
    later = [now for now in rising if now.iteration - start.iteration >= span * POLICY.recent_share]
    return all(_pace(_bytes, before, now) >= least for now, before in pairwise([*later, start]))


def _rising(scans: list[Observation], value: Callable[[Observation], int]) -> list[Observation]:
    """The newest scans over which the value never fell, newest first, one an iteration."""
    rising = [scans[-1]]
    for seen in reversed(scans[:-1]):
        if value(seen) > value(rising[-1]):
            break
        if seen.iteration < rising[-1].iteration:
            rising.append(seen)
    return rising


def has_settled(scans: list[Observation]) -> bool:
    """True where growth has stopped, or nearly: a cache that fills with ever rarer entries never stops entirely."""
    late = _start_of_recent(scans)
    return late is not None and all(_slowed(value, scans, late) for value in (_tensors, _bytes))


def _start_of_recent(scans: list[Observation]) -> Observation | None:
    """The scan since which a third of the iterations has passed, with another scan in between; None if there is none."""
    now = scans[-1]
    least = max(POLICY.graph_growth_iterations, (now.iteration - scans[0].iteration) * POLICY.settling_share)
    late = next((seen for seen in reversed(scans) if now.iteration - seen.iteration >= least), None)
    if late is None or sum(seen.iteration >= late.iteration for seen in scans) < POLICY.settling_scans:
        return None
    return late


def _slowed(value: Callable[[Observation], int], scans: list[Observation], late: Observation) -> bool:
    return _pace(value, late, scans[-1]) <= POLICY.settled_pace * max(0.0, _pace(value, scans[0], scans[-1]))


def has_shrunk(scans: list[Observation]) -> bool:
    """True where there are fewer bytes than at the scan before: a tensor that a loop lengthens never gets shorter."""
    return len(scans) > 1 and scans[-1].held_bytes < scans[-2].held_bytes


def late_growth(seen: Sequence[Observation]) -> float | None:
    """Bytes per iteration that a container takes lately, if it took more at each scan and now takes it more slowly: it may be
    filling up. None where it is full, was emptied or grows as before."""
    scans = list(seen)
    late = _start_of_recent(scans)
    if late is None or scans[-1].iteration - scans[0].iteration < POLICY.tensor_growth_iterations:
        return None
    rose = all(one.elements <= two.elements and one.tensors <= two.tensors for one, two in pairwise(scans))
    now, pace = scans[-1], _pace(_bytes, late, scans[-1])
    slower = pace < POLICY.recent_pace * _pace(_bytes, scans[0], now)
    takes_more = now.elements > late.elements and now.tensors > late.tensors and pace >= 1
    return pace if rose and slower and takes_more else None


def is_plain_and_dead(seen: Observation) -> bool:
    """True where a holder had tensors without graphs, and most of them are dead. (Graphs that were retained once count.)"""
    alive = sum(reference() is not None for reference in seen.references)
    return not seen.graphs and alive <= POLICY.emptied_share * len(seen.references)


def _pace(value: Callable[[Observation], int], first: Observation, last: Observation) -> float:
    return (value(last) - value(first)) / max(1, last.iteration - first.iteration)


def _input_elements(seen: Observation) -> int:
    return seen.input_elements


def _elements(seen: Observation) -> int:
    return seen.elements


def _tensors(seen: Observation) -> int:
    return seen.tensors


def _bytes(seen: Observation) -> int:
    return seen.held_bytes


def bytes_per_iteration(before: list[Observation], now: Observation) -> float | None:
    """Growth since the first stored scan, or recent growth where it has slowed down; None without an earlier scan. A window of
    tensors fills up beside a sum whose graph gets longer and longer."""
    return _bytes_per(before, now, lambda seen: seen.iteration)


def bytes_per_step(before: list[Observation], now: Observation) -> float | None:
    """The same per training step."""
    return _bytes_per(before, now, lambda seen: seen.step)


def _bytes_per(before: list[Observation], now: Observation, number: Callable[[Observation], int]) -> float | None:
    first = next((seen for seen in before if number(seen) < number(now)), None)
    if first is None:
        return None
    pace = (now.held_bytes - first.held_bytes) / (number(now) - number(first))
    late = _start_of_recent([*before, now])
    if pace > 0 and late is not None and number(late) < number(now) and _slowed(_bytes, [*before, now], late):
        return max(0.0, (now.held_bytes - late.held_bytes) / (number(now) - number(late)))
    return pace


def start_of_growth(scans: list[Observation]) -> int:
    """Iteration in which the holder was empty, extrapolated by its pace."""
    pace, now = _pace(_tensors, scans[0], scans[-1]), scans[-1]
    return round(now.iteration - now.tensors / pace) if pace > 0 else now.iteration - now.reach
