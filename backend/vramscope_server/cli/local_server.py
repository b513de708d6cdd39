"""A server for the time of one command, if none runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

import httpx

from vramscope.settings import is_loopback
from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import NO_SERVER

VRAMSCOPE: Final = (sys.executable, "-m", "vramscope_server")
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10


@contextlib.contextmanager
def server_at(url: str, command: str) -> Iterator[bool]:
    """Ensure that a server answers until the block ends. Yields True if it was started here.

    Raises client.Failure with code 4. ``command`` is the subject of the error's sentence, such as "the demo".
    """
    if _answers(url):
        yield False
        return
    if not is_loopback(url):
        raise Failure(f"no server answers at {url}. {command} can start one on this machine only.", NO_SERVER)
    where = httpx.URL(url)
    with tempfile.TemporaryFile("w+") as log:
        words = [*VRAMSCOPE, "server", "--host", where.host, "--port", str(where.port or 80)]
        # In its own session: Ctrl-C must reach the training first, so that the server receives its last data.
        server = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failure(f"the server did not start. Its output: {log.read().strip() or 'none'}", NO_SERVER)
                time.sleep(0.05)
            yield True
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _answers(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/api/v1/health", timeout=2, trust_env=not is_loopback(url)).json()
        return health["status"] in ("ok", "degraded")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
