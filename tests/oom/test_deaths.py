"""Staged errors: the cause is right, and the first remedy that is called enough works when it is followed.

``python tests/oom/table.py`` runs them too and writes RESULTS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import DEATHS, Death  # noqa: E402
from outcomes import Outcomes, shared  # noqa: E402
from running import RunningServer  # noqa: E402

from vramscope_server.__main__ import main  # noqa: E402
from vramscope_server.cli.coding_agents import run_answers  # noqa: E402

IN_SUITE = [death for death in DEATHS if death.in_suite]
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Outcomes]:
    """Outcomes of the staged errors. tests/golden compares the same ones."""
    yield shared()
    shared().close()


@pytest.mark.parametrize("death", IN_SUITE, ids=lambda death: death.name.replace(" ", "-"))
def test_the_verdict_is_right_and_the_remedy_is_enough(death: Death, outcomes: Outcomes, emulated_gpu: None) -> None:
    outcome = outcomes.of(death)
    assert not outcome.wrong, outcome.report and outcome.report["sentence"]


@pytest.mark.parametrize("death", IN_SUITE, ids=lambda death: death.name.replace(" ", "-"))
def test_a_coding_agent_gets_the_line_and_the_remedy(death: Death, outcomes: Outcomes, emulated_gpu: None) -> None:
    """The remedy is the one that the test above follows."""
    outcome = outcomes.of(death)
    assert outcome.report is not None
    answer = run_answers.out_of_memory(outcomes.url, outcome.report["run_id"])
    assert answer is not None
    line = answer["from_run"]["line_to_change"]
    culprit = outcome.report["culprit"]
    assert (line["file"], line["line"]) == (culprit["file"], culprit["line"])
    if outcome.tried is not None:
        sure = next(remedy for remedy in answer["remedies"] if remedy["enough"])
        assert sure["change"] == " ".join(outcome.tried["what"].split())


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
        dies = n == 2 and (rank == 1 or "BOTH" in os.environ)
        if dies and rank == 0:
            time.sleep(1)
        step(model, optimizer, 64000 if dies else 4000, 1024)  # asks
    """,
)
"""The other one waits in an all-reduce, and fails when its peer is gone; or runs out itself, a second later."""


def let_two_ranks_die(
    server: str, folder: Path, run_id: str, remedy: dict[str, Any] | None = None, **more: str
) -> list[tuple[int, str]]:
    """Exit code and output of each rank."""
    from concurrent.futures import ThreadPoolExecutor

    folder.mkdir(exist_ok=True)
    shared = {"RUN": run_id, "WORLD_SIZE": "2", **more}
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(staged.run, TWO_RANKS, server, folder, remedy, **shared, RANK=str(rank), LOCAL_RANK="0")
            for rank in (0, 1)
        ]
        return [one.result()[1:] for one in asked]


def test_the_failed_rank_of_two_is_named(server: str, tmp_path: Path, emulated_gpu: None) -> None:
    ended = let_two_ranks_die(server, tmp_path / "died", "aaaabbbbccccdddd")
    assert [code for code, _ in ended] == [1, 1]
    errors, report = staged.report_of(server, "aaaabbbbccccdddd")
    assert report is not None
    assert (report["rank"], report["cause"], report["survived"]) == (1, "activations", False)
    assert [error["rank"] for error in errors["errors"]] == [1]
    assert " on rank 1 of 2 at " in report["sentence"]
    assert report["sentence"] in ended[1][1], "on the console of the rank that died"
    sure = next(remedy for remedy in report["remedies"] if remedy["enough"])
    assert sure["micro_batches"]
    again = let_two_ranks_die(server, tmp_path / "again", "aaaabbbbccccdddf", sure)
    assert [code for code, _ in again] == [0, 0], again
    assert staged.report_of(server, "aaaabbbbccccdddf")[0]["errors"] == []


def test_the_first_of_two_failed_ranks_is_named(
    server: str, tmp_path: Path, emulated_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = let_two_ranks_die(server, tmp_path / "both", "aaaabbbbccccddde", BOTH="1")
    assert [code for code, _ in ended] == [1, 1]
    errors, report = staged.report_of(server, "aaaabbbbccccddde")
    assert report is not None
    assert [(one["rank"], one["survived"], one["text"][:19]) for one in errors["errors"]] == [
        (1, False, "CUDA out of memory."),
        (0, False, "CUDA out of memory."),
    ]
    first, second = errors["errors"]
    assert first["time_seconds"] + 0.5 < second["time_seconds"]
    assert (report["record"], report["rank"], report["cause"]) == (first["record"], 1, "activations")
    assert " on rank 1 of 2 at " in report["sentence"]
    capsys.readouterr()
    assert main(["oom", "aaaabbbbccccddde", "--server", server]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert " on rank 1 of 2 at " in output
    assert "2 out-of-memory errors in this run on ranks 0, 1, 0 survived" in output


LEANER = Death(
    "a leaner run of the same script",
    "activations",
    """
    model = stack(6, 1024)
    optimizer = optimizer_of(model)
    for n in range(16):
        time.sleep(0.01 * R.get("micro_batches", 1))
        if n == 8:  # (something that the script keeps from then on)
            beside = megabytes(1000)
        step(model, optimizer, 16000, 1024)  # asks
    """,
)


def test_what_a_leaner_run_of_the_project_took_is_a_measured_remedy(
    server: str, tmp_path: Path, emulated_gpu: None
) -> None:
    """With its peak, and the relative time of its steps."""
    lean, code, output = staged.run(LEANER, server, tmp_path, PROJECT="lean", REMEDY='{"micro_batches": 8}')
    assert code == 0, output[-2000:]
    dead, code, output = staged.run(LEANER, server, tmp_path, PROJECT="lean", RUN_NAME="the one that died")
    assert code == 1, output[-2000:]
    _, report = staged.report_of(server, dead)
    assert report is not None
    measured = [remedy for remedy in report["remedies"] if remedy["run_id"]]
    assert [remedy["run_id"] for remedy in measured] == [lean]
    runs = {run: httpx.get(f"{server}/api/v1/runs/{run}", trust_env=False).json() for run in (lean, dead)}
    peak = runs[lean]["peak_reserved_bytes"]
    assert measured[0]["saves_bytes"] == report["needed_bytes"] - peak
    assert measured[0]["enough"] is True
    ratio = runs[lean]["step_seconds_median"] / runs[dead]["step_seconds_median"]
    assert ratio > 1.5, "it sleeps longer"
    assert measured[0]["cost"] == f"a step took {ratio:.2f} times as long there (medians)"
