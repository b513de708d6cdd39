"""The effect on the peak: from where in the step a thing died, and never a claim where that is not known."""

import torch

from vramscope.leaks.verdict.peak_effect import NOT_MEASURED, NOT_ON_CPU, PeakFollower, avoidable_bytes, effect_of_made
from vramscope.memory.peak_counters import Interval
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER
from vramscope.steps.records import PhaseInterval

AFTER_BACKWARD = avoidable_bytes([], 30, read_late=False, before_backward=False)
AFTER_FORWARD = avoidable_bytes([], 30, read_late=False, before_backward=True)


class Thing:
    pass


def step(*peaks):
    """A step in as many stretches, each with its phase and its peak."""
    return [PhaseInterval(phase, 0, 1, [Interval(peak, peak, 0, peak, 0)]) for phase, peak in peaks]


def test_what_lives_through_the_whole_step_counts_in_full():
    thing = Thing()
    follower = PeakFollower([thing], 30, cut=lambda: 0)
    assert follower.effect(step((FORWARD, 100), (BACKWARD, 90)), 0, AFTER_FORWARD).peak_bytes == 30


def test_what_dies_before_the_peak_saves_nothing_there():
    thing = Thing()
    follower = PeakFollower([thing], 30, cut=lambda: 0)
    del thing
    assert follower.effect(step((FORWARD, 60), (FORWARD, 100), (OPTIMIZER, 50)), 0, AFTER_BACKWARD).peak_bytes == 0


def test_a_death_at_which_nothing_could_be_cut_is_not_known():
    """In another thread, or while a CUDA graph is captured: the thing is gone, but from when on nobody can say."""
    thing = Thing()
    follower = PeakFollower([thing], 30, cut=lambda: None)
    del thing
    assert follower.effect(step((FORWARD, 100), (BACKWARD, 90)), 0, AFTER_FORWARD) == NOT_MEASURED


def test_without_peaks_the_effect_is_not_known():
    assert PeakFollower([Thing()], 30, cut=lambda: 0).effect([], 0, AFTER_FORWARD) == NOT_ON_CPU


def test_what_backward_needs_is_not_promised_there():
    """softmax's backward needs what softmax gave: a `del` before it frees nothing until it is over."""
    x = torch.ones(2, 256, requires_grad=True)
    weights, shifted = x.softmax(1), x + 1
    for things, falls in ([weights], 0), ([shifted], 2048), ([weights, shifted], 2048):
        held_bytes = 2048 * len(things)
        follower = PeakFollower(things, held_bytes, cut=lambda: 0)
        follower.died_after = -1
        peaks = step((FORWARD, 6000), (BACKWARD, 10000), (OPTIMIZER, 5000))
        avoidable = avoidable_bytes(things, held_bytes, read_late=False, before_backward=True)
        assert follower.effect(peaks, 0, avoidable).peak_bytes == falls


def test_what_is_read_after_backward_is_promised_nowhere_in_its_own_step():
    thing = Thing()
    follower = PeakFollower([thing], 30, cut=lambda: 0)
    del thing
    late = avoidable_bytes([], 30, read_late=True, before_backward=True)
    assert follower.effect(step((FORWARD, 60), (BACKWARD, 100), (OPTIMIZER, 50)), 0, late).peak_bytes == 0
    assert follower.effect(step((FORWARD, 100), (BACKWARD, 60), (OPTIMIZER, 50)), 0, late).peak_bytes == 30


def effect_since(since, died_after, *peaks):
    thing = Thing()
    follower = PeakFollower([thing], 30, cut=lambda: died_after)
    if died_after is not None:
        del thing
    return effect_of_made([(follower, since)], step(*peaks), 0)


def test_what_a_step_makes_counts_from_there_to_its_death():
    peaks = (FORWARD, 60), (FORWARD, 70), (BACKWARD, 100), (OPTIMIZER, 65)
    assert effect_since(0, None, *peaks).peak_bytes == 30, "70 in backward without it, 60 before it was made"
    assert effect_since(0, 2, *peaks).peak_bytes == 30
    assert effect_since(1, 2, *peaks).peak_bytes == 30
    assert effect_since(0, 1, *peaks).peak_bytes == 0, "gone before the peak"


def test_what_remains_when_it_is_gone_is_the_new_peak():
    assert effect_since(0, 1, (FORWARD, 95), (BACKWARD, 100), (OPTIMIZER, 90)).peak_bytes == 5


def test_in_the_forward_that_makes_it_the_effect_is_not_known():
    assert effect_since(0, 1, (FORWARD, 100), (BACKWARD, 90)).peak_bytes is None
