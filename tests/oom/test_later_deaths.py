"""The later staged deaths: the cause is right, and the first remedy that is called enough works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from later_deaths import LATER_DEATHS  # noqa: E402
from running import RunningServer  # noqa: E402

KNOWN_FAULTS = ("one-hot labels of very many classes",)
"""The cause is said to be data, made outside of a step: the request comes between two forwards."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.xdist_group("deaths")
@pytest.mark.parametrize("death", LATER_DEATHS, ids=lambda death: death.name.replace(" ", "-"))
def test_the_verdict_of_a_later_death_is_right(death: Death, server: str, tmp_path: Path, emulated_gpu: None) -> None:
    outcome = staged.staged(death, server, tmp_path)
    assert bool(outcome.wrong) is (death.name in KNOWN_FAULTS), outcome.wrong
