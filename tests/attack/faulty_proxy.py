"""A proxy between agent and server that fails in the way it is set to: a real one, over real sockets."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import struct
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

TRICKLE_SECONDS = 0.05
PAGE = b"<html>sign in to continue</html>"


class FaultyProxy:
    """Passes requests on, or treats them as ``fault`` says. ``met`` counts the requests that met the present fault.

    pass            forwards request and answer
    silent          never answers
    deaf            does not even read
    slow            answers a byte now and then
    garbage         answers random bytes
    header          answers with a header that never ends
    informed        answers 100 Continue again and again
    body            answers with a body that never ends
    short           announces a longer answer than it sends
    bomb            answers with a small gzip file of 100 MB of zeros
    reset           resets the connection in the middle of the request
    swallowed       forwards the request, and drops the answer
    cut             forwards the request, and half of the answer
    twice           forwards the request twice
    emptied         forwards the request without its body
    halved          forwards the request with half of its body
    altered         forwards the request with another byte in its body
    zipped          forwards the request with a body that is packed by gzip
    status NNN      answers an HTML page with this status
    """

    def __init__(self, server: str, choice: random.Random) -> None:
        self.fault = "pass"
        self.met = 0
        self.requests = 0
        self._choice = choice
        self._target = (str(urlsplit(server).hostname), int(urlsplit(server).port or 80))
        self._stop = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, fault: str) -> None:
        self.fault, self.met = fault, 0

    def close(self) -> None:
        self._stop.set()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            while not self._stop.is_set():
                if self.fault == "deaf":
                    self._meet()
                    self._until_gone(connection, lambda: None)
                    return
                request = self._request(connection)
                if not request or not self._answer(connection, request):
                    return

    def _meet(self) -> None:
        self.met += 1
        self.requests += 1

    def _request(self, connection: socket.socket) -> bytes:
        """Head and body of the next request; empty if there is none."""
        received = b""
        while b"\r\n\r\n" not in received:
            if not (piece := connection.recv(65536)):
                return b""
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].partition(b":")[2])
        if self.fault == "reset":
            self._meet()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        while len(body) < length:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body

    def _answer(self, connection: socket.socket, request: bytes) -> bool:
        """Answer as the fault says. False: the connection ends."""
        fault = self.fault
        self._meet()
        if fault == "silent":
            self._until_gone(connection, lambda: None)
        elif fault == "slow":
            answer = iter(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000))
            self._until_gone(connection, lambda: connection.sendall(bytes([next(answer)])))
        elif fault == "garbage":
            connection.sendall(self._choice.randbytes(self._choice.randrange(1, 3000)))
        elif fault == "header":
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            self._until_gone(connection, lambda: connection.sendall(b"x" * 100))
        elif fault == "informed":
            self._until_gone(connection, lambda: connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n"))
        elif fault == "body":
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self._until_gone(connection, lambda: connection.sendall(b"1000\r\n" + bytes(0x1000) + b"\r\n"))
        elif fault == "short":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(10))
        elif fault == "bomb":
            import zlib

            packer = zlib.compressobj(9, zlib.DEFLATED, 31)
            body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
        elif fault.startswith("status"):
            connection.sendall(page(int(fault.split()[1])))
            return fault not in ("status 101", "status 204", "status 304")
        else:
            for _ in range(2 if fault == "twice" else 1):
                answer_bytes = self._forward(self._changed(request))
            if fault == "swallowed":
                return False
            connection.sendall(answer_bytes[: len(answer_bytes) // 2] if fault == "cut" else answer_bytes)
            return fault != "cut"
        return False

    def _changed(self, request: bytes) -> bytes:
        """The request with the body that the fault makes of it."""
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
        if self.fault == "emptied":
            body = b""
        elif self.fault == "halved":
            body = body[: len(body) // 2]
        elif self.fault == "altered":
            at = self._choice.randrange(len(body))
            body = body[:at] + bytes([body[at] ^ 1 << self._choice.randrange(8)]) + body[at + 1 :]
        elif self.fault == "zipped":
            lines, body = [*lines, b"Content-Encoding: gzip"], gzip.compress(body)
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body

    def _forward(self, request: bytes) -> bytes:
        with socket.create_connection(self._target, timeout=60) as server:
            server.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            answer = b""
            while piece := server.recv(65536):
                answer += piece
        return answer.replace(b"connection: close\r\n", b"").replace(b"Connection: close\r\n", b"")

    def _until_gone(self, connection: socket.socket, send: Callable[[], object]) -> None:
        """Send now and then until the client has gone, or another fault is set."""
        fault = self.fault
        with contextlib.suppress(StopIteration):
            while self.fault == fault and not self._stop.wait(TRICKLE_SECONDS):
                send()


def page(status: int) -> bytes:
    """A web page of a proxy with this status, which leads to another page."""
    head = (
        f"HTTP/1.1 {status} Somehow\r\nContent-Type: text/html\r\nLocation: http://127.0.0.1:9/\r\nRetry-After: 0\r\n"
    )
    return head.encode() + f"Content-Length: {len(PAGE)}\r\n\r\n".encode() + PAGE
