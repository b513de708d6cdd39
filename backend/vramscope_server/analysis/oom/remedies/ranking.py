"""What would have been enough, what it saves, what it costs, and from where each number comes: the best first.

``enough`` is said only where a replay, a run that was made, or arithmetic with its error on the safe side says so; None is
"may be". Those that are enough come first, and of them the cheapest to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.demand import Need
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.oom_record import BlackBox
from vramscope_server.analysis.oom.remedies import alternatives, batch, defragment, optimizer_state, remove_cause
from vramscope_server.analysis.oom.remedies.remedy import Case, OtherRun, Remedy, Replay

ROOMS: Final = (remove_cause, defragment, alternatives, batch, optimizer_state)
WORTH_SHARE: Final = 0.01
"""of the room: what is not enough for sure and saves less is not worth a line"""


def remedies(
    facts: Facts,
    box: BlackBox,
    need: Need | None,
    cause: str,
    *,
    replay: Replay = lambda confs: [],
    others: Sequence[OtherRun] = (),
) -> list[Remedy]:
    """``replay`` is asked only where free pieces may have been enough; it may give nothing."""
    room, shortfall = facts.room_bytes, facts.shortfall_bytes
    if room is None or shortfall is None or need is None or facts.asked_bytes is None:
        return []
    case = Case(facts, box, need, cause, room, shortfall, replay, others)
    found = [_weighed(remedy, case) for one in ROOMS for remedy in one.of(case)]
    found = [remedy for remedy in found if _is_worth_a_line(remedy, room)]
    order = {True: 0, None: 1, False: 2}
    return sorted(found, key=lambda remedy: (order[remedy.enough], remedy.rank, -(remedy.saves_bytes or 0)))


def _is_worth_a_line(remedy: Remedy, room_bytes: int) -> bool:
    if remedy.enough or (remedy.enough is None and remedy.saves_bytes is None):
        return True
    return (remedy.saves_bytes or 0) >= WORTH_SHARE * room_bytes


def _weighed(remedy: Remedy, case: Case) -> Remedy:
    """What saves less than was lacking is not enough; and what is no cure may be, but is so not for sure.

    With less needed a leak only lasts longer, and pieces are still pieces.
    """
    if remedy.technique == "allocator" or remedy.run_id is not None:
        return remedy
    if remedy.saves_bytes is not None and remedy.saves_bytes < case.shortfall_bytes:
        return replace(remedy, enough=False)
    uncured = case.cause == "fragmentation" or (case.cause == "leak" and remedy.source != "measured")
    return replace(remedy, enough=None) if uncured and remedy.enough else remedy
