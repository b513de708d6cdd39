"""The detector on every labelled loop: the right kind, holder, line and bytes; on innocent and on mended loops, silence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from child import ANSWER_WITHIN_SECONDS
from corpus import Case, cases
from judge import faults
from truth import Truth

from vramscope.protocol import messages, series


def on_devices(mended: bool) -> list[Any]:
    """(device, loop) with the marks of each; all of a device run in one process, whose start costs seconds."""
    parameters = []
    for device in ("cuda",) if mended else ("cpu", "cuda"):
        for name, case in sorted(cases().items(), key=lambda item: item[1].truth.frameworks):
            if mended and case.truth.innocent:
                continue
            marks = [pytest.mark.xdist_group(f"leaks-{device}"), pytest.mark.timeout(2 * ANSWER_WITHIN_SECONDS)]
            if device == "cuda":
                marks.append(pytest.mark.gpu)
            if case.truth.frameworks:
                marks.append(pytest.mark.frameworks)
            parameters.append(pytest.param(device, name, marks=marks, id=f"{device}-{name}"))
    return parameters


@pytest.mark.parametrize(("device", "name"), on_devices(mended=False))
def test_what_the_detector_says_is_the_truth(watched, device: str, name: str) -> None:
    scans = watched.scans(device, name)
    assert faults(cases()[name], scans, device) == []


@pytest.mark.parametrize(("device", "name"), on_devices(mended=True))
def test_of_a_mended_loop_it_says_nothing(watched, device: str, name: str) -> None:
    scans = watched.scans(device, name, mended=True)
    assert faults(dataclasses.replace(cases()[name], truth=Truth(why="mended")), scans, device) == []


def test_the_corpus_is_large_and_fair() -> None:
    innocent = [case for case in cases().values() if case.truth.innocent]
    leaking = [case for case in cases().values() if not case.truth.innocent]
    assert len(innocent) >= 50 and len(leaking) >= 50
    assert {kind for case in leaking for kind in case.truth.kinds} == set(series.LEAK_KINDS)


# ---- the judge can say no ----

CASE = Case(
    "file.loop",
    Truth(kinds=("tensor-growth",), holders=("features",), bytes_each=65536, advice="less"),
    frozenset({("file.py", 7)}),
)
RIGHT = messages.Leak(
    kind="tensor-growth",
    name="features",
    holder="local 'features' of loop() -> list[10]",
    file="/somewhere/file.py",
    line=7,
    count=10,
    first_step=5,
    last_step=10,
    held_bytes=655360,
    exclusive_bytes=655360,
    advice="keep less",
)


def judged(*leaks: messages.Leak, case: Case = CASE) -> str:
    scan = messages.Scan(time_ns=1, step=10, reason="a test", seconds=0.0, tensors=1, leaks=list(leaks))
    return " ".join(faults(case, [(10, scan)], "cpu"))


def test_the_right_finding_passes() -> None:
    assert judged(RIGHT) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "overlap"}, "missed"),
        ({"name": "out", "holder": "local 'out' of loop()"}, "missed"),
        ({"line": 8}, "the line is file.py:7"),
        ({"file": "/somewhere/other.py"}, "the line is file.py:7"),
        ({"held_bytes": 400_000}, "are right after 10 steps"),
        ({"last_step": 9}, "no look at step 9"),
        ({"advice": "hope"}, "the fix says nothing of 'less'"),
    ],
)
def test_a_finding_that_is_wrong_in_one_thing_fails(change: dict[str, Any], expected: str) -> None:
    import msgspec

    assert expected in judged(msgspec.structs.replace(RIGHT, **change))


def test_silence_a_second_finding_and_any_finding_in_an_innocent_loop_fail() -> None:
    import msgspec

    other = msgspec.structs.replace(RIGHT, name="loss", holder="local 'loss' of loop()", kind="overlap")
    assert "missed" in judged()
    assert "not in the truth" in judged(RIGHT, other)
    assert "said 2 times" in judged(RIGHT, msgspec.structs.replace(RIGHT, held_bytes=1))
    assert "false alarm" in judged(RIGHT, case=Case("file.loop", Truth(why="it is none"), frozenset()))
