"""Real servers, real SQLite files, a real PostgreSQL."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

from wire_maker import Agent

from vramscope import wire
from vramscope_server.cli.server import Server, listen, uvicorn_server
from vramscope_server.house import House
from vramscope_server.settings import Settings


class RunningServer:
    """A real server at a port of its own, in a thread."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.house = House(Settings(data_dir=data_dir, **{"port": 0, "log_level": "critical", **settings}))
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = self.house.address = f"http://127.0.0.1:{self.port}"
        self.server: Server = uvicorn_server(self.house)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        self.http = httpx.Client(base_url=f"{self.url}/api/v1", timeout=20, trust_env=False)

    def stop(self) -> float:
        """Stop as SIGTERM does; returns the seconds that it took."""
        started = time.monotonic()
        self.http.close()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server did not stop"
        return time.monotonic() - started

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        return self.http.post("/batches", content=body, headers={"Content-Type": wire.CONTENT_TYPE, **headers})

    def send(self, agent: Agent, *messages: wire.Message, **options: Any) -> wire.Ack:
        """Send a batch that must be accepted."""
        answer = self.post(agent.body(*messages, **options))
        assert answer.status_code == 200, answer.text
        return wire.decode_ack(answer.content)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Servers as many as a test wants; all are stopped at its end."""
    running: list[RunningServer] = []

    def start(data_dir: Path | None = None, **settings: Any) -> RunningServer:
        server = RunningServer(data_dir or tmp_path / f"data{len(running)}", **settings)
        running.append(server)
        return server

    yield start
    for server in running:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of a file: each makes runs of its own."""
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


# ---- PostgreSQL ----


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A cluster of our own at a loopback port; gives the URL without a database."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [str(Path(p).parent) for p in [shutil.which("initdb")] if p]
    if not found:
        pytest.skip("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    programs = Path(found[-1])
    folder = Path(tempfile.mkdtemp(prefix="vramscope-pg-"))
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": "/"}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        options |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = subprocess.run(
        [programs / "initdb", "-D", folder / "data", "-U", "vramscope", "-A", "trust", "-E", "UTF8", "--no-sync"], **options
    )
    assert made.returncode == 0, made.stdout
    quick = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "shared_buffers=32MB"]
    place = ["-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", folder]
    cluster = subprocess.Popen([programs / "postgres", *place, *quick], **options)
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            ready = subprocess.run([programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], **options)
            if ready.returncode == 0:
                break
        assert time.monotonic() < deadline and cluster.poll() is None, "PostgreSQL did not start"
        time.sleep(0.05)
    yield f"postgresql+psycopg://vramscope@127.0.0.1:{port}"
    cluster.terminate()
    cluster.wait(20)
    shutil.rmtree(folder, ignore_errors=True)


_databases = itertools.count(1)


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.xdist_group("postgres")])]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database: a file, and a real PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'vramscope.db'}"
    import psycopg

    cluster: str = request.getfixturevalue("postgres")
    name = f"test{next(_databases)}"
    with psycopg.connect(cluster.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{cluster}/{name}"
