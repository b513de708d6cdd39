"""A real HTTP server in a thread that takes batches as the product's server does, and can be told to misbehave."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import eventually

from vramscope.protocol import messages as wire_messages


class Collector:
    """Answers on loopback. ``mode`` says how; change it at any time.

    ok                stores and acknowledges
    refuse            401, the token is wrong
    wrong_version     409, another wire version
    busy              503 with ``Retry-After: 1``
    hang              takes the request and never answers
    drop              closes the connection without a word
    slow              answers after half a second
    trickle           answers a byte now and then
    endless_head      answers with a header that never ends
    small             413 over ``limit_bytes``
    picky             422 for batches that hold an event named ``poison``
    forgetful         409 unknown session, until a batch begins with Attached
    not_ours          200 with an HTML page
    proxy             ``proxy_status`` with an HTML page
    """

    def __init__(self, port: int = 0) -> None:
        self.mode = "ok"
        self.limit_bytes = 2000
        self.proxy_status = 502
        self.retry_after_ms = 0
        self.send_every_ms = 0
        self.requests: list[str] = []
        self.posts = 0
        """All batches that arrived, whatever the answer was."""
        self.stored: dict[tuple[str, int], wire_messages.Batch] = {}
        """Stored batches by identity, in order of arrival. A batch that was sent twice is stored once."""
        self.twins = 0
        self.headers: list[dict[str, str]] = []
        self._let_go = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self._handler())
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def clients(self) -> set[Any]:
        """The addresses from which connections were made."""
        return self._server.clients

    def stop(self) -> None:
        """Stop listening, let hanging requests go, and break the connections, as the end of a process does."""
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in list(self._server.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def batches(self) -> list[wire_messages.Batch]:
        return list(self.stored.values())

    @property
    def messages(self) -> list[wire_messages.Message]:
        return [message for batch in self.batches for message in batch.messages]

    @property
    def steps(self) -> list[int]:
        """The values of all ``step`` columns of the stream ``samples``, in order of their arrival."""
        blocks = [m for m in self.messages if isinstance(m, wire_messages.Block) and m.stream == "samples"]
        return [value for block in blocks for value in numbers(block.columns["step"])]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        eventually(condition, timeout_s)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's delayed ACK

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                collector.posts += 1
                collector._answer(self, self.path, body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        mode = self.mode
        if path != "/api/v1/batches":
            problem(request, 404, "not-found", "no such page")
        elif mode == "hang":
            self._let_go.wait(60)
            request.close_connection = True
        elif mode == "drop":
            request.close_connection = True
        elif mode == "trickle":
            reply(request, 200, b"", wire_messages.CONTENT_TYPE, {"Content-Length": "1000"})
            while not self._let_go.wait(0.1):  # until the client has gone
                request.wfile.write(b"0")
        elif mode == "endless_head":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self._let_go.wait(0.1):
                request.wfile.write(b"0")
        elif mode == "proxy":
            reply(request, self.proxy_status, b"<html>an error of the proxy</html>", "text/html")
        elif mode == "refuse":
            problem(request, 401, "token", "the token is not known", "Make one with `vramscope server`.")
        elif mode == "wrong_version":
            problem(
                request, 409, "wire-version", "the agent speaks wire 1, this server speaks wire 9", "Update the agent."
            )
        elif mode == "other_project":
            problem(request, 403, "project", "the token may send runs of nlp (VRAMSCOPE_PROJECT)")
        elif mode == "busy":
            problem(request, 503, "busy", "too much at once", headers={"Retry-After": "1"})
        elif mode == "not_ours":
            reply(request, 200, b"<html>hello</html>", "text/html")
        elif mode == "small" and len(body) > self.limit_bytes:
            problem(request, 413, "too-large", "the batch is too large")
        else:
            if mode == "slow":
                time.sleep(0.5)
            self._store(request, body)

    def _store(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        batch = wire_messages.decode_batch(body)
        if self.mode == "picky" and any(
            isinstance(m, wire_messages.Event) and m.kind == "poison" for m in batch.messages
        ):
            problem(request, 422, "invalid-batch", "an event that cannot be", "messages[0].kind: saw 'poison'")
            return
        introduced = bool(batch.messages) and isinstance(batch.messages[0], wire_messages.Attached)
        if self.mode == "forgetful" and not introduced:
            problem(request, 409, "unknown-session", "this session is not known here", "Send Attached first.")
            return
        with self._lock:
            if introduced and self.mode == "forgetful":
                self.mode = "ok"
            identity = (batch.session, batch.sequence)
            if identity in self.stored:
                self.twins += 1
            else:
                self.stored[identity] = batch
        ack = wire_messages.Ack(
            accepted=batch.sequence,
            retry_after_ms=self.retry_after_ms,
            send_every_ms=self.send_every_ms,
            requests=self.requests,
        )
        reply(request, 200, wire_messages.encode(ack), wire_messages.CONTENT_TYPE)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, *words: Any) -> None:
        self.connections: set[socket.socket] = set()
        self.clients: set[Any] = set()
        super().__init__(*words)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        self.clients.add(client_address)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away in the middle is part of the tests


def reply(
    request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def problem(
    request: BaseHTTPRequestHandler,
    status: int,
    slug: str,
    title: str,
    detail: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    body = {"type": f"urn:vramscope:problem:{slug}", "title": title, "status": status, "detail": detail}
    reply(request, status, json.dumps(body).encode(), "application/problem+json", headers)


def numbers(column: bytes) -> list[int]:
    return [int.from_bytes(column[at : at + 8], "little", signed=True) for at in range(0, len(column), 8)]


def column(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def sample(*steps: int, device: int = 0) -> wire_messages.Block:
    """A block of the stream ``samples`` with these steps as its rows."""
    columns = {"time_ns": column(*[step + 1 for step in steps]), "step": column(*steps)}
    return wire_messages.Block(stream="samples", device=device, rows=len(steps), columns=columns)


def attached(**changes: Any) -> wire_messages.Attached:
    values: dict[str, Any] = {
        "project": "tests", "name": "a run", "rank": 0, "world_size": 1, "host": "here", "pid": 1, "start_ns": 1,
        "framework": "loop", "devices": [], "python": "3", "torch": "2", "agent_version": "0",
    }  # fmt: skip
    return wire_messages.Attached(**{**values, **changes})
