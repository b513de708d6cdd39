"""History of the steps for a record of an error."""

from __future__ import annotations

from vramscope.memory.peak_counters import Interval
from vramscope.oom.step_history import MOST_SIZES, StepHistory
from vramscope.steps.other_arguments import OtherArguments
from vramscope.steps.phase import BACKWARD, DATA, FORWARD, OPTIMIZER
from vramscope.steps.records import PhaseInterval, StepRecord


def step(number: int, shape: tuple[int, ...], before: int, *peaks: tuple[int, int]) -> StepRecord:
    """``before``: allocated before its forward; ``peaks``: (phase, peak allocated)."""

    def cut(allocated: int, peak: int) -> Interval:
        return Interval(**{name: peak if "peak_alloc" in name else allocated for name in Interval._fields})

    stretches = [PhaseInterval(DATA, 0, 1, [cut(before, before)])]
    stretches += [PhaseInterval(phase, 1, 2, [cut(before, peak)]) for phase, peak in peaks]
    return StepRecord(number, 2, stretches, 1, True, 0, (0,), None, largest_inputs={7: shape})


def test_each_input_shape_keeps_its_memory() -> None:
    course = StepHistory()
    small = step(1, (4, 8), 100, (FORWARD, 300), (BACKWARD, 350), (OPTIMIZER, 900))
    large = step(2, (4, 16), 200, (FORWARD, 700), (BACKWARD, 600), (OPTIMIZER, 900))
    course.put([small, large])
    assert course.sizes(0, 7) == [([4, 8], 250), ([4, 16], 500)], "what the optimizer copies goes with no input"
    again = step(3, (4, 8), 200, (FORWARD, 500), (BACKWARD, 480))
    assert course.sizes(0, 7, [again]) == [([4, 8], 300), ([4, 16], 500)]
    assert course.sizes(0, 7) == [([4, 8], 250), ([4, 16], 500)]
    assert (course.sizes(1, 7), course.sizes(0, 8)) == ([], [])


def test_only_the_newest_input_shapes_are_kept() -> None:
    course = StepHistory()
    course.put([step(n, (1, n), 0, (FORWARD, n)) for n in range(1, 200)])
    sizes = course.sizes(0, 7)
    assert (len(sizes), sizes[-1]) == (MOST_SIZES, ([1, 199], 199))
    left_alone = step(200, (2, 2), 0)
    course.put([left_alone])
    assert ([2, 2], 0) not in course.sizes(0, 7), "of one whose phases were not read nothing is known"


def test_a_step_with_less_beside_its_first_argument_says_nothing_of_one_with_more() -> None:
    """Captions that are longer for each picture, edges that are more for each node."""
    course = StepHistory()
    short = step(1, (4, 8), 0, (FORWARD, 300))._replace(beside_inputs={7: OtherArguments(0.5)})
    long = step(2, (4, 8), 0, (FORWARD, 500))._replace(beside_inputs={7: OtherArguments(2.0)})
    bare = step(3, (4, 16), 0, (FORWARD, 400))
    course.put([short, bare])
    assert course.sizes(0, 7, beside=OtherArguments(0.54)) == [([4, 8], 300)]
    assert course.sizes(0, 7, beside=OtherArguments(1.0)) == []
    assert course.sizes(0, 7, [long], beside=OtherArguments(2.0)) == [([4, 8], 500)], "its step was complete"
    assert course.sizes(0, 7) == [([4, 8], 300), ([4, 16], 400)]
    assert course.sizes(0, 7, beside=OtherArguments(0.0, 3)) == [], "none of them was called with such a number"
