"""A server gives the memory of freed arrays back to the system."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from vramscope_server import memory_allocator
from vramscope_server.cli import server

PROGRAM = """
import sys
import numpy as np
from vramscope_server.memory_allocator import return_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

if sys.argv[1] == "set":
    assert return_freed_memory()
before = resident_mib()
for _ in range(3):
    np.ones(24 << 17)  # 24 MiB: from now on glibc takes arrays from the heap
kept, arrays = [], []
for _ in range(400):  # arrays of a figure, with an object that lives on after each
    arrays.append(np.ones(32_000))
    kept.append(bytearray(20_000))
arrays.clear()
print(resident_mib() - before)
"""


def grown_mib(how: str) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    words = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return float(done.stdout)


def test_freed_arrays_go_back_to_the_system() -> None:
    """Of 98 MiB. Without the settings they stay, so that the test can fail."""
    assert grown_mib("default") > 60
    assert grown_mib("set") < 30


def test_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not memory_allocator.return_freed_memory()


def test_command_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(server, "return_freed_memory", lambda: called.append(True))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert server.serve("127.0.0.1", taken.getsockname()[1], None, None) == server.BAD_ARGUMENTS
    assert called == [True]
