"""Recordings from the wire to the API: pieces in any order, twice, contradicting, missing; bounds; asking for one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from running import RunningServer
from wire_maker import Agent, new_id

from vramscope.protocol import messages
from vramscope_server.store import artifacts, tables

ABOUT: dict[str, messages.Scalar] = {
    "device": 0,
    "first_step": 1,
    "last_step": 3,
    "reason": "the first steps",
    "events": 12,
}


@pytest.fixture
def stored(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url)


def cut(data: bytes, parts: int, *, artifact: str | None = None, **fields: Any) -> list[messages.Piece]:
    """An artifact's pieces."""
    size = -(-len(data) // parts)
    common: dict[str, Any] = {"artifact": artifact or new_id("w"), "kind": "window", "pieces": parts, "about": ABOUT}
    return [messages.Piece(number=i, data=data[i * size : (i + 1) * size], **(common | fields)) for i in range(parts)]


def of(server: RunningServer, agent: Agent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/runs/{agent.run}/recordings")["recordings"]
    return found


def data_of(server: RunningServer, recording: str) -> httpx.Response:
    return server.http.get(f"/recordings/{recording}/data")


def rows_in(server: RunningServer, table: sa.Table) -> int:
    with server.services.database.reader() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


# ---- pieces ----


def test_pieces_make_a_whole_in_any_order_and_twice_is_once(stored: RunningServer) -> None:
    agent, data = Agent(), os.urandom(3000)
    first, second, third = cut(data, 3)
    stored.send(agent, third, third)
    (row,) = of(stored, agent)
    assert (row["whole"], row["pieces_received"], row["pieces"], row["bytes"]) == (False, 1, 3, 1000)
    assert row["about"] == ABOUT
    refused = data_of(stored, row["recording"])
    assert refused.status_code == 409
    assert "1 of 3 pieces" in refused.json()["detail"]
    stored.send(agent, first)
    stored.send(agent, first, sequence=2)  # the same batch again
    stored.send(agent, third, second)
    stored.send(agent, second)
    (row,) = of(stored, agent)
    assert (row["whole"], row["pieces_received"], row["bytes"]) == (True, 3, 3000)
    assert data_of(stored, row["recording"]).content == data
    assert stored.get(f"/recordings/{row['recording']}") == row
    assert stored.get(f"/runs/{agent.run}")["recordings"] == 1


def test_a_restarted_server_goes_on_where_it_was(start_server: Callable[..., RunningServer]) -> None:
    agent, data = Agent(), os.urandom(100)
    pieces = cut(data, 4)
    before = start_server()
    before.send(agent, pieces[0], pieces[2])
    before.stop()
    after = start_server(before.services.settings.data_dir)
    after.send(agent, pieces[2], pieces[3])
    after.send(agent, pieces[1])
    assert data_of(after, of(after, agent)[0]["recording"]).content == data


@pytest.mark.parametrize(
    ("change", "field"),
    [({"pieces": 5}, "piece.pieces"), ({"about": {"device": 1}}, "piece.about")],
)
def test_a_piece_that_tells_otherwise_than_the_first_is_refused_and_changes_nothing(
    stored: RunningServer, change: dict[str, Any], field: str
) -> None:
    agent = Agent()
    first, second = cut(b"abcdef", 2)
    stored.send(agent, first)
    odd = msgspec.structs.replace(second, **change)
    refused = stored.post(agent.body(odd))
    assert refused.status_code == 422
    assert refused.json()["field"] == field
    assert first.artifact in refused.json()["detail"]
    (row,) = of(stored, agent)
    assert (row["pieces"], row["pieces_received"]) == (2, 1)
    stored.send(agent, second, sequence=agent.sequence)
    assert of(stored, agent)[0]["whole"]


def test_contradictions_within_a_batch_name_the_message(stored: RunningServer) -> None:
    agent = Agent()
    first, second = cut(b"abcdef", 2)
    refused = stored.post(agent.body(first, msgspec.structs.replace(second, pieces=3)))
    assert (refused.status_code, refused.json()["field"]) == (422, "messages[2].pieces")
    refused = stored.post(Agent().body(msgspec.structs.replace(second, number=2)))
    assert (refused.status_code, refused.json()["field"]) == (422, "messages[1].number")
    assert rows_in(stored, tables.artifacts) == 0


def test_an_id_belongs_to_one_run(stored: RunningServer) -> None:
    mine, other = Agent(), Agent()
    first, second = cut(b"abcdef", 2)
    stored.send(mine, first)
    refused = stored.post(other.body(second))
    assert (refused.status_code, refused.json()["field"]) == (422, "piece.artifact")
    stored.services.writer.do(lambda _, state: state.forget()).result(10)  # as after a restart: asked of the database
    assert stored.post(other.body(second, sequence=1)).status_code == 422
    stored.send(mine, second)
    assert of(stored, mine)[0]["whole"]


def test_odd_words_in_about_come_back_as_they_were(stored: RunningServer) -> None:
    agent = Agent()
    odd: dict[str, messages.Scalar] = {"a\0b": "nul \0, ☃", "nan": float("nan"), "none": None}
    stored.send(agent, *cut(b"x", 1, about=odd))
    assert of(stored, agent)[0]["about"] == {**odd, "nan": None}


# ---- bounds ----


def test_a_run_keeps_its_newest_recordings(stored: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_ARTIFACTS", 3)
    agent = Agent()
    made = [cut(b"abcd", 2) for _ in range(5)]
    for first, second in made:
        stored.send(agent, first)
        stored.send(agent, second)
    stored.send(agent, made[-1][0])
    assert [row["recording"] for row in of(stored, agent)] == [pieces[0].artifact for pieces in made[:1:-1]]
    assert rows_in(stored, tables.artifact_pieces) == 6


def test_a_run_keeps_so_many_bytes(stored: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_BYTES", 10)
    agent = Agent()
    small, large = cut(b"abcd", 1), cut(b"0123456789abcd", 2)
    stored.send(agent, *small)
    stored.send(agent, *large)
    (row,) = of(stored, agent)  # the newest stays, however large
    assert (row["recording"], row["whole"]) == (large[0].artifact, True)
    assert rows_in(stored, tables.artifact_pieces) == 2


def test_they_go_with_their_run_and_one_by_one(stored: RunningServer) -> None:
    agent = Agent()
    one, two = cut(b"abcd", 2), cut(b"efgh", 1)
    stored.send(agent, *one)
    stored.send(agent, *two)
    assert stored.http.delete(f"/recordings/{two[0].artifact}").status_code == 204
    gone = stored.http.delete(f"/recordings/{two[0].artifact}")
    assert (gone.status_code, gone.json()["field"]) == (404, "recording")
    assert [row["recording"] for row in of(stored, agent)] == [one[0].artifact]
    assert stored.get(f"/runs/{agent.run}")["recordings"] == 1
    stored.send(agent, agent.ended())
    assert stored.http.delete(f"/runs/{agent.run}").status_code == 204
    assert rows_in(stored, tables.artifacts) == rows_in(stored, tables.artifact_pieces) == 0
    assert stored.http.get(f"/recordings/{one[0].artifact}").status_code == 404


# ---- asking ----


def test_the_next_ack_asks_each_live_session_once(stored: RunningServer) -> None:
    run = new_id()
    zero, one = (Agent(run, rank=rank, world_size=2) for rank in (0, 1))
    stored.send(zero)
    stored.send(one)
    asked = stored.http.post(f"/runs/{run}/recordings")
    assert (asked.status_code, asked.json()) == (202, {"asked": [0, 1]})
    assert stored.send(zero, zero.samples()).requests == [messages.RECORD_WINDOW]
    assert stored.send(zero, zero.samples()).requests == []
    assert stored.send(one, one.samples()).requests == [messages.RECORD_WINDOW]
    assert stored.http.post(f"/runs/{run}/recordings", params={"rank": 1}).json() == {"asked": [1]}
    assert stored.send(zero, zero.samples()).requests == []
    assert stored.send(one, one.samples()).requests == [messages.RECORD_WINDOW]


def test_where_nobody_is_live_nobody_can_be_asked(stored: RunningServer) -> None:
    agent = Agent(name="gone home")
    stored.send(agent, agent.ended())
    refused = stored.http.post(f"/runs/{agent.run}/recordings")
    assert refused.status_code == 409
    assert "gone home is not live" in refused.json()["detail"]
    live = Agent()
    stored.send(live)
    refused = stored.http.post(f"/runs/{live.run}/recordings", params={"rank": 7})
    assert (refused.status_code, "rank 7" in refused.json()["detail"]) == (409, True)
    assert stored.http.post("/runs/nowhere/recordings").status_code == 404


def test_those_who_watch_hear_of_a_whole_one(stored: RunningServer) -> None:
    agent = Agent()
    stored.send(agent)
    last = stored.get("/live/delta")["last"]
    first, second = cut(b"abcd", 2)
    stored.send(agent, first)
    stored.send(agent, second)
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    while not events and time.monotonic() < deadline:
        time.sleep(0.05)
        found = stored.get("/live/delta", after=last, runs=agent.run)["events"]
        events = [event["data"] for event in found if event["event"] == "recording"]
    assert events == [{"run": agent.run, "rank": 0, "recording": first.artifact}]
