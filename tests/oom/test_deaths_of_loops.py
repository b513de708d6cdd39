"""Deaths with notes: the cause is right, and the first remedy that is called enough works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from every_death import WITH_NOTES  # noqa: E402
from running import RunningServer  # noqa: E402

KNOWN_FAULTS = (
    "one-hot labels of very many classes",
    "twenty-four views of each picture instead of two",
    "a penalty on the slope of a critic, with more rows",
    "all gradients in one vector for their norm",
    "eight batches that wait on the card",
    "a recurrent cell whose window grows with the curriculum",
    "an optimizer of each warm restart, kept in a list",
    "moments kept on the host, and brought to the card all at once",
    "experts padded to the busiest one, and a step that sends all tokens to it",
    "errors of all pixels and classes, sorted for the loss",
    "a student that imitates every layer of its teacher, and more rows",
    "the weights of an ensemble, stacked beside its members",
    "pictures of each step of denoising, kept for a film",
)
"""Of the first two, the cause is said to be data: the request comes before the forward pass. Of the others, the
cause is right, and no remedy is called enough, though one is: of the third half of the batch is. What follows the request of the
fourth, and how much the rest of the fifth's first forward needs, is not known. Those from the sixth on are strangers': the cause of
three of them is wrong, and of the other two no remedy is called enough.

The last three are of an unseen half. What a teacher returned is said to be data, and two remedies are called enough that are not. A
request after the last of several optimizers' steps counts as of that step. No remedy of the film is called enough.
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.xdist_group("deaths")
@pytest.mark.parametrize("death", WITH_NOTES, ids=lambda death: death.name.replace(" ", "-"))
def test_the_verdict_of_a_death_with_notes_is_right(
    death: Death, server: str, tmp_path: Path, emulated_gpu: None
) -> None:
    outcome = staged.staged(death, server, tmp_path)
    assert bool(outcome.wrong) is (death.name in KNOWN_FAULTS), outcome.wrong
