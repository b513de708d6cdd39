"""A run that ends with no goodbye: the host's memory where it was full, and no guess where it was not."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "backend")]

from running import RunningServer  # noqa: E402
from wire_maker import GIB, Agent  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"), lost_after_seconds=1)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def vanished(server: RunningServer) -> dict[str, Any]:
    """What is said of each run, of 64 GiB for its host or container, when all of them are lost."""
    last = {
        "the process had it": {"process_rss_bytes": 61 * GIB, "host_used_bytes": 62 * GIB},
        "its workers had it": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 63 * GIB},
        "there was room": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 20 * GIB},
        "a container of a large machine": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 200 * GIB},
        "nobody knows": {},
    }
    agents = {name: Agent(name=name, host_total_bytes=64 * GIB) for name in last}
    for name, agent in agents.items():
        server.send(agent, agent.samples(**last[name]))
    said = {}
    for name, agent in agents.items():
        deadline = time.monotonic() + 60
        while (told := server.get(f"/runs/{agent.run}/oom"))["state"] != "lost" and time.monotonic() < deadline:
            time.sleep(0.1)
        said[name] = told
    return said


@pytest.mark.parametrize("name", ["the process had it", "its workers had it"])
def test_silence_while_the_hosts_memory_was_full_is_told_as_that(vanished: dict[str, Any], name: str) -> None:
    told = vanished[name]
    assert (told["errors"], told["fatal"], told["state"]) == ([], None, "lost")
    assert told["vanished"]["cause"] == "outside_pytorch"
    assert "64.0 GiB" in told["vanished"]["sentence"]


@pytest.mark.parametrize("name", ["there was room", "a container of a large machine", "nobody knows"])
def test_silence_alone_says_nothing(vanished: dict[str, Any], name: str) -> None:
    """What a machine has in use says nothing of a container's limit."""
    assert vanished[name]["state"] == "lost"
    assert vanished[name]["vanished"] is None
