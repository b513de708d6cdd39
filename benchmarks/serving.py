"""Starts a real server for a benchmark: in a process of its own, on a free port, in a folder of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import httpx

START_SECONDS = 120.0


class Serving:
    """``with Serving() as serving:`` gives ``serving.url``, ``serving.pid`` and ``serving.folder``."""

    def __init__(self, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vramscope-benchmark-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = (self.folder / "server.log").open("w")
        settings = {"VRAMSCOPE_DATA_DIR": str(self.folder), **environment}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vramscope_server", "server", "--port", str(port)],
            env={**os.environ, **settings},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Serving:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/api/v1/health", timeout=1).is_success:
                    return self
            except httpx.TransportError:
                time.sleep(0.1)
        self._process.terminate()
        raise SystemExit("the server did not start:\n" + (self.folder / "server.log").read_text()[-2000:])

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
        self._folder.cleanup()
