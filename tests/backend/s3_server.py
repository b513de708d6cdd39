"""A store that speaks the protocol of S3 (moto), as a process, behind a gate that a test can close."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from ports import free_port
from waiting import eventually

from vramscope_server.artifact_store.bucket import RETRIES


class Gate:
    """Passes connections on to a port. While it is closed, each connection ends at once."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._open = True
        self._connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections, and those that come."""
        with self._lock:
            self._open = False
            for one in self._connections:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def open(self) -> None:
        """Pass connections on again."""
        with self._lock:
            self._open = True

    def end(self) -> None:
        self.close()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                with self._lock:
                    if not self._open:
                        caller.close()
                        continue
                    store = socket.create_connection(self._target)
                    self._connections += [caller, store]
                for source, target in ((caller, store), (store, caller)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class S3Server:
    """``gate.url`` is the endpoint; ``direct`` is a client beside the gate, for the test itself."""

    def __init__(self, port: int) -> None:
        self.gate = Gate(port)
        self.direct = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        self._buckets = 0

    def bucket(self) -> str:
        """A new bucket."""
        self._buckets += 1
        name = f"vramscope-{self._buckets}"
        assert self.direct.put(f"/{name}").status_code == 200
        return name

    def names(self, bucket: str) -> list[str]:
        """Names of all objects of a bucket."""
        text = self.direct.get(f"/{bucket}", params={"list-type": "2"}).text
        return [one.partition("</Key>")[0] for one in text.split("<Key>")[1:]]

    @property
    def variables(self) -> dict[str, str]:
        """Variables for a server process."""
        return {
            "AWS_ENDPOINT_URL": self.gate.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }


@pytest.fixture(scope="session")
def s3_store() -> Iterator[S3Server]:
    """The process."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
    )
    try:
        made = S3Server(port)
        eventually(lambda: _answers(made) or process.poll() is not None)
        assert process.poll() is None, "moto did not start"
        yield made
        made.gate.end()
        made.direct.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(s3_store: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, and the variables with which it is reached."""
    for name, value in s3_store.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(RETRIES, "max_retries", 1)
    return s3_store.bucket()


def _answers(server: S3Server) -> bool:
    try:
        return server.direct.get("/").status_code == 200
    except httpx.TransportError:
        return False
