"""Runs, recordings and snapshots are deleted, changed and read while data arrives for them. No answer is a fault, no data of others
is lost, and nothing is stored twice."""

from __future__ import annotations

import pickle
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures
import httpx
import pytest
from running import RunningServer
from sending import Training, sender_to
from snapshot_maker import snapshot_of
from stored_runs import _pieces
from waiting import eventually
from window_maker import training as window
from wire_maker import GIB, Agent, leak, new_id, scan

from vramscope.protocol import messages
from vramscope.protocol.window import pack
from vramscope.transport.sync import main as sync_main

OF_A_RUN = (
    "",
    "/leaks",
    "/peak",
    "/oom",
    "/recordings",
    "/steps",
    "/series?names=step",
    "/figures/stack",
    "/next-change",
)
OF_A_RECORDING = ("", "/anatomy", "/strip", "/map", "/sizes", "/timeline", "/flame", "/moments", "/export?format=csv")
ROWS = 8
KEPT, DELETED = "kept", "deleted"


class Crowd:
    """Threads that ask servers of one database until the time is over. Each request goes to any of them."""

    def __init__(self, servers: list[RunningServer], seconds: float, choice: random.Random) -> None:
        self.servers = servers
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stored: dict[str, int] = {}
        """Acknowledged batches of runs that nobody deletes."""
        self.runs: list[str] = []
        self.recordings: list[str] = []
        self._until = time.monotonic() + seconds
        self._seed = choice.random()
        self._window = pack(window())
        self._lock = threading.Lock()

    def gather(self, *jobs: tuple[Callable[[httpx.Client, random.Random], None], int]) -> None:
        """Run each job in its number of threads."""
        threads = [
            threading.Thread(target=self._repeat, args=(job, number)) for job, times in jobs for number in range(times)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, job: Callable[[httpx.Client, random.Random], None], number: int) -> None:
        own = random.Random(f"{self._seed} {job.__name__} {number}")
        with httpx.Client(timeout=60, trust_env=False) as http:
            while time.monotonic() < self._until and not self.faults:
                try:
                    job(http, own)
                except Exception as error:  # shown by the test
                    self.faults.append(f"{job.__name__}: {error!r}")

    def ask(self, http: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
        server = self.servers[self.statuses.total() % len(self.servers)]
        answer = http.request(method, f"{server.url}/api/v1{path}", **options)
        self.statuses[f"{answer.status_code // 100}xx"] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self.faults.append(f"{method} {path}: {answer.text[:300]}")
        return answer

    def post(self, http: httpx.Client, body: bytes) -> bool:
        """Send a batch, sometimes twice. Returns whether it was acknowledged."""
        kind = {"Content-Type": messages.CONTENT_TYPE}
        while (answer := self.ask(http, "POST", "/batches", content=body, headers=kind)).status_code == 503:
            time.sleep(0.05)
        return answer.status_code == 200

    # -- jobs

    def send(self, http: httpx.Client, choice: random.Random) -> None:
        """A run whose batches all arrive, or one that others delete."""
        purpose = choice.choice((KEPT, DELETED))
        agent, sent = Agent(name=purpose), 0
        for at in range(choice.randint(1, 8)):
            items: list[messages.BatchItem] = [agent.samples(ROWS, at=at)]
            if at == 1:
                items.append(scan(leak()))
            if at == 2 and purpose == DELETED:
                ident = new_id()
                items += _pieces(ident, "window", self._window, peak_allocated_bytes=GIB)
                self._offer(self.recordings, ident)
            body = agent.body(*items)
            if not self.post(http, body):
                assert purpose == DELETED
                return
            sent += 1
            if choice.random() < 0.3:
                self.post(http, body)
        self.post(http, agent.body(agent.ended()))
        if purpose == KEPT:
            self.stored[agent.run] = sent
            return
        self._offer(self.runs, agent.run)
        self.post(http, agent.body(agent.samples(ROWS, at=50)))  # after the end, and perhaps after the deletion

    def change(self, http: httpx.Client, choice: random.Random) -> None:
        """Delete or change a run or a recording that another thread sends, reads or deletes too."""
        if run := self._any(self.runs, choice):
            if choice.random() < 0.6:
                self.ask(http, "DELETE", f"/runs/{run}")
            self.ask(
                http, "PATCH", f"/runs/{run}", json={"name": "x", "project": choice.choice("ab"), "baseline": True}
            )
        if choice.random() < 0.3 and (recording := self._any(self.recordings, choice)):
            self.ask(http, "DELETE", f"/recordings/{recording}")
        time.sleep(0.003)

    def read(self, http: httpx.Client, choice: random.Random) -> None:
        """Look at what is being changed."""
        run, recording = self._any(self.runs, choice), self._any(self.recordings, choice)
        if run:
            self.ask(http, "GET", f"/runs/{run}{choice.choice(OF_A_RUN)}")
            self.ask(http, "GET", "/live/delta", params={"after": 0, "runs": run})
        if recording:
            self.ask(http, "GET", f"/recordings/{recording}{choice.choice(OF_A_RECORDING)}")
        if recording and choice.random() < 0.05:
            self.ask(http, "POST", f"/recordings/{recording}/whatif", json={"confs": ["expandable_segments:True"]})
        self.ask(http, "GET", "/runs")

    def convert(self, http: httpx.Client, choice: random.Random) -> None:
        """Upload a snapshot, and delete it while it waits, is converted or is read."""
        data = pickle.dumps(snapshot_of(choice.randint(5, 300)))
        answer = self.ask(http, "POST", "/snapshots", content=data, params={"name": "a"})
        if answer.status_code not in (200, 202):
            return
        ident = answer.json()["snapshot"]
        until = time.monotonic() + choice.choice((0, 0.2, 1.0))
        while time.monotonic() < until:
            self.ask(http, "GET", f"/recordings/{ident}-0{choice.choice(OF_A_RECORDING)}")
        for _ in range(2):
            self.ask(http, "DELETE", f"/snapshots/{ident}")

    def _offer(self, place: list[str], ident: str) -> None:
        with self._lock:
            place.append(ident)
            del place[:-12]

    def _any(self, place: list[str], choice: random.Random) -> str | None:
        with self._lock:
            return choice.choice(place) if place else None


@pytest.mark.parametrize("seconds", [4, pytest.param(180, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_what_is_deleted_while_it_is_sent_read_and_converted(
    start_server: Callable[..., RunningServer],
    database_url: str,
    tmp_path: Path,
    choice: random.Random,
    seconds: float,
) -> None:
    servers = [start_server(database=database_url, data_dir=tmp_path / "data")]
    if database_url.startswith("postgresql"):
        servers.append(start_server(database=database_url, data_dir=tmp_path / "data"))
    server = servers[0]
    crowd = Crowd(servers, seconds, choice)
    crowd.gather((crowd.send, 3), (crowd.change, 2), (crowd.read, 2), (crowd.convert, 2))
    assert crowd.faults == []
    assert server.get("/health") == {"status": "ok"}
    assert crowd.stored
    for run, sent in crowd.stored.items():
        assert server.get(f"/runs/{run}/series", names="step")["rows"] == sent * ROWS
    eventually(lambda: {one["state"] for one in server.get("/snapshots")["snapshots"]} <= {"ready", "failed"}, 60)
    known = {one["snapshot"] for one in server.get("/snapshots")["snapshots"]}
    folder = server.services.settings.snapshots_dir

    def unfinished() -> list[Path]:
        return [file for part in ("waiting", "making") for file in (folder / part).glob("*")]

    # The other server may still convert a snapshot that was deleted here; it removes what it made when it is done.
    eventually(lambda: not unfinished(), 60)
    left = [path for path in folder.iterdir() if path.is_dir()]
    assert {path.name for path in left if re.fullmatch("[0-9a-f]{12}", path.name)} <= known, "of deleted snapshots"
    batches = sum(crowd.stored.values())
    figures.keep("deletions while data arrives", batches_kept=batches, answers=crowd.statuses.total(), faults=0, lost=0)


def test_a_token_that_is_revoked_while_a_training_sends_loses_no_row(
    start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(require_tokens=True)
    admin = {"Authorization": f"Bearer {server.services.first_token}"}
    made = [server.http.post("/tokens", json={"name": name, "role": "write"}, headers=admin).json() for name in "ab"]
    sender, run = sender_to(server.url, tmp_path / "spool", token=made[0]["token"])
    sender.start()
    training = Training(sender)
    eventually(lambda: sender.sent_batches >= 3)
    assert server.http.delete(f"/tokens/{made[0]['id']}", headers=admin).status_code == 204
    eventually(lambda: len(sender.spool) > 0)
    training.end()
    sender.ring.put(messages.Ended(time_ns=time.time_ns(), state="finished"))
    assert not sender.close(5), "what is left waits in the spool"
    assert sender.dropped_rows == 0
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    monkeypatch.setenv("VRAMSCOPE_TOKEN", made[1]["token"])
    assert sync_main(["--server", server.url]) == 0
    assert list((tmp_path / "spool").iterdir()) == []
    answer = server.http.get(
        f"/runs/{run}/series", params={"names": "step", "points": 4000, "x": "time"}, headers=admin
    ).json()
    assert sorted(answer["series"]["step"]["value"]) == list(range(training.rows))
    assert server.http.get(f"/runs/{run}", headers=admin).json()["state"] == "finished"
