"""Several server processes on one PostgreSQL: nothing is lost, stored twice or sent twice, also when one is killed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa
from message_receiver import receiving
from running import RunningServer, ServerProcess
from server_group import Member
from snapshot_maker import snapshot_of, two_sizes
from uvicorn import Config
from waiting import eventually
from wire_maker import Agent, new_id

from vramscope.protocol import messages
from vramscope_server.cli.server import serve
from vramscope_server.cli.server_workers import Worker
from vramscope_server.snapshots import ABANDONED_SECONDS
from vramscope_server.store.database import Database
from vramscope_server.store.shared_news import miss_news, news_since, put_news
from vramscope_server.store.whatif_questions import WhatifTask, find_question, keep_question

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("postgres")]
Start = Callable[..., list[Member]]


@pytest.fixture
def database_kind() -> str:
    return "postgresql"


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Processes that share a database and a folder."""
    running: list[Member] = []

    def start_all(count: int = 2, **settings: str) -> list[Member]:
        with ThreadPoolExecutor(count) as pool:  # at once, as a deployment starts them
            running.extend(pool.map(lambda _: Member(database_url, tmp_path / "data", **settings), range(count)))
        return running[-count:]

    yield start_all
    for member in running:
        member.end()


def test_the_ranks_of_a_run_may_send_to_different_processes(start: Start, database_url: str) -> None:
    one, two = start()
    run = new_id()
    job = messages.Job(manager="slurm", id="4242")
    agents = [Agent(run, rank=rank, world_size=4, jobs=[job]) for rank in range(4)]
    for turn in range(6):
        for agent in agents:
            member = (one, two)[(turn + agent.rank) % 2]
            block = agent.steps(5, at=turn, first=turn * 5 + 1)
            assert member.send(agent, agent.samples(5, at=turn), block).accepted == turn + 1
    for member in (one, two):
        found = member.get(f"/runs/{run}")
        assert (found["state"], found["ranks_reporting"], found["steps"]) == ("running", 4, 30)
        assert [member.rows(agent) for agent in agents] == [30] * 4
        assert [row["run_id"] for row in member.get("/runs", job="4242")["runs"]] == [run]
    for agent in agents:
        (one, two)[agent.rank // 2].send(agent, agent.ended())
    assert [member.get(f"/runs/{run}")["state"] for member in (one, two)] == ["finished"] * 2
    engine = sa.create_engine(database_url)

    def chunks() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM chunks").scalar() or 0)

    eventually(lambda: chunks() == 8)  # one for each stream of each rank: those of the other process are merged, too
    engine.dispose()
    assert [two.rows(agent) for agent in agents] == [30] * 4


def test_a_batch_that_two_processes_receive_at_once_is_stored_once(start: Start) -> None:
    members = start()
    agents = [Agent() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(15):
            bodies = [agent.body(agent.samples(3, at=number)) for agent in agents]
            answers = list(pool.map(lambda pair: pair[0].post(pair[1]), [(m, b) for b in bodies for m in members]))
            assert [answer.status_code for answer in answers] == [200] * 8, [answer.text for answer in answers]
            assert {messages.decode_ack(answer.content).accepted for answer in answers} == {number + 1}
    for member in members:
        assert [member.rows(agent) for agent in agents] == [45] * 4


def test_a_conversion_is_taken_over_when_its_process_is_killed(start: Start) -> None:
    members = start()
    data = pickle.dumps(snapshot_of(20_000))
    ident = members[0].http.post("/snapshots", content=data).json()["snapshot"]
    converting = eventually(lambda: next((m for m in members if m.children("snapshot_conversion")), None))
    with converting.conversions_stopped():
        (other,) = [member for member in members if member is not converting]
        assert other.get(f"/snapshots/{ident}")["state"] == "converting"
        time.sleep(3)
        assert not other.children("snapshot_conversion"), "one process converts it"
        converting.kill()
        found = eventually(lambda: (s := other.get(f"/snapshots/{ident}"))["state"] == "ready" and s, 120)
        assert found["problem"] is None
        assert other.get(f"/recordings/{ident}-0/events", limit=1)["events"]


def test_a_file_that_two_processes_receive_at_once_is_one_snapshot(start: Start) -> None:
    members = start()
    data = pickle.dumps(snapshot_of(50))
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda at: members[at % 2].http.post("/snapshots", content=data), range(6)))
    assert len({answer.json()["snapshot"] for answer in answers}) == 1, [answer.text for answer in answers]
    assert len(members[0].get("/snapshots")["snapshots"]) == 1


def test_parts_of_an_upload_may_reach_different_processes(start: Start) -> None:
    members = start()
    data = pickle.dumps(snapshot_of(3000))
    upload = members[0].http.post("/snapshots/uploads", json={"name": "a", "size_bytes": len(data)}).json()["upload"]
    size = 100_000
    for at in range(0, len(data), size):
        member = members[at // size % 2]
        answer = member.http.put(
            f"/snapshots/uploads/{upload}",
            params={"offset": at},
            content=data[at : at + size],
            headers={"Content-Type": "application/octet-stream"},
        )
        assert answer.status_code == 200, answer.text
    done = members[1].http.post(f"/snapshots/uploads/{upload}/complete")
    assert done.status_code in (200, 201, 202), done.text
    again = members[0].http.post("/snapshots", content=data).json()
    assert again["snapshot"] == done.json()["snapshot"], "the same hash, wherever it was computed"


def test_a_message_is_sent_once_and_by_another_process_if_one_dies(start: Start, database_url: str) -> None:
    pytest.importorskip("apprise")
    with receiving() as receiver:
        one, two = start(notify=receiver.url)
        agents = [Agent(name=f"run {number}") for number in range(4)]
        for number, agent in enumerate(agents):
            for member in (one, two):
                member.send(agent, agent.samples(2, at=agent.sequence))
            (one, two)[number % 2].send(agent, agent.ended("failed", error_type="ValueError"))
        eventually(lambda: len(receiver.titles) == 4)
        for agent in agents:  # both announce the run again
            for member in (one, two):
                assert member.http.patch(f"/runs/{agent.run}", json={"tags": [str(member.pid)]}).status_code == 200
        time.sleep(2)
        assert sorted(receiver.titles) == [f"run {number} failed" for number in range(4)]
        receiver.refusals = 1  # the process waits for its second try, and dies
        late = Agent(name="late")
        one.send(late, late.samples(2), late.ended("failed"))
        eventually(lambda: receiver.refusals <= 0)
        one.kill()
        eventually(lambda: "late failed" in receiver.titles)
        time.sleep(1)
        assert receiver.titles.count("late failed") == 1


class Watcher:
    """Polls live events of some runs, at whichever process is given."""

    def __init__(self, member: Member, *agents: Agent) -> None:
        self.runs = ",".join(agent.run for agent in agents)
        self.last = member.get("/live/delta", runs=self.runs)["last"]
        self.times: list[float] = []
        self.states: list[str] = []

    def poll(self, member: Member) -> Any:
        answer = member.get("/live/delta", after=self.last, runs=self.runs)
        assert not answer["gap"]
        assert answer["last"] >= self.last
        self.last = answer["last"]
        for event in answer["events"]:
            if event["event"] == "rows":
                self.times += event["data"]["columns"]["time_seconds"]
            elif event["event"] == "run":
                self.states.append(event["data"]["state"])
        return answer


def test_live_events_reach_a_page_once_whichever_process_it_asks(start: Start) -> None:
    one, two = start()
    agents = [Agent(), Agent()]
    for agent in agents:
        one.send(agent, agent.samples(1))
    watcher = Watcher(two, *agents)
    for turn in range(40):
        for agent in agents:
            (one, two)[turn % 2].send(agent, agent.samples(2, at=turn + 1))
        watcher.poll((two, one)[turn // 3 % 2])
        time.sleep(0.05)
    # What was stored just before may come, too: pages leave out what they have.
    eventually(lambda: watcher.poll(one) and len(watcher.times) >= 162)
    time.sleep(1)
    watcher.poll(two)
    assert len(watcher.times) == 162 and len(set(watcher.times)) == 162
    two.send(agents[0], agents[0].ended())
    eventually(lambda: watcher.poll(one) and "finished" in watcher.states)
    assert one.get("/live/delta", after=1, runs="")["gap"], "a cursor of long ago"


def test_a_page_is_told_of_events_that_could_not_be_stored(database_url: str) -> None:
    with contextlib.closing(Database(database_url)) as database:

        def poll(after: int) -> tuple[int, bool]:
            with database.changing() as connection:
                return news_since(connection, after, frozenset(), time.time_ns())[1:]

        cursor = poll(poll(0)[0])[0]
        with database.changing() as connection:
            put_news(connection, [], time.time_ns())
            miss_news(connection, time.time_ns())
        cursor, missed = poll(cursor)
        assert missed
        assert poll(cursor) == (cursor, False)


def test_a_request_reaches_its_rank_at_any_process_once(start: Start) -> None:
    one, two = start()
    agent = Agent()
    one.send(agent, agent.samples(2))
    asked = two.http.post(f"/runs/{agent.run}/recordings", json={})
    assert asked.status_code in (200, 202), asked.text
    assert one.send(agent, agent.samples(2, at=1)).requests == [messages.RECORD_WINDOW]
    assert two.send(agent, agent.samples(2, at=2)).requests == []


def test_a_silent_run_is_lost_also_after_the_leading_process_was_killed(start: Start) -> None:
    (one,) = start(1, lost_after_seconds="2")
    time.sleep(1.5)
    (two,) = start(1, lost_after_seconds="2")
    agent = Agent()
    one.send(agent, agent.samples(2))
    eventually(lambda: two.get(f"/runs/{agent.run}")["state"] == "lost")
    two.send(agent, agent.samples(2, at=1))
    assert one.get(f"/runs/{agent.run}")["state"] == "running"
    one.kill()
    eventually(lambda: two.get(f"/runs/{agent.run}")["state"] == "lost")


def test_metrics_have_the_newest_sample_of_any_process(start: Start) -> None:
    one, two = start()
    agent = Agent()
    one.send(agent, agent.samples(1, allocated_bytes=111))
    two.send(agent, agent.samples(1, at=1, allocated_bytes=222))
    for member in (one, two):
        text = member.http.get(f"{member.process.url}/metrics").text
        line = next(x for x in text.splitlines() if x.startswith("vramscope_run_allocated_bytes{") and agent.run in x)
        assert float(line.split()[-1]) == 222


def test_a_baseline_is_the_only_one_of_its_project(start: Start) -> None:
    members = start()
    agents = [Agent(name=f"b{number}") for number in range(6)]
    for agent in agents:
        members[0].send(agent, agent.samples(1), agent.ended())

    def choose(at: int) -> int:
        return members[at % 2].http.patch(f"/runs/{agents[at].run}", json={"baseline": True}).status_code

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(choose, range(6))) == [200] * 6
    rows = members[1].get("/runs")["runs"]
    assert len([row for row in rows if row["baseline"]]) >= 1
    choose(2)
    rows = members[1].get("/runs")["runs"]
    assert [row["name"] for row in rows if row["baseline"]] == ["b2"]


def test_a_whatif_is_answered_by_any_process(start: Start) -> None:
    one, two = start()
    ident = one.http.post("/snapshots", content=pickle.dumps(two_sizes())).json()["snapshot"]
    eventually(lambda: two.get(f"/snapshots/{ident}")["state"] == "ready")
    path = f"/recordings/{ident}-0/whatif"
    job = one.http.post(path, json={"confs": ["expandable_segments:True"]}).json()["job"]
    found = eventually(lambda: (f := two.get(f"{path}/{job}"))["state"] == "done" and f, 240)
    assert [row["conf"] for row in found["result"]["rows"]][1:] == ["expandable_segments:True"]
    assert two.http.get(f"{path}/unknown").status_code == 404


def test_workers_listen_at_one_address_and_are_replaced(database_url: str, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--database", database_url, "--workers", "2")
    try:
        agent = Agent()
        url = f"{server.url}/api/v1/batches"
        headers = {"Content-Type": messages.CONTENT_TYPE}

        def workers() -> set[int]:
            found = psutil.Process(server.process.pid).children()
            alive = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
            return {one.pid for one in alive if "spawn_main" in " ".join(one.cmdline())}

        first = eventually(lambda: len(workers()) == 2 and workers())
        for number in range(20):
            answer = httpx.post(url, content=agent.body(agent.samples(2, at=number)), headers=headers, trust_env=False)
            assert answer.status_code == 200, answer.text
        os.kill(min(first), signal.SIGKILL)
        eventually(lambda: len(workers()) == 2 and workers() != first)

        def kept() -> bool:
            try:
                return (
                    httpx.post(url, content=agent.body(agent.samples(2), sequence=20), headers=headers).status_code
                    == 200
                )
            except httpx.TransportError:
                return False

        eventually(kept)
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            assert http.get(f"/api/v1/runs/{agent.run}/series", params={"names": "step"}).json()["rows"] == 40
    finally:
        assert server.end() == 0


def test_a_worker_that_dies_while_it_is_asked_is_noticed_at_once() -> None:
    worker = Worker(Config("vramscope_server.cli.server_workers:worker_app"), [])
    worker.start()
    os.kill(worker.pid or 0, signal.SIGKILL)
    began = time.monotonic()
    assert not worker.ping(timeout=600)  # the check waits for the answer this long
    assert time.monotonic() - began < 300
    worker.join()


def test_workers_need_postgresql(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("127.0.0.1", 0, str(tmp_path / "x.db"), tmp_path, 4) == 2
    said = capsys.readouterr().err
    assert "--workers 4 needs PostgreSQL" in said and "an SQLite file has one server process" in said


def test_processes_that_start_at_once_make_the_tables_once(empty_database_url: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        members = list(pool.map(lambda _: Member(empty_database_url, tmp_path, require_tokens="1"), range(3)))
    try:
        assert [member.get("/health")["status"] for member in members] == ["ok"] * 3
    finally:
        for member in members:
            member.end()


def test_processes_that_start_at_once_delete_what_was_cut_off(start_server: Callable[..., RunningServer]) -> None:
    snapshots = start_server().services.snapshots
    folder = snapshots.folder / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(40):
        for number in range(50):
            (folder / f"{number}-999999").touch()
        with ThreadPoolExecutor(2) as pool:
            for started in [pool.submit(snapshots.start) for _ in range(2)]:
                started.result()
        assert not list(folder.iterdir())


def test_the_unfinished_files_of_a_process_that_looks_ended_stay_for_a_while(
    start_server: Callable[..., RunningServer], database_url: str
) -> None:
    """Its writing connection may have broken: PostgreSQL then frees its number until it has a new one."""
    snapshots = start_server(database=database_url).services.snapshots
    folder = snapshots.folder / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    lately, before = folder / "lately-999999", folder / "before-999999"
    for path in (lately, before):
        path.write_bytes(b"the first bytes")
    long_ago = time.time() - ABANDONED_SECONDS - 1
    os.utime(before, (long_ago, long_ago))
    start_server(database=database_url, data_dir=snapshots.folder.parent)
    assert (lately.exists(), before.exists()) == (True, False)


def test_the_question_of_a_whatif_is_kept_from_the_last_time_that_it_was_asked(database_url: str) -> None:
    hour_ns = 3600 * 10**9
    question, other = WhatifTask("recording", None, None), WhatifTask("another", None, None)
    with contextlib.closing(Database(database_url)) as database, database.changing() as connection:
        for hours, ident, task in ((0, "a", question), (20, "a", question), (30, "b", other)):
            keep_question(connection, ident, task, hours * hour_ns)
        assert find_question(connection, "a") == question
        keep_question(connection, "c", other, 50 * hour_ns)
        assert find_question(connection, "a") is None
