"""The server that commands start for themselves: it stops with the last command that uses it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from ports import free_port
from waiting import eventually

from vramscope_server.cli import local_server
from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import NO_SERVER

COMMAND = """
import sys
from vramscope_server.cli.local_server import server_at
with server_at(sys.argv[1], "A test") as used:
    print(used.is_temporary, flush=True)
    sys.stdin.readline()
print(used.has_stopped)
"""
Command = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def command(tmp_path, monkeypatch) -> Iterator[Command]:
    """``command(url)`` starts one that uses a server there until its stdin is closed. Nothing is written to the home."""
    for name, value in {"VRAMSCOPE_DATA_DIR": tmp_path / "data", "TMPDIR": tmp_path, "HOME": "/proc/none"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    started: list[subprocess.Popen[str]] = []

    def start(url: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", COMMAND, url]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_server_outlives_the_command_that_started_it_while_another_uses_it(command: Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    first = command(url)
    assert said(first) == "True"
    second = command(url)
    assert said(second) == "True", "it stops with the second one"
    assert first.communicate()[0] == "False\n"
    assert first.returncode == 0 and answers(url)
    assert second.communicate()[0] == "True\n", "it has stopped when the command ends"
    assert not answers(url)


def test_the_command_that_started_a_server_stops_it_if_no_other_uses_it(command: Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    only = command(url)
    assert said(only) == "True" and only.communicate()[0] == "True\n"
    assert not answers(url)


def test_two_commands_at_once_start_one_server_which_ends_with_both(command: Command) -> None:
    """Also if they are killed: their locks end with them."""
    url = f"http://127.0.0.1:{free_port()}"
    both = command(url), command(url)
    assert [said(one) for one in both] == ["True", "True"]
    both[0].kill()
    both[0].wait()
    assert answers(url)
    both[1].kill()
    eventually(lambda: not answers(url), what="the end of the server")


def test_commands_share_a_server_under_all_names_of_this_machine(command: Command) -> None:
    port = free_port()
    first = command(f"http://127.0.0.1:{port}")
    assert said(first) == "True"
    second = command(f"http://localhost:{port}")
    assert said(second) == "True"
    first.communicate()
    assert answers(f"http://localhost:{port}")
    second.communicate()
    eventually(lambda: not answers(f"http://localhost:{port}"), what="the end of the server")


def test_after_a_crash_of_the_server_another_command_starts_one(command: Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    first = command(url)
    assert said(first) == "True"
    (server,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(server), signal.SIGKILL)
    eventually(lambda: not answers(url), what="the end of the server")
    assert said(command(url)) == "True" and answers(url)


@pytest.mark.parametrize("refusal", ["no folder", "of another user", "network file system"])
def test_without_a_lock_a_server_that_answers_is_used(refusal, tmp_path, monkeypatch) -> None:
    """A lock is needed to start and to stop a server only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if refusal == "no folder":
        (tmp_path / f"vramscope-{os.getuid()}").write_text("")
    elif refusal == "of another user":
        monkeypatch.setattr(Path, "lstat", lambda _: os.stat_result((0o40700, 0, 0, 2, os.getuid() + 1, *[0] * 5)))
    else:
        monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(local_server, "_answers", lambda _: True)
    with local_server.server_at("http://127.0.0.1:1", "A test") as used:
        assert not used.is_temporary
    assert not used.has_stopped
    monkeypatch.setattr(local_server, "_answers", lambda _: False)
    with pytest.raises(Failure) as caught, local_server.server_at("http://127.0.0.1:1", "A test"):
        pytest.fail("no server answers")
    assert caught.value.code == NO_SERVER and "none can be started (" in str(caught.value)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_the_locked_files_can_be_read_and_written(tmp_path, monkeypatch) -> None:
    """NFS refuses a shared lock of a file that is open for writing only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with local_server._locks("http://127.0.0.1:1") as files:
        assert all(file.readable() and file.writable() for file in files)
