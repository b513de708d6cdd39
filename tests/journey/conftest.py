"""A real server, for the journeys of one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import httpx
import pytest
from ports import free_port

VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [*VRAMSCOPE, "server", "--port", str(port)],
            env={**os.environ, "VRAMSCOPE_DATA_DIR": folder},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            try:
                if httpx.get(f"{url}/api/v1/health").is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
        process.terminate()
        assert process.wait(120) in (0, -signal.SIGTERM), "a server that is asked to stop stops"
