"""The server that commands start for themselves: it stops with the last command that uses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from ports import free_port
from waiting import eventually

COMMAND = """
import sys
from vramscope_server.cli.local_server import server_at
with server_at(sys.argv[1], "A test") as stops:
    print(stops, flush=True)
    sys.stdin.readline()
"""
Command = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def command(tmp_path, monkeypatch) -> Iterator[Command]:
    """``command(url)`` starts one that uses a server there until its stdin is closed."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
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
    first.communicate()
    assert first.returncode == 0 and answers(url)
    second.communicate()
    eventually(lambda: not answers(url), what="the end of the server")


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
