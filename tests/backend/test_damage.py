"""One damaged chunk: the rest is answered, what is missing is named, and merging goes on around it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pytest
import sqlalchemy as sa
from running import RunningServer
from wire_maker import GIB, Agent, leak, scan

from vramscope_server.__main__ import main
from vramscope_server.store import tables


def damage(server: RunningServer, stream: str, place: int, how: str) -> None:
    """Spoil the chunk at this place in the order of time, as a disk would."""
    chunks = tables.chunks

    def spoil(connection: sa.Connection, _: object) -> None:
        rows = connection.execute(
            sa.select(chunks.c.key, chunks.c.data).where(chunks.c.stream == stream).order_by(chunks.c.first_time_ns)
        ).all()
        key, blob = rows[place]
        spoiled = {
            "cut short": blob[:-9],
            "zeros": bytes(len(blob)),
            "nothing": b"",
            "a column": blob[:-60] + b"\xff" * 60,
        }
        connection.execute(chunks.update().where(chunks.c.key == key).values(data=spoiled[how]))

    server.services.writer.do(spoil).result(10)


@pytest.fixture
def three_chunks(start_server: Callable[..., RunningServer]) -> tuple[RunningServer, Agent]:
    server = start_server()
    agent = Agent()
    random = np.random.default_rng(1)
    for part in range(3):
        rows = {
            "allocated_bytes": random.integers(1, 1 << 40, 100).tolist(),
            "step": (np.arange(100) + part * 100).tolist(),
        }
        server.send(agent, agent.samples(100, at=part * 10, **rows))
        server.send(agent, agent.steps(100, at=part * 10, first=part * 100 + 1, after_step_bytes=GIB))
    return server, agent


@pytest.mark.parametrize("how", ["cut short", "zeros", "nothing", "a column"])
def test_the_rest_of_a_series_is_answered_and_the_damage_named(
    three_chunks: tuple[RunningServer, Agent], how: str
) -> None:
    server, agent = three_chunks
    damage(server, "samples", 1, how)
    answer = server.get(f"/runs/{agent.run}/series", names="allocated_bytes,step")
    assert answer["series"]["step"]["value"] == [*range(100), *range(200, 300)]
    (missing,) = answer["damaged"]
    assert (missing["rows"], missing["first_step"], missing["last_step"]) == (100, 100, 199)
    assert missing["first_seconds"] == pytest.approx(agent.start_ns / 1e9 + 10)
    before = server.get(f"/runs/{agent.run}/series", names="step", to=5)
    assert before["damaged"] == [], "it lies outside this window"


def test_figures_steps_and_the_floor_say_so_too(
    three_chunks: tuple[RunningServer, Agent], capsys: pytest.CaptureFixture[str]
) -> None:
    server, agent = three_chunks
    damage(server, "steps", 2, "zeros")
    drawn = server.get(f"/runs/{agent.run}/figures/stack")
    assert drawn["window"]["damaged"]["steps"][0]["rows"] == 100
    assert "damaged and not shown" in str(drawn["figure"]["layout"]["annotations"])
    answer = server.http.get(f"/runs/{agent.run}/steps")
    assert [step["step"] for step in answer.json()] == list(range(1, 201))
    assert answer.headers["vramscope-damaged-steps"] == "201-300"
    floor = server.get(f"/runs/{agent.run}/leaks")["floor"]
    assert (floor["steps"], floor["damaged"][0]["first_step"]) == (200, 201)
    assert main(["steps", agent.run, "--json", "--server", server.url]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 200 and "201-300 are damaged" in captured.err
    whole = server.http.get(f"/runs/{agent.run}/steps?to=100")
    assert "vramscope-damaged-steps" not in whole.headers


def test_a_damaged_chunk_does_not_stop_the_merging_of_the_others(three_chunks: tuple[RunningServer, Agent]) -> None:
    server, agent = three_chunks
    damage(server, "samples", 0, "cut short")
    server.send(agent, agent.ended())

    def left() -> int:
        with server.services.database.reader() as connection:
            of_samples = sa.select(sa.func.count()).where(tables.chunks.c.stream == "samples")
            return int(connection.execute(of_samples).scalar() or 0)

    deadline = time.monotonic() + 10
    while left() != 2:
        assert time.monotonic() < deadline, left()
        time.sleep(0.05)
    answer = server.get(f"/runs/{agent.run}/series", names="step")
    assert (answer["rows"], len(answer["damaged"])) == (200, 1)


@pytest.mark.parametrize("how", [b"", b"\xc1", b"\x81\xa1a\xff", bytes(40)])
def test_a_damaged_look_is_as_none_until_the_next(start_server: Callable[..., RunningServer], how: bytes) -> None:
    first = start_server()
    agent = Agent()
    first.send(agent, agent.samples(2), scan(leak()))
    first.services.writer.do(lambda connection, _: connection.execute(tables.scans.update().values(data=how))).result(
        10
    )
    assert first.get(f"/runs/{agent.run}/leaks")["scans"] == []
    first.stop()
    second = start_server(first.services.settings.data_dir)
    second.send(agent, agent.samples(2, at=2))
    second.send(agent, scan(leak(name="again")))
    assert [one["name"] for one in second.get(f"/runs/{agent.run}/leaks")["leaks"]] == ["again"]
