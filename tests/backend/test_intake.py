"""Senders that announce much, send slowly or not at all take neither memory nor room from others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from running import PATIENCE_SECONDS, RunningServer
from waiting import eventually
from wire_maker import Agent

from vramscope.protocol.messages import MAX_BATCH_BYTES
from vramscope_server import http_limits, intake, request_checks
from vramscope_server.store.validation import prepare

HEAD = b"POST /api/v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/msgpack\r\n"
Start = Callable[..., RunningServer]


@contextlib.contextmanager
def senders(server: RunningServer, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections that sent this and are silent from then on."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            opened[-1].sendall(sent)
        yield opened


def announced(size: int) -> bytes:
    return HEAD + f"Content-Length: {size}\r\n\r\n".encode()


def all_are_taken(server: RunningServer, count: int) -> None:
    for _ in range(count):
        agent = Agent()
        assert server.post(agent.body(agent.samples(100))).status_code == 200


@pytest.mark.parametrize("head", [announced(MAX_BATCH_BYTES), HEAD + b"Transfer-Encoding: chunked\r\n\r\n"])
def test_what_is_announced_and_does_not_come_takes_no_room(start_server: Start, head: bytes) -> None:
    server = start_server()
    with senders(server, 20, head):
        all_are_taken(server, 20)
        assert server.get("/health") == {"status": "ok"}


def large_batch(agent: Agent) -> bytes:
    return agent.body(agent.samples(30_000, every_ns=1000))


def test_bodies_that_take_long_are_given_up_when_their_memory_is_needed(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that send a byte now and then."""
    monkeypatch.setattr(intake, "BUSY_SECONDS", 0.2)
    server = start_server(queue_bytes=8 * 1024 * 1024)
    with senders(server, 1, announced(MAX_BATCH_BYTES) + b"x" * (MAX_BATCH_BYTES - 100)) as (slow,):
        eventually(lambda: server.services.intake.bytes == MAX_BATCH_BYTES - 100)
        time.sleep(0.3)
        slow.sendall(b"x")
        assert server.post(large_batch(Agent())).status_code == 200
        assert b"408" in slow.recv(1000).split(b"\r\n")[0]
    eventually(lambda: server.services.intake.bytes == 0)


def test_small_batches_have_memory_that_large_ones_cannot_take(start_server: Start) -> None:
    server = start_server(queue_bytes=8 * 1024 * 1024)
    with senders(server, 1, announced(MAX_BATCH_BYTES) + b"x" * (MAX_BATCH_BYTES - 100)):
        eventually(lambda: server.services.intake.bytes == MAX_BATCH_BYTES - 100)
        all_are_taken(server, 5)
        assert server.post(large_batch(Agent())).status_code == 503


def test_a_body_that_is_complete_when_it_is_given_up_does_not_end_the_writer(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(queue_bytes=9 * 1024 * 1024)
    agents = [Agent() for _ in range(20)]
    bodies = [agent.body(agent.samples(10)) for agent in agents]
    for _ in range(3):
        monkeypatch.setattr(intake, "BUSY_SECONDS", 60.0)
        with contextlib.ExitStack() as stack:
            small = [stack.enter_context(senders(server, 1, announced(len(body)) + body[:-1]))[0] for body in bodies]
            stack.enter_context(senders(server, 1, announced(MAX_BATCH_BYTES) + b"x" * (MAX_BATCH_BYTES - 500_000)))
            eventually(lambda: server.services.intake.bytes > MAX_BATCH_BYTES - 500_000)
            monkeypatch.setattr(intake, "BUSY_SECONDS", 0.0)
            large = stack.enter_context(senders(server, 1, announced(MAX_BATCH_BYTES)[:-2]))[0]
            large.sendall(b"\r\n" + b"x" * 1000)  # this one needs the memory of all others ...
            for one, body in zip(small, bodies, strict=True):
                one.sendall(body[-1:])  # ... which are complete at that moment
            states = [one.recv(1000).split(b" ")[1] for one in small]
            assert set(states) <= {b"200", b"408"}
        eventually(lambda: server.services.intake.bytes == 0)
        all_are_taken(server, 2)
    assert server.services.writer.alive


def test_a_cancelled_batch_is_dropped_and_the_writer_goes_on(start_server: Start) -> None:
    server = start_server()
    hold = threading.Event()
    server.services.writer.do(lambda connection, _: hold.wait(20))
    agent = Agent()
    waiting = [server.services.writer.submit(prepare(agent.body(agent.samples(3)), time.time_ns())) for _ in range(3)]
    assert waiting[1].cancel()
    hold.set()
    assert waiting[0].result(PATIENCE_SECONDS) and waiting[2].result(PATIENCE_SECONDS)
    all_are_taken(server, 1)


def test_without_a_token_a_body_is_small(start_server: Start) -> None:
    server = start_server(require_tokens=True)
    large = {"token": "x" * 5000}
    assert server.http.post("/session", json=large).status_code == 413
    assert server.http.post("/session", json={"token": "x" * 100}).status_code == 401


def test_a_body_that_is_not_complete_in_time_is_refused(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "READ_SECONDS", 0.3)
    monkeypatch.setattr(request_checks, "READ_SECONDS", 0.3)
    server = start_server()
    json = HEAD.replace(b"batches", b"session").replace(b"msgpack", b"json") + b"Content-Length: 20\r\n\r\n{"
    for sent in (announced(1000) + b"x" * 10, json):
        with senders(server, 1, sent) as (slow,):
            answer = b"".join(iter(lambda: slow.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 408") and b"urn:vramscope:problem:slow" in answer
    assert server.services.intake.bytes == 0
    all_are_taken(server, 1)


@pytest.mark.parametrize("sent", [b"", b"GET /", b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /"])
def test_a_connection_without_a_whole_head_is_closed(
    start_server: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 0.3)
    server = start_server()
    with senders(server, 1, sent) as (silent,):
        while silent.recv(4096):
            pass  # (it ends, or the socket times out)


def test_a_connection_between_two_requests_stays_open(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "HEAD_SECONDS", 0.2)
    server = start_server()
    with senders(server, 1, b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as (one,):
        assert b"200 OK" in one.recv(4096)
        time.sleep(0.5)
        one.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in one.recv(4096)


def test_refusals_for_lack_of_memory_stand_in_health(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(queue_bytes=8 * 1024 * 1024)
    hold = threading.Event()
    server.services.writer.do(lambda connection, _: hold.wait(20))
    agents = [Agent() for _ in range(12)]
    bodies = [agent.body(agent.samples(30_000, every_ns=1000)) for agent in agents]
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda b=body: answers.append(server.post(b))) for body in bodies]
    for thread in threads:
        thread.start()
    eventually(lambda: any(answer.status_code == 503 for answer in answers))
    health = server.http.get("/health")
    assert health.status_code == 503
    assert "Batches are refused until others are stored" in health.json()["problems"][0]
    hold.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    monkeypatch.setattr(intake, "REFUSED_SECONDS", 0.0)
    assert server.get("/health") == {"status": "ok"}
