"""Runs without a signal: explained where the host's memory was full, else without a verdict."""

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


def rising(first: int, by: int) -> list[int]:
    """GiB, seven samples in 0.6 s."""
    return [(first + by * i) * GIB for i in range(7)]


@pytest.fixture(scope="module")
def vanished(server: RunningServer) -> dict[str, Any]:
    """Answer for each run, with 64 GiB for its host or container, when all of them are lost."""
    last = {
        "the process had it": {"process_rss_bytes": 61 * GIB, "host_used_bytes": 62 * GIB},
        "its workers had it": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 63 * GIB},
        "there was room": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 20 * GIB},
        "a container of a large machine": {"process_rss_bytes": 9 * GIB, "host_used_bytes": 200 * GIB},
        "nobody knows": {},
        "it took it too fast to be told": {"process_rss_bytes": rising(8, 7), "host_used_bytes": rising(11, 7)},
        "a container was filled fast": {"process_rss_bytes": rising(8, 7), "host_used_bytes": 200 * GIB},
        "it took it fast, with a second and more to go": {"process_rss_bytes": rising(4, 3)},
        "it had taken much before": {"process_rss_bytes": [*rising(50, -5)[:-1], 50 * GIB]},
        "two samples are no rise": {"process_rss_bytes": [-1, -1, 20 * GIB, 55 * GIB]},
    }
    agents = {name: Agent(name=name, host_total_bytes=64 * GIB) for name in last}
    for name, agent in agents.items():
        rows = max((len(one) for one in last[name].values() if isinstance(one, list)), default=4)
        server.send(agent, agent.samples(rows, **last[name]))
    fields = {}
    for name, agent in agents.items():
        deadline = time.monotonic() + 60
        while (answer := server.get(f"/runs/{agent.run}/oom"))["state"] != "lost" and time.monotonic() < deadline:
            time.sleep(0.1)
        fields[name] = answer
    return fields


@pytest.mark.parametrize("name", ["the process had it", "its workers had it"])
def test_a_lost_run_on_a_full_host_is_explained(vanished: dict[str, Any], name: str) -> None:
    reported = vanished[name]
    assert (reported["errors"], reported["fatal"], reported["state"]) == ([], None, "lost")
    assert reported["vanished"]["cause"] == "outside_pytorch"
    assert "64.0 GiB" in reported["vanished"]["sentence"]


@pytest.mark.parametrize("name", ["it took it too fast to be told", "a container was filled fast"])
def test_fast_growth_before_the_last_sample_is_explained(vanished: dict[str, Any], name: str) -> None:
    reported = vanished[name]["vanished"]
    assert reported["cause"] == "outside_pytorch"
    assert "70.0 GiB a second, which would have filled the host's memory 0.2 s later" in reported["sentence"]
    assert "It used 50.0 GiB of 64.0 GiB" in reported["sentence"]


@pytest.mark.parametrize(
    "name",
    [
        "there was room",
        "a container of a large machine",
        "nobody knows",
        "it took it fast, with a second and more to go",
        "it had taken much before",
        "two samples are no rise",
    ],
)
def test_a_lost_run_alone_has_no_verdict(vanished: dict[str, Any], name: str) -> None:
    """Memory in use on the machine says nothing about a container's limit."""
    assert vanished[name]["state"] == "lost"
    assert vanished[name]["vanished"] is None
