"""Why it died, and what would have been enough: the verdict is right in the staged deaths, and the first remedy that says
"enough" is followed, and is. Some of them run here, all of them with ``python tests/oom/table.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import DEATHS, Death  # noqa: E402
from running import RunningServer  # noqa: E402

IN_SUITE = [death for death in DEATHS if death.in_suite]
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.mark.parametrize("death", IN_SUITE, ids=lambda death: death.name.replace(" ", "-"))
def test_the_verdict_is_right_and_the_remedy_is_enough(
    death: Death, server: str, tmp_path: Path, emulated_gpu: None
) -> None:
    outcome = staged.staged(death, server, tmp_path)
    assert not outcome.wrong, outcome.told and outcome.told["sentence"]


TWO_RANKS = Death(
    "two ranks, of which one dies",
    "activations",
    """
    from datetime import timedelta
    import torch.distributed
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/ranks", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    model = nn.parallel.DistributedDataParallel(stack(6, 1024))
    optimizer = optimizer_of(model)
    for n in range(4):
        step(model, optimizer, 40000 if (rank, n) == (1, 2) else 4000, 1024)  # asks
    """,
    phase="backward",
)
"""The other one waits in an all-reduce, and fails when its peer is gone."""


def test_of_two_ranks_the_one_that_died_first_is_named(server: str, tmp_path: Path, emulated_gpu: None) -> None:
    from concurrent.futures import ThreadPoolExecutor

    shared = {"RUN": "aaaabbbbccccdddd", "WORLD_SIZE": "2"}
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(staged.run, TWO_RANKS, server, tmp_path, **shared, RANK=str(rank), LOCAL_RANK="0")
            for rank in (0, 1)
        ]
        assert [one.result()[1] for one in asked] == [1, 1]
    errors, told = staged.told(server, shared["RUN"])
    assert told is not None
    assert (told["rank"], told["cause"], told["survived"]) == (1, "activations", False)
    assert [error["rank"] for error in errors["errors"]] == [1]
