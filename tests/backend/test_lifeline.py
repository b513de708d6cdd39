"""What a server has begun for its own sake ends with it, also where it is killed: nothing compiles on, or writes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from running import ServerProcess
from snapshot_maker import file_of_stacks
from waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they live on")

BEGINS_WARMING = """
import sys, time
from pathlib import Path
from vramscope_server import numba_warmup as warming
warming._done = lambda: Path(sys.argv[1]) / "never"
print(warming.start().pid, flush=True)
time.sleep(600)
"""


def is_at_work(pid: int) -> bool:
    """Whether it has come as far as to step back behind others, which is what it does next."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    except ProcessLookupError:
        return False


def ends_by_itself(pid: int) -> bool:
    """Whether it is gone soon, be it that nobody has asked for its exit code yet. Else it is ended here."""

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    try:
        eventually(is_gone)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        return False
    return True


@pytest.mark.parametrize("when", ["before it looks who its parent is", "while it compiles"])
def test_what_makes_machine_code_ends_with_a_server_that_is_killed(tmp_path: Path, when: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}  # a cold one: it would take a minute
    words = [sys.executable, "-c", BEGINS_WARMING, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            pid = int(server.stdout.readline())
            if when == "while it compiles":
                eventually(lambda: is_at_work(pid))
        finally:
            server.kill()
    assert ends_by_itself(pid)


def test_what_converts_a_snapshot_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """It is stopped in the middle, as it would be in a long piece of machine code: nothing in it can look up."""
    server = ServerProcess(tmp_path / "data")
    pid = None
    try:
        data = file_of_stacks(300_000)
        posted = httpx.post(f"{server.url}/api/v1/snapshots", content=data, params={"name": "a.pickle"}, timeout=60)
        assert posted.status_code in (200, 202), posted.text
        eventually(lambda: conversion_of(server.process.pid) is not None)
        pid = conversion_of(server.process.pid)
        assert pid is not None
        eventually(lambda: is_at_work(pid))
        os.kill(pid, signal.SIGSTOP)
    finally:
        server.end(signal.SIGKILL)
    assert ends_by_itself(pid)


def conversion_of(server: int) -> int | None:
    for child in Path(f"/proc/{server}/task").glob("*/children"):
        for pid in child.read_text().split():
            if b"vramscope_server.snapshot_conversion" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None
