"""Whatever a proxy or a network does to an agent, every row arrives once when it works again, and the training never waits."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import figures
import pytest
from faulty_proxy import FaultyProxy
from running import RunningServer
from sending import Training, sender_to
from waiting import eventually

from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.protocol import messages
from vramscope.transport import backoff
from vramscope.transport.sender import Sender

FAULTS = (
    "silent", "deaf", "slow", "garbage", "header", "informed", "body", "short", "bomb", "reset", "swallowed", "cut", "twice",
    "emptied", "halved", "altered", "zipped",
)  # fmt: skip
TELLING = (204, 304, 407, 410, 413, 429)
"""Statuses that are tried each time: those that agents or proxies treat in a way of their own."""
ALL = range(200, 600)
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
MOST_GROWTH_KIB = 60_000


@pytest.fixture
def attacked(
    start_server: Callable[..., RunningServer], tmp_path: Path, choice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RunningServer, FaultyProxy, Sender, str]]:
    """A server, a proxy before it, and a sender that knows only the proxy."""
    monkeypatch.setattr(guard, "raise_faults", True)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(backoff, "SHORTEST_PAUSE_S", 0.02)
    terminal.forget_printed()
    server = start_server()
    proxy = FaultyProxy(server.url, choice)
    sender, run = sender_to(proxy.url, tmp_path / "spool")
    sender.start()
    yield server, proxy, sender, run
    sender.close(0.2)
    proxy.close()


def test_the_proxy_passes_what_it_should(attacked: tuple[RunningServer, FaultyProxy, Sender, str]) -> None:
    server, proxy, sender, run = attacked
    sender.ring.put(messages.Event(time_ns=time.time_ns(), kind="notice"))
    assert sender.flush(10)
    eventually(lambda: sender.sent_batches >= 1)  # (a busy server may answer the first request too late)
    assert proxy.requests >= sender.sent_batches
    assert server.get(f"/runs/{run}")["state"] == "running"


@pytest.mark.parametrize("statuses", [3, pytest.param(len(ALL), marks=LONG)])
def test_no_fault_of_a_proxy_loses_a_row(
    attacked: tuple[RunningServer, FaultyProxy, Sender, str],
    tmp_path: Path,
    choice: random.Random,
    capsys: pytest.CaptureFixture[str],
    statuses: int,
) -> None:
    server, proxy, sender, run = attacked
    faults = [*FAULTS, *(f"status {status}" for status in {*TELLING, *choice.sample(ALL, statuses)})]
    choice.shuffle(faults)
    training = Training(sender)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for fault in faults:
        proxy.set(fault)
        eventually(lambda: proxy.met >= 2, 30)
        sent = sender.sent_batches
        proxy.set("pass")
        eventually(lambda sent=sent: sender.sent_batches > sent, 30)  # type: ignore[misc]
    training.end()
    sender.ring.put(messages.Ended(time_ns=time.time_ns(), state="finished"))
    assert sender.close(30), "everything arrived"
    assert sender.dropped_rows == 0
    assert not list((tmp_path / "spool").glob("*/*")), "nothing is left behind or set aside"
    answer = server.get(f"/runs/{run}/series", names="step", points=4000, x="time")
    assert answer["rows"] == training.rows
    if training.rows <= 4000:
        assert sorted(answer["series"]["step"]["value"]) == list(range(training.rows))
    assert server.get(f"/runs/{run}")["state"] == "finished"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH_KIB
    assert training.longest_put_s < 0.02, "CPU time of the training's thread"
    assert capsys.readouterr().err.count("\n") <= 4 + len(faults) // 10, "an unstable proxy is reported now and then"
    figures.keep("faults of a proxy before the agent", faults=len(faults), rows_kept=training.rows, lost=0)
