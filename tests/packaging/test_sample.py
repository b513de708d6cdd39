"""The sample that CI runs of corpora and of slow tests: by its seed the same for all workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import selection

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """What the sample reads of a test."""

    file: str
    name: str

    @property
    def path(self) -> Path:
        return TESTS / self.file

    @property
    def nodeid(self) -> str:
        return f"tests/{self.file}::{self.name}"


CORPUS, PICTURES, PAGES = "leaks/test_corpus.py", "pages/test_page_pictures.py", "pages/test_runs_page.py"
CASES = [
    *(Case(CORPUS, f"test_loop[cpu-{number}]") for number in range(100)),
    *(Case(CORPUS, f"test_kept[cuda-{number}]") for number in range(100)),
    *(Case(CORPUS, name) for name in ("test_one[only]", "test_of_the_corpus_itself")),
    *(Case(PICTURES, f"test_page[{name}]") for name in ("empty-runs", *(f"little-{at}" for at in range(20)))),
    *(Case(PAGES, f"test_runs[{number}]") for number in range(20)),
]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, int], list[Case]]:
    """Cases that are drawn for a share and a seed."""

    def draw(share: float, seed: int) -> list[Case]:
        monkeypatch.setenv("CORPUS_SHARE", str(share))
        monkeypatch.setenv("SAMPLE_SEED", str(seed))
        left_out = selection.left_out_of_sample(CASES)
        return [case for case in CASES if case not in left_out]

    return draw


def test_of_each_kind_at_least_one_case_is_drawn(sample: Callable[[float, int], list[Case]]) -> None:
    kinds = {
        "test_loop[",
        "test_kept[",
        "test_one[only]",
        "test_of_the_corpus_itself",
        "test_page[empty",
        "test_page[little",
    }
    for share in (0.0, 0.01, 0.2):
        names = [case.name for case in sample(share, 1)]
        assert all(any(name.startswith(kind) for name in names) for kind in kinds), share
        assert sum(name.startswith("test_runs[") for name in names) == 20, "no corpus"
    assert len(sample(0.0, 1)) == len(kinds) + 20


def test_the_sample_is_as_large_as_its_share_and_another_seed_draws_another(
    sample: Callable[[float, int], list[Case]],
) -> None:
    first, again, other = sample(0.2, 1), sample(0.2, 1), sample(0.2, 2)
    assert first == again != other
    loops = [sum(case.name.startswith("test_loop[") for case in sample(0.2, seed)) for seed in range(20)]
    assert sum(loops) / len(loops) == pytest.approx(20, abs=5)
    assert sample(1.0, 1) == CASES


def test_a_case_is_drawn_once_for_all_of_its_tests(sample: Callable[[float, int], list[Case]]) -> None:
    drawn = sample(0.2, 3)
    numbers = [
        {case.name.rstrip("]").rpartition("-")[2] for case in drawn if case.name.startswith(start)}
        for start in ("test_loop[", "test_kept[")
    ]
    assert numbers[0] == numbers[1]


def test_slow_tests_fill_the_time_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [Case(PAGES, f"test_quick_{number}") for number in range(10)]
    slow = [Case(PAGES, f"test_slow[{number}]@browser-1") for number in range(100)]
    times = {case.nodeid.partition("@")[0]: 3.0 for case in slow}
    monkeypatch.setattr(selection, "seconds_of_slow_tests", lambda: times)

    def drawn(seed: int, seconds: float) -> list[Case]:
        monkeypatch.setenv("SAMPLE_SEED", str(seed))
        monkeypatch.setenv("SLOW_TESTS_SECONDS", str(seconds))
        left_out = selection.left_out_of_sample([*quick, *slow])
        return [case for case in (*quick, *slow) if case not in left_out]

    assert len(drawn(1, 100.0)) == 10 + 33
    assert drawn(1, 100.0) == drawn(1, 100.0) != drawn(2, 100.0)
    assert drawn(1, 0.0) == quick
    assert set(drawn(1, 50.0)) < set(drawn(1, 100.0))
    assert drawn(1, float("inf")) == [*quick, *slow]


def test_tests_that_were_timed_exist() -> None:
    """A renamed test would always run: record the times again."""
    gone = set()
    for name in selection.seconds_of_slow_tests():
        file, _, test = name.partition("::")
        path = TESTS.parent / file
        if not path.is_file() or f"def {test.partition('[')[0]}(" not in path.read_text(encoding="utf-8"):
            gone.add(name)
    assert not gone
