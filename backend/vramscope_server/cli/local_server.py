"""A server for the time of one or several commands, if none runs.

Each command holds a shared lock on one file. The server stops when nobody does, so that it outlives the command that started it
while others use it, and does not outlive a command that is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import httpx

from vramscope.setting_values import is_loopback
from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import NO_SERVER

VRAMSCOPE: Final = (sys.executable, "-m", "vramscope_server")
TEMPORARY: Final = (sys.executable, "-m", "vramscope_server.cli.temporary_server")
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10


@dataclass
class LocalServer:
    """Server that a command uses."""

    is_temporary: bool = False
    """Whether it stops with the last command that uses it."""
    has_stopped: bool = False
    """Whether it stopped with this command; known when the command has ended its use."""


@contextlib.contextmanager
def server_at(url: str, command: str) -> Iterator[LocalServer]:
    """Ensure that a server answers until the block ends.

    Raises client.Failure with code 4. ``command`` is the subject of the error's sentence, such as "the demo".
    """
    if not is_loopback(url):
        if not _answers(url):
            raise Failure(f"no server answers at {url}. {command} can start one on this machine only.", NO_SERVER)
        yield LocalServer()
        return
    with contextlib.ExitStack() as until_end:
        try:
            users, running = until_end.enter_context(_locks(url))
        except OSError as fault:
            if not _answers(url):
                why = f"{fault.filename or tempfile.tempdir}: {fault.strerror}"
                raise Failure(f"no server answers at {url}, and none can be started ({why})", NO_SERVER) from fault
            server = LocalServer()
        else:
            server = until_end.enter_context(_shared_server(url, users, running))
        yield server


@contextlib.contextmanager
def _shared_server(url: str, users: IO[bytes], running: IO[bytes]) -> Iterator[LocalServer]:
    """Start a server if none answers, and stop it at the end of the block if no other command uses it."""
    where = httpx.URL(url)
    with tempfile.TemporaryFile("w+") as log:
        server = None
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if server is None and _lock(running):
                # In its own session: Ctrl-C must reach the training first, so that the server receives its last data.
                server = subprocess.Popen(
                    [*TEMPORARY, where.host, str(where.port or 80), users.name],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[running.fileno()],  # locked until the server ends
                )
                running.close()
            if (server is not None and server.poll() is not None) or time.monotonic() > deadline:
                log.seek(0)
                output = f"Its output: {log.read().strip() or 'none'}"
                why = output if server is not None else "Another command's server at this port does not answer there."
                raise Failure(f"the server at {url} did not start. {why}", NO_SERVER)
            time.sleep(0.05)
        used = LocalServer(server is not None or _is_temporary(running))
        try:
            yield used
        finally:
            is_last = used.is_temporary and _lock(users)
            if is_last and server is not None:
                server.terminate()
                try:
                    server.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    server.kill()
                used.has_stopped = True
            elif is_last:  # the server ends itself as soon as it can lock the file
                fcntl.flock(users, fcntl.LOCK_UN)
                used.has_stopped = _has_ended(running)


def _has_ended(running: IO[bytes]) -> bool:
    """Wait for the end of a server that no command uses. False: another command uses it."""
    deadline = time.monotonic() + STOP_SECONDS
    while _is_temporary(running):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def _locks(url: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open the file that the commands lock, which this one does, too, and the one that a temporary server locks.

    They are in a temporary folder of the user: a home may be read-only, or on a network. Raises OSError.
    """
    folder = Path(tempfile.gettempdir(), f"vramscope-{os.getuid()}")
    folder.mkdir(0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(folder))
    # One name for localhost, 127.0.0.1 and ::1: they are the same server.
    name = f"{platform.node()}-{httpx.URL(url).port or 80}"
    with contextlib.ExitStack() as files:
        # NFS refuses a shared lock of a file that cannot be read, and an exclusive one of a file that cannot be written.
        users, running = (
            files.enter_context(Path(folder, f"{name}.{kind}").open("a+b")) for kind in ("users", "running")
        )
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a server that is stopping
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
