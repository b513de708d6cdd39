"""The server tells agents how often to send: its load does not grow with the number of ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from running import RunningServer
from wire_maker import Agent, new_id

from vramscope_server import send_interval
from vramscope_server.send_interval import LEAST_MS, MOST_MS, SHARE, SendInterval

Start = Callable[..., RunningServer]


class Simulation:
    """Ranks that obey, and a server whose posts cost what is given. The clock is not real."""

    def __init__(self, ranks: int, cost_seconds: float, flush_seconds: float = 0.2) -> None:
        self.now = self.cpu_seconds = 0.0
        self.interval = SendInterval(clock=lambda: self.now, cpu_clock=lambda: self.cpu_seconds)
        self.cost_seconds = cost_seconds
        self.flush_seconds = flush_seconds
        self.due = {f"s{rank}": rank * flush_seconds / ranks for rank in range(ranks)}
        self.told_ms = 0

    def run(self, seconds: float) -> float:
        """Share of a core that posts use in this time."""
        end, before = self.now + seconds, self.cpu_seconds
        while (session := min(self.due, key=lambda one: self.due[one])) and self.due[session] < end:
            self.now = max(self.now, self.due[session])
            self.cpu_seconds += self.cost_seconds
            self.told_ms = self.interval.after_post(session)
            self.due[session] = self.now + max(self.flush_seconds, self.told_ms / 1000)
        self.now = end
        return (self.cpu_seconds - before) / seconds


@pytest.mark.parametrize("cost_seconds", [0.001, 0.004])
@pytest.mark.parametrize("ranks", [200, 600])
def test_the_load_does_not_depend_on_the_number_of_ranks(ranks: int, cost_seconds: float) -> None:
    simulation = Simulation(ranks, cost_seconds)
    simulation.run(60)
    assert simulation.run(60) == pytest.approx(SHARE, rel=0.25)
    assert LEAST_MS <= simulation.told_ms <= MOST_MS


def test_few_ranks_send_as_they_are_set() -> None:
    simulation = Simulation(20, 0.001)
    assert simulation.run(60) == pytest.approx(20 * 0.001 / 0.2, rel=0.05)
    assert simulation.told_ms == 0


def test_ranks_that_ended_make_room_for_the_others() -> None:
    simulation = Simulation(600, 0.002)
    simulation.run(40)
    assert simulation.told_ms > 1000
    for session in list(simulation.due)[10:]:
        del simulation.due[session]
    simulation.run(40)
    assert simulation.told_ms == 0


def test_no_interval_makes_a_run_that_sends_count_as_lost() -> None:
    interval = SendInterval(lost_after_seconds=6.0, clock=lambda: 0.0, cpu_clock=lambda: 0.0)
    assert [interval.after_post(f"s{rank}") for rank in range(5000)][-1] == 2000


def test_a_server_asks_for_what_it_needs(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_interval, "LEAST_MS", 20)
    server = start_server()
    run = new_id()
    told = []
    for rank in range(12):
        agent = Agent(run, rank=rank, world_size=12)
        told.append(server.send(agent, agent.samples(2)).send_every_ms)
    assert told[0] == 0
    assert told == sorted(told) and told[-1] >= 20
