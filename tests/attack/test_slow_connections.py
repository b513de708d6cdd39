"""Many connections that are silent, slow or do not read take nothing from others, and are gone afterwards."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import figures
import httpx
import psutil
import pytest
from running import RunningServer, ServerProcess
from waiting import eventually
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope_server import http_limits

HEAD = b"POST /api/v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/msgpack\r\n"
GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LARGE = b"/assets/plotly-"
MOST_GROWTH_MIB = 60
MOST_KIB_PER_CONNECTION = 100
"""On average: those that do not read have an answer in the server's memory, until they are disconnected."""


def large_file(url: str) -> bytes:
    """Path of the largest file that anybody may have."""
    page = httpx.get(url, trust_env=False).content
    return page[page.index(LARGE) :].split(b'"')[0]


class Crowd:
    """Connections of all bad kinds. Those that trickle send a byte now and then."""

    def __init__(self, url: str, count: int, choice: random.Random) -> None:
        port, large = int(url.rpartition(":")[2]), large_file(url)
        kinds: list[tuple[bytes, bool]] = [
            (b"", False),
            (b"GET /", False),
            (b"GET / HTTP/1.1\r\nX: ", True),
            (HEAD + b"Content-Length: 8000000\r\n\r\n", False),
            (HEAD + b"Content-Length: 8000000\r\n\r\n" + bytes(1000), True),
            (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", False),
            (GET % large, False),
            (GET % large * 20, False),
            (GET % b"/api/v1/openapi.json" * 20, False),
        ]
        self._connections: list[socket.socket] = []
        self._trickling: list[socket.socket] = []
        for _ in range(count):
            sent, trickles = choice.choice(kinds)
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            self._connections.append(connection)
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            if trickles:
                self._trickling.append(connection)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._trickle, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def _trickle(self) -> None:
        while not self._stop.wait(0.5):
            for connection in self._trickling:
                with contextlib.suppress(OSError):
                    connection.send(b"x")


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_crowd_of_bad_connections_takes_nothing_from_others(
    tmp_path: Path, choice: random.Random, count: int
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count + 2000), hard))
    server = ServerProcess(tmp_path, log_level="critical")  # (nobody reads what it prints)
    process = psutil.Process(server.process.pid)
    agents = [Agent() for _ in range(20)]
    try:
        with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False, timeout=60) as http:

            def all_are_taken() -> None:
                for agent in agents:
                    body = agent.body(agent.samples(100, at=agent.sequence))
                    answer = http.post("/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE})
                    assert answer.status_code == 200, answer.text

            all_are_taken()
            before = process.memory_info().rss, process.num_fds()
            crowd = Crowd(server.url, count, choice)
            try:
                for _ in range(3):
                    all_are_taken()
                    assert http.get("/health").json() == {"status": "ok"}
                    time.sleep(0.3)
                growth = (process.memory_info().rss - before[0]) >> 20
                descriptors = process.num_fds() - before[1]
                assert descriptors > count // 2, "they are connected"
            finally:
                crowd.close()
            assert growth < MOST_GROWTH_MIB + count * MOST_KIB_PER_CONNECTION / 1024
            eventually(lambda: process.num_fds() <= before[1] + 3)
            all_are_taken()
    finally:
        assert server.end() == 0
    figures.keep(
        "silent, slow and unreading connections", connections=count, refused_batches_of_others=0, MiB_more_memory=growth
    )


@pytest.fixture
def impatient(start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    monkeypatch.setattr(http_limits, "UNREAD_SECONDS", 0.6)
    return start_server(log_level="error")


def connected(server: RunningServer) -> int:
    return len(server.server.server_state.connections)


def test_a_client_that_does_not_read_is_disconnected(impatient: RunningServer) -> None:
    others = connected(impatient)
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as connection:
        connection.sendall(GET % large_file(impatient.url) * 20)
        eventually(lambda: connected(impatient) > others)
        eventually(lambda: connected(impatient) == others)
    assert impatient.get("/health") == {"status": "ok"}


def test_requests_that_wait_behind_an_unread_answer_leave_no_trace_when_the_client_goes(
    impatient: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them was answered into the closed connection, and logged with its traceback."""
    others = connected(impatient)
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as connection:
        connection.sendall(GET % large_file(impatient.url) * 20)
        eventually(lambda: connected(impatient) > others)
        time.sleep(0.2)
    eventually(lambda: connected(impatient) == others)
    time.sleep(0.2)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_reads_slowly_gets_all(impatient: RunningServer) -> None:
    """It reads for longer than a client may pause, and a little at a time."""
    path = large_file(impatient.url)
    whole = httpx.get(impatient.url + path.decode(), trust_env=False, headers={"Accept-Encoding": "identity"}).content
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall((GET % path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received, began = bytearray(), time.monotonic()
        while piece := connection.recv(200_000):
            received += piece
            time.sleep(0.02)
    assert time.monotonic() - began > 0.5
    assert bytes(received).partition(b"\r\n\r\n")[2] == whole
