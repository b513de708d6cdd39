"""The sender with the real server: a server that is killed and restarted has every row once."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from collector import attached, column
from ports import free_port
from training import run
from waiting import eventually

from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.protocol import messages
from vramscope.settings import Settings
from vramscope.transport import backoff
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.transport.spool import Spool
from vramscope.transport.sync import main as sync_main

RUN = "9876543210fedcba"

pytestmark = pytest.mark.xdist_group("a real server")  # one worker starts the one that several share


class Server:
    """`vramscope server` as a process that can be killed and started again on the same database and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, database: str = "one.db") -> None:
        words = [
            "-m",
            "vramscope_server",
            "server",
            "--port",
            str(self.port),
            "--database",
            str(self.folder / database),
        ]
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen([sys.executable, *words], cwd=self.folder, stdout=log, stderr=log)
        log.close()
        eventually(self.answers, 90)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            return httpx.get(f"{self.url}/api/v1/health", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def steps(self) -> list[int]:
        """All values of ``step`` among the samples that it has stored."""
        words = {"stream": "samples", "names": "step", "rank": 0, "device": 0, "points": 4000}
        answer = httpx.get(f"{self.url}/api/v1/runs/{RUN}/series", params=words, timeout=10)
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        return [int(value) for value in answer.json()["series"]["step"]["value"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("vramscope_server.app")
    one = Server(tmp_path)
    yield one
    one.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for the trainings that let it live, each of which is a run of its own."""
    pytest.importorskip("vramscope_server.app")
    one = Server(tmp_path_factory.mktemp("running"))
    one.start()
    yield one
    one.kill()


def sample(step: int) -> messages.Block:
    columns = {"time_ns": column(time.time_ns()), "step": column(step), "allocated_bytes": column(step * 1000)}
    return messages.Block(stream="samples", device=0, rows=1, columns=columns)


def sender_to(server: Server, folder: Path, session: str = "abcdef0123456789") -> Sender:
    terminal.forget_printed()
    device = messages.Device(index=0, name="a card")
    settings = Settings.from_environment({}, server=server.url, spool_dir=folder / "spool", flush_ms=20)
    sender = Sender(
        settings,
        session=session,
        run=RUN,
        rank=0,
        first_message=lambda: attached(devices=[device], start_ns=time.time_ns()),
        ring=Ring(),
        spool=Spool(settings.spool_dir, settings.spool_bytes),
    )
    sender.start()
    return sender


def test_a_late_and_killed_server_has_every_row_once(server, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "raise_faults", True)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 0.3)
    sender = sender_to(server, tmp_path)

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            sender.ring.put(sample(step))
            time.sleep(0.002)
        sender.flush()

    train(0, 50)
    server.start("one.db")
    train(50, 100)
    server.kill()
    train(100, 150)
    server.start("one.db")
    eventually(lambda: len(server.steps()) == 150)
    assert server.steps() == list(range(150))
    eventually(lambda: not any((tmp_path / "spool").glob("*/*.batch")))
    server.kill(signal.SIGTERM)
    server.start("two.db")  # empty: it has never heard of this session
    train(150, 200)
    sender.ring.put(messages.Ended(time_ns=time.time_ns(), state="finished"))
    assert sender.close()
    assert server.steps() == list(range(150, 200))
    assert httpx.get(f"{server.url}/api/v1/runs/{RUN}").json()["state"] == "finished"
    assert not any((tmp_path / "spool").iterdir())


def test_what_a_process_left_behind_is_synced(server, tmp_path, monkeypatch, capsys):
    sender = sender_to(server, tmp_path)
    for step in range(20):
        sender.ring.put(sample(step))
        sender.flush()
    sender.close()
    server.start()
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    assert sync_main([]) == 0
    assert server.steps() == list(range(20))
    assert sync_main([]) == 0
    assert "Nothing to send" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VRAMSCOPE_SERVER", "http://localhost:82650"),
        ("VRAMSCOPE_SERVER", "my server"),
        ("VRAMSCOPE_TOKEN", "two words"),
    ],
)
def test_an_invalid_server_or_token_spools_the_run_for_sync(running, tmp_path, monkeypatch, variable, value):
    """One line at attach. The samples wait for a sync with a valid server."""
    spool = tmp_path / "spool"
    ident = secrets.token_hex(8)
    output = run(f"agent.attach(model, run_id={ident!r})\ntrain(4)", running, spool, **{variable: value}).splitlines()
    first, last = (line for line in output if line.startswith("vramscope:"))
    assert f"{variable}: saw " in first and "Your training is watched" in first and str(spool) in first
    assert "`vramscope sync` sends it" in last
    assert httpx.get(f"{running.url}/api/v1/runs/{ident}").status_code == 404
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(spool))
    assert sync_main(["--server", running.url]) == 0
    answer = httpx.get(f"{running.url}/api/v1/runs/{ident}").json()
    assert (answer["state"], answer["steps"]) == ("finished", 4)


@pytest.mark.gpu
def test_an_address_without_http_reaches_the_server(running, tmp_path):
    ident = secrets.token_hex(8)
    script = f"agent.attach(model, run_id={ident!r})\ntrain(3)"
    run(script, running, tmp_path / "spool", VRAMSCOPE_SERVER=running.url[7:])
    assert httpx.get(f"{running.url}/api/v1/runs/{ident}").json()["state"] == "finished"
