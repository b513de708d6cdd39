"""Records of ranks that did not run out: two real ranks, of which one waits in a collective.

The rank that runs out waits for the test before it ends, so the other record can only come from a waiting rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "pages"))

from test_oom_page import box  # noqa: E402
from wire_maker import Agent, new_id  # noqa: E402

from vramscope.oom.record_pieces import messages_of  # noqa: E402
from vramscope.protocol import messages, series  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]
Cli = Callable[..., tuple[int, str, str]]
NOBODY = "http://127.0.0.1:9"

RANKS = Death(
    "rank 1 dies while rank 0 waits for it",
    "activations",
    """
    from datetime import timedelta
    from pathlib import Path
    import torch.distributed
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/ranks", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    model = stack(6, 1024)
    optimizer = optimizer_of(model)
    for n in range(3):
        step(model, optimizer, 4000, 1024)
        torch.distributed.barrier()
    Path(f"pid{rank}").write_text(str(os.getpid()))
    if rank == 0:
        torch.distributed.barrier()  # waits
    try:
        step(model, optimizer, 64000, 1024)  # asks
    finally:
        for _ in range(3000):
            if Path("go").exists():
                break
            time.sleep(0.01)
    """,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Future[Any]]]]:
    """Starts both ranks. Returns a future of (run, exit code, output) for each."""
    with ThreadPoolExecutor(2) as pool:

        def start(url: str, run: str, *, one_spool: bool) -> list[Future[Any]]:
            shared = {"RUN": run, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
            spool = {n: str(tmp_path / ("spool" if one_spool else f"spool{n}")) for n in (0, 1)}
            return [
                pool.submit(staged.run, RANKS, url, tmp_path, **shared, RANK=str(n), VRAMSCOPE_SPOOL_DIR=spool[n])
                for n in (0, 1)
            ]

        yield start
        (tmp_path / "go").touch()


def rows_of(server: RunningServer, run: str) -> list[dict[str, Any]]:
    answer = server.http.get(f"/runs/{run}/oom")
    fatal = answer.json()["fatal"] if answer.status_code == 200 else None
    return [] if fatal is None else server.get(f"/oom/{fatal}")["ranks"]


def sync(server: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(folder))
    assert cli("sync", "--server", server.url)[0] == 0


def test_the_server_requests_a_record_of_the_waiting_rank(
    server: RunningServer, ranks: Any, tmp_path: Path, emulated_gpu: None, cli: Cli
) -> None:
    run = "bbbbccccddddeee0"
    both = ranks(server.url, run, one_spool=False)
    eventually(lambda: any(r["record"] and not r["ran_out"] for r in rows_of(server, run)), what="a record of rank 0")
    assert not both[0].done(), "it waits still"
    (tmp_path / "go").touch()
    assert both[1].result()[1] == 1
    waited, dead = rows_of(server, run)
    assert (waited["rank"], waited["ran_out"], dead["rank"], dead["ran_out"]) == (0, False, 1, True)
    assert (waited["asked_bytes"], waited["asked_by"]) == (None, "the server")
    assert dead["asked_bytes"] == 250 << 20
    script = str(tmp_path / f"{run}0.py")
    assert (waited["file"], waited["line"]) == (script, staged.asked_at(Death("", "", "", line="# waits"), script))
    assert (waited["step"], dead["step"]) == (3, 3)
    assert waited["free_bytes"] > dead["free_bytes"]
    assert waited["total_bytes"] == dead["total_bytes"] == 2 << 30
    weights = 6 * (1024 * 1024 + 1024) * 4
    assert (waited["parameters_bytes"], waited["optimizer_bytes"]) == (weights, 2 * weights)
    assert weights * 3 <= waited["allocated_bytes"] <= waited["reserved_bytes"]
    assert 0 <= waited["after_seconds"] < 30
    errors = server.get(f"/runs/{run}/oom")
    assert [one["rank"] for one in errors["errors"]] == [1], "a bystander is no error"
    answer = server.get(f"/oom/{errors['fatal']}", wait_seconds=0)
    assert (answer["rank"], answer["cause"]) == (1, "activations")
    parts = {kind: server.get(f"/oom/{row['record']}/map") for kind, row in (("waited", waited), ("dead", dead))}
    assert parts["waited"]["reserved_bytes"] == waited["reserved_bytes"]
    assert parts["dead"]["reserved_bytes"] == dead["reserved_bytes"] > waited["reserved_bytes"]
    assert parts["dead"]["largest_free_bytes"] == answer["pieces"]["largest_free_bytes"]
    block = server.get(f"/oom/{dead['record']}/block", offset=0)
    assert (block["state"], block["stack"]) == ("active_allocated", [])
    assert server.get(f"/runs/{run}")["oom_records"] == 1
    code, output, _ = cli("oom", run, "--server", server.url)
    assert code == 0
    assert "RANK" in output
    assert "waited" in output


def test_a_rank_of_the_same_host_signals_without_a_server(
    server: RunningServer, ranks: Any, tmp_path: Path, emulated_gpu: None, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    run = "bbbbccccddddeee1"
    both = ranks(NOBODY, run, one_spool=True)

    def last_words() -> bool:
        kept = [path for path in (tmp_path / "spool").glob("*/*.batch") if int(path.name.partition("-")[0]) > 1 << 39]
        return len({path.parent for path in kept}) == 2

    eventually(last_words, what="a record of rank 0")
    os.kill(int((tmp_path / "pid0").read_text()), signal.SIGTERM)  # as torchrun does
    assert both[0].result()[1] == -signal.SIGTERM
    (tmp_path / "go").touch()
    assert both[1].result()[1] == 1
    sync(server, tmp_path / "spool", monkeypatch, cli)
    waited, dead = rows_of(server, run)
    assert (waited["ran_out"], waited["asked_by"], dead["ran_out"]) == (False, "a rank of this host", True)
    assert waited["line"] == staged.asked_at(Death("", "", "", line="# waits"), waited["file"])


def test_a_failed_collective_writes_a_bystander_record(
    server: RunningServer, ranks: Any, tmp_path: Path, emulated_gpu: None, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """On another host and without a server, a rank only knows that its peer is gone."""
    run = "bbbbccccddddeee2"
    (tmp_path / "go").touch()
    both = ranks(NOBODY, run, one_spool=False)
    assert [one.result()[1] for one in both] == [1, 1]
    for folder in ("spool0", "spool1"):
        sync(server, tmp_path / folder, monkeypatch, cli)
    waited, dead = rows_of(server, run)
    assert (waited["ran_out"], waited["asked_by"], dead["ran_out"]) == (False, "the error of its collective", True)
    assert waited["line"] == staged.asked_at(Death("", "", "", line="# waits"), waited["file"])


def test_a_rank_without_a_record_has_its_newest_sample(server: RunningServer, cli: Cli) -> None:
    """A sample of the last minute and of that session counts; else the values are unknown, neither missing nor 0."""
    run, record, now = new_id(), "ffff000000000001", time.time_ns()
    second = 1_000_000_000
    sampled, dead, unheard, late, restarted = (
        Agent(run, rank=rank, world_size=6, start_ns=now - one * second)
        for rank, one in ((0, 300), (1, 300), (2, 300), (3, 300), (4, 20))
    )
    server.send(dead, *messages_of(box(record, rank=1, world_size=6, time_ns=now)))
    # (Five samples, 100 ms apart; the last two are of after the error.)
    columns = {"phase": [2, 2, 3, 3, 3], "step": [7, 7, 7, 8, 8], "allocated_bytes": [1 << 30, 2 << 30, 3 << 30, 4, 5]}
    used = {"device_used_bytes": [5 << 30, 5 << 30, 6 << 30, 7, 8]}
    server.send(sampled, sampled.samples(5, at=299.75, **columns, **used))
    server.send(unheard)
    server.send(late, late.samples(5, at=200, **columns))
    server.send(restarted, restarted.samples(5, at=-10, **columns), restarted.samples(1, at=10, allocated_bytes=9))
    rows = server.get(f"/oom/{record}")["ranks"]
    assert [(row["rank"], row["ran_out"], row["record"]) for row in rows] == [
        (rank, True if rank == 1 else None, record if rank == 1 else None) for rank in range(6)
    ]
    reported = rows[0]
    assert reported["as_of_seconds"] == pytest.approx(-0.05, abs=1e-5)
    assert (reported["step"], reported["phase"]) == (7, series.PHASES[3])
    assert (reported["allocated_bytes"], reported["reserved_bytes"]) == (3 << 30, 2 << 30)
    assert reported["total_bytes"] - reported["free_bytes"] == 6 << 30
    assert reported["parameters_bytes"] is None
    assert (rows[4]["allocated_bytes"], rows[4]["as_of_seconds"]) == (9, pytest.approx(-10, abs=1e-5))
    silent = [rows[2], rows[3], rows[5]]
    assert {row[name] for row in silent for name in row if name.endswith(("_bytes", "_seconds"))} == {None}
    output = cli("oom", run, "--server", server.url)[1]
    assert "no record, sampled 0.05 s before" in output


def test_an_old_error_requests_no_bystander_records(server: RunningServer) -> None:
    """It comes from a spool folder. A new error requests a record of every other rank, once."""
    run, hour_ns = new_id(), 3_600_000_000_000
    one, other = (Agent(run, rank=rank, world_size=2) for rank in (0, 1))
    server.send(one)
    now = time.time_ns()
    server.send(other, *messages_of(box("ffff000000000002", rank=1, world_size=2, time_ns=now - hour_ns)))
    assert server.send(one, one.samples()).requests == []
    ack = server.send(other, *messages_of(box("ffff000000000003", rank=1, world_size=2, time_ns=now)))
    assert ack.requests == [], "whoever ran out is not asked"
    assert server.send(one, one.samples()).requests == [messages.RECORD_BYSTANDER]
    assert server.send(one, one.samples()).requests == []
    late = Agent(run, rank=2, world_size=4, start_ns=now - 1)
    assert server.send(late).requests == [messages.RECORD_BYSTANDER], (
        "it was there, and sends its first message only now"
    )
    restarted = Agent(run, rank=3, world_size=4, start_ns=time.time_ns())
    assert server.send(restarted).requests == [], "it knows nothing of what was before it"


def test_a_hundred_bystanders_do_not_displace_the_error(server: RunningServer) -> None:
    run = new_id()
    dead = Agent(run, rank=0, world_size=100)
    server.send(dead, *messages_of(box("ffff000000000004", world_size=100)))
    for rank in range(1, 100):
        beside = box(f"ffff0000000001{rank:02d}", rank=rank, world_size=100, seen_by="bystander", asked_bytes=None)
        server.send(Agent(run, rank=rank, world_size=100), *messages_of(beside, "the server"))
    rows = server.get("/oom/ffff000000000004")["ranks"]
    assert [row["ran_out"] for row in rows] == [True] + 99 * [False]
