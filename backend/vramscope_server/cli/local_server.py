"""A server for the time of one or several commands, if none runs.

Each command holds a shared lock on one file. The server stops when nobody does, so that it outlives the command that started it
while others use it, and does not outlive a command that is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import httpx

from vramscope.settings import is_loopback
from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import NO_SERVER
from vramscope_server.settings import default_data_dir

VRAMSCOPE: Final = (sys.executable, "-m", "vramscope_server")
TEMPORARY: Final = (sys.executable, "-m", "vramscope_server.cli.temporary_server")
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10


@contextlib.contextmanager
def server_at(url: str, command: str) -> Iterator[bool]:
    """Ensure that a server answers until the block ends. Yields True if it stops with the last command that uses it.

    Raises client.Failure with code 4. ``command`` is the subject of the error's sentence, such as "the demo".
    """
    if not is_loopback(url):
        if not _answers(url):
            raise Failure(f"no server answers at {url}. {command} can start one on this machine only.", NO_SERVER)
        yield False
        return
    where = httpx.URL(url)
    host, port = where.host, str(where.port or 80)
    with _locks(host, port) as (users, running), tempfile.TemporaryFile("w+") as log:
        server = None
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if server is None and _lock(running):
                # In its own session: Ctrl-C must reach the training first, so that the server receives its last data.
                server = subprocess.Popen(
                    [*TEMPORARY, host, port, users.name],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[running.fileno()],  # locked while one of both processes has it
                )
            if (server is not None and server.poll() is not None) or time.monotonic() > deadline:
                log.seek(0)
                raise Failure(f"the server did not start. Its output: {log.read().strip() or 'none'}", NO_SERVER)
            time.sleep(0.05)
        try:
            yield server is not None or _is_temporary(running)
        finally:
            if server is not None and _lock(users):
                server.terminate()
                try:
                    server.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    server.kill()


@contextlib.contextmanager
def _locks(host: str, port: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open the file that the commands lock, which this one does, too, and the one that a temporary server locks."""
    folder = default_data_dir() / "temporary_servers"
    name = f"{platform.node()}-{host.strip('[]').replace(':', '_')}-{port}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as unless_locked:
            users, running = (
                unless_locked.enter_context(Path(folder, f"{name}.{kind}").open("ab")) for kind in ("users", "running")
            )
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a server that is stopping
            files = unless_locked.pop_all()
    except OSError as fault:
        raise Failure(f"{folder} cannot be used: {fault.strerror}", NO_SERVER) from fault
    with files:
        yield users, running


def _lock(file: IO[bytes]) -> bool:
    """Lock a file for this process alone, unless another one has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_temporary(running: IO[bytes]) -> bool:
    """Whether the server that answers was started by such a command."""
    if not _lock(running):
        return True
    fcntl.flock(running, fcntl.LOCK_UN)
    return False


def _answers(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/api/v1/health", timeout=2, trust_env=not is_loopback(url)).json()
        return health["status"] in ("ok", "degraded")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
