"""What was acknowledged is there: after SIGKILL, after a full disk, whatever was being done at the time."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from disks import SmallDisk
from running import PATIENCE_SECONDS, RunningServer, ServerProcess
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope_server.services import Services
from vramscope_server.settings import Settings
from vramscope_server.store.database import Database
from vramscope_server.store.snapshots import StoredSnapshot, insert_snapshot, list_snapshots
from vramscope_server.store.storage_errors import DatabaseRefused


def post(http: httpx.Client, body: bytes) -> httpx.Response:
    return http.post("/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE})


def test_a_full_disk_stops_the_taking_not_the_showing_and_loses_nothing(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server()
    agent = Agent()
    server.send(agent, agent.samples(50))
    writer = server.services.writer

    def limit(pages: int) -> None:
        writer.do(lambda connection, _: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").fetchall()).result(
            5
        )

    limit(1)  # SQLite takes the present size: no page can be added, which is what a full disk is to it
    stored, refused = [1], None
    noise = np.random.default_rng(0)
    bodies = {}
    for number in range(2, 40):
        block = agent.samples(2000, at=number, every_ns=1000, allocated_bytes=noise.integers(0, 1 << 60, 2000).tolist())
        bodies[number] = agent.body(block)
        answer = server.post(bodies[number])
        if answer.status_code == 503:
            refused = answer
            break
        stored.append(number)
    assert refused is not None
    assert refused.json()["type"] == "urn:vramscope:problem:storage"
    assert "full" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    assert server.get("/server")["database"]["writable"] is False
    assert "full" in server.get("/server")["problems"][0]
    assert server.http.get("/health").json()["status"] == "degraded"
    rows = server.get(f"/runs/{agent.run}/series", names="step")["rows"]
    assert rows == 50 + 2000 * (len(stored) - 1), "what was acknowledged is there, what was refused is not"
    limit(1_000_000)
    deadline = time.monotonic() + 10
    while (answer := server.post(bodies[len(stored) + 1])).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)
    assert server.get("/health") == {"status": "ok"}
    assert messages.decode_ack(answer.content).accepted == len(stored) + 1
    assert server.get(f"/runs/{agent.run}/series", names="step")["rows"] == rows + 2000


def test_files_that_may_not_grow_are_the_same(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: here the operating system itself refuses to write."""
    server = ServerProcess(tmp_path, prefix=("prlimit", "--fsize=3000000"))
    agent = Agent()
    noise = np.random.default_rng(0)
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False, timeout=20) as http:
        stored = 0
        for number in range(100):
            block = agent.samples(
                4000, at=number, every_ns=1000, allocated_bytes=noise.integers(0, 1 << 60, 4000).tolist()
            )
            answer = post(http, agent.body(block))
            if answer.status_code != 200:
                break
            stored += 1
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:vramscope:problem:storage")
        assert stored > 10
        assert http.get(f"/runs/{agent.run}/series", params={"names": "step"}).json()["rows"] == 4000 * stored
        assert http.get("/health").status_code == 503
    assert server.end() == 0
    again = ServerProcess(tmp_path)
    try:
        response = httpx.get(
            f"{again.url}/api/v1/runs/{agent.run}/series", params={"names": "step"}, trust_env=False
        ).json()
        assert response["rows"] == 4000 * stored
        with httpx.Client(base_url=f"{again.url}/api/v1", trust_env=False) as http:
            assert post(http, agent.body(agent.samples(5), sequence=stored + 1)).status_code == 200
    finally:
        assert again.end() == 0


def test_on_a_disk_that_is_really_full_all_that_was_taken_is_shown_also_after_a_crash(
    small_disk: Callable[[int], SmallDisk],
) -> None:
    disk = small_disk(6000)
    server = ServerProcess(disk.path)
    agent = Agent()
    noise = np.random.default_rng(0)
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False, timeout=20) as http:
        stored = 0
        for number in range(500):
            numbers = noise.integers(0, 1 << 60, 2000).tolist()
            body = agent.body(agent.samples(2000, at=number, every_ns=1000, allocated_bytes=numbers))
            answer = post(http, body)
            if answer.status_code != 200:
                break
            stored += 1
        assert disk.free_bytes == 0
        assert (answer.status_code, "disk that holds the database is full" in answer.text) == (503, True)
        assert stored > 10
        assert "full" in http.get("/server").json()["problems"][0]
    server.end(signal.SIGKILL)
    again = ServerProcess(disk.path)
    try:
        with httpx.Client(base_url=f"{again.url}/api/v1", trust_env=False, timeout=20) as http:
            assert http.get(f"/runs/{agent.run}/series", params={"names": "step"}).json()["rows"] == 2000 * stored
            assert post(http, body).status_code == 503
            disk.resize(18_000)
            deadline = time.monotonic() + 10
            while (answer := post(http, body)).status_code != 200:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.2)
            rows = http.get(f"/runs/{agent.run}/series", params={"names": "step"}).json()["rows"]
            assert rows == 2000 * (stored + 1)
    finally:
        assert again.end() == 0


def test_a_server_starts_on_a_full_disk_that_has_an_unfinished_snapshot(
    small_disk: Callable[[int], SmallDisk],
) -> None:
    disk = small_disk(6000)
    path = disk.path / "vramscope.db"
    with contextlib.closing(sqlite3.connect(path)) as left_open:  # SQLite's log stays, as after a crash
        with contextlib.closing(Database(f"sqlite:///{path}")) as database:
            unfinished = StoredSnapshot(
                id="0123456789ab", sha256="0", project=None, name="a.pickle", bytes=1, stored_bytes=0, state="converting",
                problem=None, received_ns=1, devices=[], notes=[], owner=0,
            )  # fmt: skip
            with contextlib.closing(database.writer()) as connection, connection.begin():
                insert_snapshot(connection, unfinished)
            left_open.execute("SELECT count(*) FROM snapshots").fetchone()
        full = disk.fill()
        services = Services(Settings(data_dir=disk.path))
    try:
        with services.database.reader() as connection:
            assert [found.state for found in list_snapshots(connection)] == ["converting"]
        full.unlink()
        deadline = time.monotonic() + 20
        state = "converting"
        while state != "failed":  # because its file does not exist
            assert time.monotonic() < deadline, state
            services.snapshots.conversions.wake()
            time.sleep(0.2)
            with services.database.reader() as connection:
                state = list_snapshots(connection)[0].state
    finally:
        services.close()


def test_no_database_can_be_begun_on_a_full_disk_and_nobody_is_told_that_it_is_damaged(
    small_disk: Callable[[int], SmallDisk],
) -> None:
    disk = small_disk(480)
    url = f"sqlite:///{disk.path / 'vramscope.db'}"
    ballast = disk.fill()
    with pytest.raises(DatabaseRefused, match="is full; free some space and restart"):
        Database(url)
    ballast.write_bytes(bytes(412_000))  # room for a file, not for the tables
    with pytest.raises(
        DatabaseRefused, match="the tables could not be created: the disk that holds the database is full"
    ):
        Database(url)
    ballast.unlink()
    Database(url).close()


def test_a_server_told_to_stop_stores_what_waits_and_exits_with_0(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False) as http:
        agent = Agent()
        assert post(http, agent.body(agent.samples(3))).status_code == 200
    started = time.monotonic()
    assert server.end(signal.SIGINT) == 0
    assert time.monotonic() - started < 4
    assert not [log for log in tmp_path.glob("*-wal") if log.stat().st_size], "the log is folded into the database"


def test_too_much_at_once_is_told_to_come_again_and_memory_stays_bounded(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(queue_bytes=8 * 1024 * 1024)
    hold = threading.Event()
    server.services.writer.do(lambda connection, _: hold.wait(20))
    agents = [Agent() for _ in range(12)]
    big = {agent.run: agent.body(agent.samples(30_000, every_ns=1000)) for agent in agents}
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda b=body: answers.append(server.post(b))) for body in big.values()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 15
    while len(answers) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answers and all(answer.status_code == 503 for answer in answers)
    assert answers[0].json()["type"] == "urn:vramscope:problem:busy"
    assert answers[0].headers["retry-after"] == "1"
    assert server.services.intake.bytes <= 8 * 1024 * 1024
    hold.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted({answer.status_code for answer in answers}) == [200, 503]
    assert server.services.intake.bytes == 0


@pytest.mark.parametrize("times", [2])
def test_two_servers_live_side_by_side(start_server: Callable[..., RunningServer], times: int) -> None:
    servers = [start_server() for _ in range(times)]
    agent = Agent()
    servers[0].send(agent, agent.samples(2))
    assert [server.get("/runs")["total"] for server in servers] == [1, 0]
    batches = [
        re.search(r"^vramscope_batches_total (\S+)$", s.http.get(f"{s.url}/metrics").text, re.M) for s in servers
    ]
    assert [found.group(1) for found in batches if found] == ["1.0", "0.0"]


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
def test_a_whole_server_serves_from_postgresql(
    start_server: Callable[..., RunningServer], postgres: str, migrated_postgres: str
) -> None:
    import psycopg

    with psycopg.connect(postgres.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE whole TEMPLATE {migrated_postgres}")
    server = start_server(database=f"{postgres}/whole")
    agent = Agent()
    for number in range(20):
        server.send(agent, agent.samples(300, at=number * 30), agent.steps(5, at=number, first=number * 5 + 1))
    assert server.send(agent, agent.ended()).accepted == 21
    assert server.get("/server")["database"]["kind"] == "postgresql"
    assert server.get(f"/runs/{agent.run}")["steps"] == 299
    many = server.get(f"/runs/{agent.run}/series", names="allocated_bytes", points=100)
    assert (many["rows"], many["envelope"]) == (6000, True)
    assert "figure" in server.get(f"/runs/{agent.run}/figures/stack")
    assert server.get("/runs", query="H100")["total"] == 1
    # PostgreSQL drops all our connections: what is sent meanwhile is refused or stored, and then all goes on.
    with psycopg.connect(postgres.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'whole'")
    other = Agent()
    deadline = time.monotonic() + 15
    while (answer := server.post(other.body(other.samples(3), sequence=1))).status_code != 200:
        assert answer.json()["type"] == "urn:vramscope:problem:storage", answer.text
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert server.get(f"/runs/{other.run}")["state"] == "running"
    assert server.get("/health") == {"status": "ok"}
    server.stop()
