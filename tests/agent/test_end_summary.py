"""What a run says on the terminal when it ends, and which findings are worth a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from wire_maker import leak

from vramscope.memory.host import highest_resident_bytes
from vramscope.memory.peak_counters import Interval
from vramscope.protocol import messages
from vramscope.protocol.leak_notes import is_note
from vramscope.sampling.end_summary import EndState, change_line, leak_line, peak_line, print_summary, problem_lines
from vramscope.sampling.highest_step import HighestStep, HighestSteps
from vramscope.steps.phase import BACKWARD, FORWARD
from vramscope.steps.records import CategoryBytes, PhaseInterval, StepRecord

MIB = 1 << 20
GIB = 1 << 30


def step(number: int, peaks: dict[int, int], *, reserved: int = 0, split: CategoryBytes | None = None) -> StepRecord:
    """A step with the peak of each phase, on device 0."""
    intervals = [
        PhaseInterval(phase, 0, 0, [Interval(peak, reserved or peak, 0, 0, 0)]) for phase, peak in peaks.items()
    ]
    breakdown = None if split is None else [(split, split)]
    return StepRecord(number, 0, intervals, 1, True, 0, (0,), breakdown)


def scan(*leaks: messages.Leak, **more: Any) -> messages.Scan:
    return messages.Scan(time_ns=0, step=9, reason="", seconds=0.1, tensors=5, leaks=list(leaks), **more)


HIGHEST = HighestStep(0, 2, FORWARD, True, 100 * MIB, 200 * MIB, None)._replace(device=-1)
EVAL_MODE = messages.Pitfall(
    kind="checkpointing-not-seen",
    text="Nothing was recomputed.",
    advice="call model.train() before the loop",
    first_step=5,
)


def ended(**changes: Any) -> EndState:
    """The end of a run in which nothing is wrong."""
    return EndState(highest=HIGHEST, scan=scan(), findings=[], rises=False, survived=0, failed=False)._replace(
        **changes
    )


def test_the_highest_step_is_kept_with_its_phase_and_parts() -> None:
    split = CategoryBytes(parameters=30 * MIB, activations=60 * MIB, other=10 * MIB)
    highest = HighestSteps()
    assert highest.highest() is None
    highest.put([step(1, {FORWARD: 10 * MIB, BACKWARD: 90 * MIB})])
    highest.put([step(2, {FORWARD: 20 * MIB, BACKWARD: 100 * MIB}, split=split)])
    highest.put([step(3, {FORWARD: 20 * MIB}, reserved=200 * MIB)])
    found = highest.highest()
    assert found == HighestStep(0, 2, BACKWARD, True, 100 * MIB, 200 * MIB, split)
    assert peak_line(found, GIB) == (
        "Peak: 100 MiB allocated, 200 MiB reserved of 1.00 GiB, in step 2 (backward). "
        "60 % activations and temporaries, 30 % parameters, 10 % other."
    )


def test_what_was_not_measured_is_left_out() -> None:
    plain = step(40, {FORWARD: 100 * MIB})._replace(watched=False, steps=8)
    highest = HighestSteps()
    highest.put([plain])
    found = highest.highest()
    assert found is not None and peak_line(found, None) == "Peak: 100 MiB allocated, 100 MiB reserved, in step 40."


@pytest.mark.parametrize(
    ("of", "line"),
    [
        pytest.param(None, "", id="never scanned"),
        pytest.param(scan(), "No leak found up to step 9, the last one scanned.", id="none"),
        pytest.param(
            msgspec.structs.replace(scan(), tensors=0),
            "No sign of a leak: GPU memory after step 9 was no higher than after the second step.",
            id="no scan needed",
        ),
        pytest.param(scan(not_scanned="a part"), "", id="incomplete"),
        pytest.param(
            scan(leak("growing", "history", held_bytes=3 * MIB)), "1 leak found: history retains 3.00 MiB.", id="one"
        ),
        pytest.param(
            scan(leak("growing", "history", held_bytes=3 * MIB), leak("cycle", "Node", held_bytes=4 * MIB)),
            "2 leaks found, the largest: Node retains 4.00 MiB.",
            id="two",
        ),
        pytest.param(
            scan(leak("overlap", "loss", peak_effect_bytes=MIB)),
            "No leak found up to step 9, the last one scanned.",
            id="note",
        ),
        pytest.param(
            scan(leak("overlap", "out", held_bytes=6 * MIB, peak_effect_bytes=6 * MIB)),
            "No leak found up to step 9, the last one scanned. out retains 6.00 MiB longer than needed.",
            id="overlap",
        ),
        pytest.param(
            scan(leak("tensor-growth", "all_preds", held_bytes=40 * MIB, emptied_after=20)),
            "No leak found up to step 9, the last one scanned. all_preds retains up to 40.0 MiB until it is emptied.",
            id="emptied",
        ),
    ],
)
def test_leaks_are_counted_as_on_the_pages(of: messages.Scan | None, line: str) -> None:
    assert leak_line(of, 100 * MIB) == line


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        pytest.param({}, ["No leak found up to step 9, the last one scanned. No other problems found."], id="nothing"),
        pytest.param({"findings": None}, ["No leak found up to step 9, the last one scanned."], id="pitfalls unknown"),
        pytest.param({"failed": True}, ["No leak found up to step 9, the last one scanned."], id="failed"),
        pytest.param({"scan": None}, [], id="never scanned"),
        pytest.param({"rises": True}, [], id="memory rises"),
        pytest.param(
            {"survived": 2},
            ["The program survived 2 out-of-memory errors.", "No leak found up to step 9, the last one scanned."],
            id="survived",
        ),
        pytest.param(
            {"findings": [EVAL_MODE, EVAL_MODE]},
            [
                "Finding (1 more on the page): Nothing was recomputed.",
                "No leak found up to step 9, the last one scanned.",
            ],
            id="pitfalls",
        ),
    ],
)
def test_no_problem_is_claimed_only_where_all_was_looked_for(changes: dict[str, Any], lines: list[str]) -> None:
    assert problem_lines(ended(**changes)) == lines


def test_the_first_change_to_try_has_its_number_where_it_is_known() -> None:
    fix = leak("growing", "history", held_bytes=9 * MIB, peak_effect_bytes=8 * MIB, file="/a/train.py", line=87)
    small = leak("cycle", "Node", held_bytes=4 * MIB, peak_effect_bytes=None)
    line = change_line(scan(small, fix), [EVAL_MODE], 100 * MIB)
    assert line == f"Most worth trying: {fix.advice.rstrip('.')} (train.py:87). The peak falls by 8.00 MiB."
    without = leak("growing", "history", held_bytes=MIB, peak_effect_bytes=None, growth_bytes_per_step=2.0 * MIB)
    assert change_line(scan(without), [], 100 * MIB).endswith(" It grows by 2.00 MiB a step.")
    assert change_line(scan(), [EVAL_MODE], 100 * MIB) == "Most worth trying: call model.train() before the loop."
    assert change_line(scan(), [], 100 * MIB) == ""
    assert change_line(None, [], 100 * MIB) == ""


def test_a_summary_has_at_most_eight_lines(capsys: pytest.CaptureFixture[str]) -> None:
    several = scan(leak("growing", "history", held_bytes=9 * MIB), leak("cycle", "Node", held_bytes=9 * MIB))
    print_summary(ended(scan=several, findings=[EVAL_MODE] * 3, survived=1), "http://server/runs/r", rank=None)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 6 and all(line.startswith("vramscope: ") for line in said)
    assert said[-1] == "vramscope: Details: http://server/runs/r"


def test_no_leak_is_denied_where_memory_rises() -> None:
    assert leak_line(scan(), 100 * MIB, rises=True) == ""
    assert leak_line(scan(leak("growing", "rows", held_bytes=MIB)), 100 * MIB, rises=True) != ""


def test_memory_of_the_host_is_neither_a_leak_nor_none() -> None:
    on_host = leak("tensor-growth", "rows", peak_effect_bytes=0, examples=["9 x float32[4] on cpu"])
    assert leak_line(scan(on_host), 100 * MIB) == ""


def test_a_higher_peak_after_the_last_step_counts() -> None:
    highest = HighestSteps()
    highest.put([step(1, {FORWARD: 10 * MIB})])
    highest.put_tails([messages.Tail(device=0, peak_allocated_bytes=5 * MIB, peak_reserved_bytes=9 * MIB)])
    highest.put_tails(
        [messages.Tail(device=0, peak_allocated_bytes=30 * MIB, peak_reserved_bytes=40 * MIB, phase="eval")]
    )
    found = highest.highest()
    assert found is not None and peak_line(found, None) == (
        "Peak: 30.0 MiB allocated, 40.0 MiB reserved, after the last step (eval)."
    )


def test_one_of_several_ranks_says_which_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    highest = HighestStep(0, 2, FORWARD, True, 10 * MIB, 20 * MIB, None)._replace(device=-1)
    print_summary(ended(highest=highest), "http://server/runs/r", rank=0)
    said = capsys.readouterr().err
    assert (
        "vramscope: Rank 0: Peak: 10.0 MiB" in said
        and "vramscope: Rank 0: No leak found up to step 9, the last one scanned. No other" in said
    )


def test_a_training_on_the_cpu_has_a_summary_of_what_is_known_there(capsys: pytest.CaptureFixture[str]) -> None:
    kept = leak("growing", "history", held_bytes=9 * MIB, peak_effect_bytes=None)
    state = ended(highest=None, scan=scan(kept), cpu_steps=1200)
    print_summary(state, "http://server/runs/r", rank=None)
    first, *rest = capsys.readouterr().err.splitlines()
    start = "vramscope: 1,200 steps on the CPU, where PyTorch does not count memory. The process had at most "
    assert first.startswith(start) and first.endswith(" of the host's memory, files and libraries included.")
    assert rest[0] == "vramscope: 1 leak found: history retains 9.00 MiB."
    assert rest[-1] == "vramscope: Details: http://server/runs/r"
    never_scanned = msgspec.structs.replace(scan(), tensors=0)
    assert problem_lines(state._replace(scan=never_scanned)) == [], "GPU memory says nothing about such a training"


def test_a_run_without_a_step_ends_silently(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(ended(highest=None), "http://server/runs/r", rank=None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("found", "note"),
    [
        pytest.param(leak("growing", "losses", held_bytes=1), False, id="growth without end"),
        pytest.param(leak("tensor-growth", "rows", held_bytes=4 * MIB, emptied_after=9), True, id="small and emptied"),
        pytest.param(leak("tensor-growth", "rows", held_bytes=5 * MIB, emptied_after=9), False, id="large and emptied"),
        pytest.param(leak("growing", "rows", held_bytes=MIB, full_bytes=9 * MIB), False, id="large when full"),
        pytest.param(leak("overlap", "loss", peak_effect_bytes=0), True, id="without effect"),
        pytest.param(leak("overlap", "loss", peak_effect_bytes=None), True, id="effect unknown"),
        pytest.param(leak("overlap", "out", peak_effect_bytes=2 * MIB), False, id="with effect"),
    ],
)
def test_a_finding_with_a_bound_counts_from_a_share_of_the_peak(found: messages.Leak, note: bool) -> None:
    assert is_note(found, 100 * MIB) is note


@pytest.mark.parametrize(
    ("growth", "end"), [(2.0 * MIB, "(train.py:87). It grows by 2.00 MiB a step."), (0.2, "(train.py:87).")]
)
def test_growth_is_named_where_it_is_a_byte_or_more(growth: float, end: str) -> None:
    one = leak("growing", "history", growth_bytes_per_step=growth, peak_effect_bytes=None, file="/a/train.py", line=87)
    assert change_line(scan(one), [], 100 * MIB).endswith(end)


def test_a_leak_of_unknown_effect_counts_with_what_it_retains() -> None:
    grows = leak(name="history", held_bytes=60 * MIB, peak_effect_bytes=None, advice="append the number")
    overlap = leak(name="out", held_bytes=6 * MIB, peak_effect_bytes=6 * MIB, advice="del out")
    assert "append the number" in change_line(scan(grows, overlap), [], 100 * MIB)


def test_a_container_that_grew_until_the_end_is_named_beside_no_leak() -> None:
    """It is no leak as far as is known, and "no other problems" is not said either."""
    filling = leak(
        "tensor-growth", "cache.entries", held_bytes=3 * MIB, peak_effect_bytes=3 * MIB, file="/x/train.py", line=7
    )
    lines = problem_lines(ended(scan=scan(filling=[filling])))
    assert lines == [
        "No leak found up to step 9, the last one scanned. cache.entries (train.py:7) had grown to 3.00 MiB by then; "
        "whether it has a bound is unknown."
    ]
    assert leak_line(scan(filling=[filling]), GIB, rises=True) == ""
    why = [messages.Transition(state="suspected", reason="slows-down", step=9)]
    slower = msgspec.structs.replace(filling, why=why, growth_bytes_per_step=2048.0)
    assert leak_line(scan(filling=[slower]), GIB).endswith(
        "had grown to 3.00 MiB by then, more and more slowly (by 2.00 KiB a step of late); whether it has a bound is unknown."
    )
    why = [messages.Transition(state="suspected", reason="is-cut", step=9)]
    assert leak_line(scan(filling=[msgspec.structs.replace(filling, why=why)]), GIB).endswith(
        "had grown to 3.00 MiB by then; a line that keeps only a slice of it may bound it."
    )


def test_the_most_memory_of_the_process_is_its_own(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t    640 kB\n")
    assert highest_resident_bytes(status) == 640 * 1024
    status.write_text("Name:\tpython\n")
    assert highest_resident_bytes(status) is None and highest_resident_bytes(tmp_path / "none") is None
