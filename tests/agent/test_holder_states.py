"""States of a holder: each transition has a reason, which is sent with the finding."""

from __future__ import annotations

import torch

from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders import wording
from vramscope.leaks.holders.holder_bytes import group_of
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.registry import FindingRegistry
from vramscope.leaks.verdict.advice import Advice
from vramscope.leaks.verdict.history import MOST_TRANSITIONS, HolderHistory
from vramscope.leaks.verdict.holder_verdict import HolderVerdict
from vramscope.leaks.verdict.states import HolderState, Reason, Transition
from vramscope.protocol import series
from vramscope.steps.clock import StepClock

KEY = HolderKey(HolderKind.LOCAL, "train", "train.py", "rows")
WHY = (
    Transition(HolderState.NEW, Reason.FIRST_SEEN, 3),
    Transition(HolderState.REPORTED, Reason.TENSORS_INCREASE, 21),
)


def test_the_protocol_knows_every_state_and_reason() -> None:
    assert tuple(state.value for state in HolderState) == series.LEAK_STATES
    assert tuple(reason.value for reason in Reason) == series.LEAK_REASONS


def test_a_repeated_transition_is_not_stored() -> None:
    history = HolderHistory(3)
    history.suspect(Reason.MORE_THAN_BEFORE, 7)
    history.move(HolderState.REPORTED, Reason.TENSORS_INCREASE, 21)
    history.move(HolderState.REPORTED, Reason.TENSORS_INCREASE, 29)
    assert [one.step for one in history.transitions] == [3, 7, 21]


def test_the_number_of_transitions_is_bounded() -> None:
    history = HolderHistory(0)
    for step in range(100):
        history.move(HolderState.EMPTIED if step % 2 else HolderState.REPORTED, Reason.FILLS_AGAIN, step)
    assert len(history.transitions) == MOST_TRANSITIONS
    assert history.transitions[0].state is HolderState.NEW and history.transitions[-1].step == 99


def test_growth_that_stops_settles_the_holder() -> None:
    history = HolderHistory(3)
    history.move(HolderState.REPORTED, Reason.TENSORS_INCREASE, 21)
    history.growth = ("tensor-growth", False)
    history.settle(Reason.GROWTH_STOPPED, 59)
    assert history.state is HolderState.SETTLED and history.growth is None


def test_a_withdrawn_finding_is_sent_with_its_reasons() -> None:
    scans = []
    registry = FindingRegistry(StepClock(), scans.append)
    holder = wording.nameless_holder(KEY, "rows", "local 'rows' of train()", [], "train.py", 3, "train")
    group = group_of(holder, [torch.zeros(64, 64) for _ in range(3)], {}, NodeBudget())
    registry.add(HolderVerdict("tensor-growth", group, 3, None, 1.0, Advice("keep less of it", 0), why=WHY))
    registry.send("a test")
    assert [(one.state, one.reason, one.step) for one in scans[-1].leaks[0].why] == [
        ("new", "first-seen", 3),
        ("reported", "tensors-increase", 21),
    ]
    registry.withdraw({KEY: Reason.GROWTH_STOPPED})
    registry.send("a test")
    (closed,) = scans[-1].closed
    assert scans[-1].leaks == [] and closed.name == "rows"
    assert [one.state for one in closed.why] == ["new", "reported", "settled"]
