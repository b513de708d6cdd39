"""What only a newer agent knows: nothing else of its batch is lost; it is shown by its name or told of; a newer server has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from running import PATIENCE_SECONDS, RunningServer
from window_maker import training
from wire_maker import GIB, SECOND, Agent, column, leak, new_id, scan

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series as wire_series
from vramscope.protocol.window import BadWindow
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.figures import RUN_FIGURES
from vramscope_server.store import columns as codec
from vramscope_server.store import tables
from vramscope_server.store.artifacts import MAX_ARTIFACTS, ArtifactRecord, superfluous
from vramscope_server.store.compaction import _bounded
from vramscope_server.store.forward_compat import MOST_NAMES, MOST_SERIES, OTHERS, counted

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stored(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url)


def newer(agent: Agent, *messages: wire_messages.Cargo, more: list[dict[str, Any]], **options: Any) -> bytes:
    """A batch with messages that no Struct here describes, and with fields that none has."""
    batch = msgspec.to_builtins(agent.batch(*messages, **options), builtin_types=(bytes,))
    for message in (batch, *batch["messages"]):
        message["mood"] = {"of": ["a", "newer", "agent"]}
    batch["messages"][-1:-1] = more
    return msgspec.msgpack.encode(batch)


def everything(agent: Agent) -> bytes:
    """One batch with something new of every kind, among what is known."""
    now_ns = agent.start_ns + SECOND
    piece = wire_messages.Piece(
        artifact=new_id("a"), kind="heatmap", number=0, pieces=1, about={}, data=b"whatever it is"
    )
    tail = wire_messages.Tail(device=0, peak_allocated_bytes=9 * GIB, peak_reserved_bytes=9 * GIB, phase="export")
    return newer(
        agent,
        agent.samples(4, allocated_bytes=[1, 2, 3, 4], tensor_count=[7, 8, 9, 10], phase=[0, 2, 6, 6]),
        agent.steps(3, peak_phase=6, export_ns=5, export_peak_allocated_bytes=GIB),
        scan(leak(), leak("echo", "radio", per="epoch", emptied_after=3, growth_bytes_per_step=None), step=3),
        wire_messages.Techniques(
            time_ns=now_ns,
            step=3,
            techniques=[wire_messages.Technique(kind="weights_on_tape", chip="on tape", observed="x")],
        ),
        wire_messages.Event(time_ns=now_ns, kind="tape_ran_out"),
        piece,
        agent.ended("preempted", tails=[tail]),
        more=[
            {"type": "spectrum", "time_ns": now_ns, "lines": [1.0, 2.0]},
            {"type": "spectrum", "time_ns": now_ns},
            {"type": "block", "stream": "layers", "device": 0, "rows": 1, "columns": {"layer": column([1])}},
        ],
    )


def test_of_a_newer_agents_batch_only_what_has_no_place_is_left_out_and_the_run_says_so(
    stored: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    body = everything(agent)
    for _ in range(2):  # sent twice it counts once
        answer = stored.post(body)
        assert answer.status_code == 200, answer.text
        assert wire_messages.decode_ack(answer.content).accepted == 1
    run = stored.get(f"/runs/{agent.run}")
    assert (run["state"], run["steps"], run["peak_allocated_bytes"], run["peak_phase"]) == (
        "preempted", 3, 9 * GIB, "export",
    )  # fmt: skip
    assert [told["chip"] for told in run["techniques"]] == ["on tape"]
    assert [event["kind"] for event in run["events"]] == ["tape_ran_out"]
    kept = [
        "series 'tensor_count'",
        "series 'export_ns'",
        "series 'export_peak_allocated_bytes'",
        "recordings 'heatmap'",
    ]
    told = run["not_understood"]
    assert told["left_out"] == {"messages 'spectrum'": 2, "blocks of 'layers'": 1}
    assert sorted(told["kept"]) == sorted(kept)
    assert told["sentence"].startswith(
        "Left out: blocks of 'layers' (1), messages 'spectrum' (2). Kept until a newer server"
    )
    steps = stored.get(f"/runs/{agent.run}/steps")
    assert [step["peak_phase"] for step in steps] == ["phase 6"] * 3
    # A server that has learnt them has them from the first row on, and says no more of them.
    for stream, name in (("samples", "tensor_count"), ("steps", "export_ns"), ("steps", "export_peak_allocated_bytes")):
        monkeypatch.setitem(wire_series.STREAMS[stream], name, wire_series.Series("count", "new"))
    monkeypatch.setattr(wire_series, "ARTIFACT_KINDS", (*wire_series.ARTIFACT_KINDS, "heatmap"))
    series = stored.get(f"/runs/{agent.run}/series", stream="samples", names="tensor_count", points=100)
    assert series["series"]["tensor_count"]["value"] == [7, 8, 9, 10]
    assert stored.get(f"/runs/{agent.run}")["not_understood"]["kept"] == []


def test_what_is_all_known_says_nothing(stored: RunningServer) -> None:
    agent = Agent()
    stored.send(agent, agent.samples(4), agent.steps(3), scan(leak()), agent.ended())
    assert stored.get(f"/runs/{agent.run}")["not_understood"] is None


def test_a_leak_of_an_unknown_kind_is_told_by_its_name(stored: RunningServer, cli: Cli) -> None:
    agent = Agent(name=f"newer {new_id()}")
    assert stored.post(everything(agent)).status_code == 200
    told = stored.get(f"/runs/{agent.run}/leaks")
    assert [(found["kind"], found["kind_words"]) for found in told["leaks"]] == [
        ("growing", "graphs of earlier steps are kept"),
        ("echo", "found by a newer agent"),
    ]
    assert told["leaks"][1]["emptied"] == "after 3 epochs"
    code, out, err = cli("leaks", agent.run, "--server", stored.url)
    assert (code, err) == (0, "")
    assert "echo" in out and "411 epochs" in out
    code, out, _ = cli("show", agent.run, "--server", stored.url)
    assert code == 0
    assert "preempted" in out and "export" in out
    assert "Left out: blocks of 'layers' (1), messages 'spectrum' (2)." in " ".join(out.split())
    assert cli("ls", "--server", stored.url)[0] == 0
    lone = Agent()
    stored.send(lone, scan(leak("echo", "radio", growth_bytes_per_step=None)), lone.ended())
    verdict = stored.get(f"/runs/{lone.run}/leaks")["verdict"]
    assert verdict["level"] == "held", "nothing says that it grows"
    assert verdict["sentence"].startswith("radio (train.py:87) keeps 412 tensors, which its agent calls 'echo'.")
    assert "does not grow" not in verdict["sentence"]
    growing = Agent()
    stored.send(growing, scan(leak("echo", "radio")), growing.ended())
    assert stored.get(f"/runs/{growing.run}/leaks")["verdict"]["level"] == "leak", "its own figure says so"


def test_every_figure_of_a_run_with_an_unknown_phase_is_drawn(stored: RunningServer) -> None:
    agent = Agent()
    assert stored.post(everything(agent)).status_code == 200
    for name in RUN_FIGURES:
        for axis in ("time", "step"):
            answer = stored.http.get(f"/runs/{agent.run}/figures/{name}", params={"x": axis})
            assert answer.status_code == 200, (name, answer.text)
    assert "peak in phase 6" in str(stored.get(f"/runs/{agent.run}/figures/step_peaks", x="step"))


def test_series_that_are_kept_stay_when_chunks_are_merged(stored: RunningServer) -> None:
    agent = Agent()
    for number in range(3):
        stored.send(agent, agent.samples(4, at=number, tensor_count=number))
    stored.send(agent, agent.ended())
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(blobs := blobs_of(stored, agent)) > 1:
        assert time.monotonic() < deadline, "they are not merged"
        time.sleep(0.05)
    assert codec.Chunk(blobs[0]).column("tensor_count").tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_however_many_names_come_what_is_merged_stays_as_wide_as_a_block() -> None:
    """Each block may bring other ones; those that are known here stay."""
    rows = np.arange(4)
    known = {"time_ns": rows, "step": rows, "allocated_bytes": rows}
    opened = [{**known, **{f"made_up_{number}_{one}": rows for one in range(200)}} for number in range(16)]
    bounded = _bounded("samples", opened)
    names = {name for columns in bounded for name in columns}
    assert len(names) == len(known) + MOST_SERIES and set(known) <= names
    assert _bounded("samples", opened[:1]) == opened[:1]


def blobs_of(server: RunningServer, agent: Agent) -> list[bytes]:
    query = sa.select(tables.chunks.c.data).join(tables.runs, tables.runs.c.key == tables.chunks.c.run_key)
    with server.house.database.reader() as connection:
        return list(connection.execute(query.where(tables.runs.c.id == agent.run)).scalars())


def test_a_window_with_an_unknown_phase_opens_and_the_phase_is_unknown() -> None:
    window = training(steps=2, layers=4)
    assert set(np.unique(from_window(window).events.phase)) > {2, 3}
    codes = np.frombuffer(window.events["phase"], "<i8").copy()
    codes[codes == 3] = len(wire_series.PHASES)
    events = {**window.events, "phase": codes.tobytes()}
    opened = from_window(msgspec.structs.replace(window, events=events)).events.phase
    assert np.array_equal(opened, np.where(codes == len(wire_series.PHASES), wire_series.UNKNOWN, codes))
    events["phase"] = np.where(codes == 2, wire_series.MOST_PHASES, codes).tobytes()
    with pytest.raises(BadWindow, match="phase"):
        from_window(msgspec.structs.replace(window, events=events))


def test_recordings_that_nobody_can_show_push_out_none_that_can_be_shown() -> None:
    def record(ident: str, kind: str, received_ns: int) -> ArtifactRecord:
        return ArtifactRecord({"id": ident, "kind": kind, "bytes": 1, "received_ns": received_ns})

    old = [record(f"w{number}", "window", number) for number in range(3)]
    new = [record(f"h{number}", "heatmap", 1000 + number) for number in range(MAX_ARTIFACTS)]
    assert superfluous([*old, *new]) == ["h0", "h1", "h2"]


def test_of_many_names_that_are_left_out_some_are_counted_together() -> None:
    names = {f"messages 'm{number}'": 2 for number in range(MOST_NAMES + 5)}
    counts = counted(counted({}, names), names)
    assert len(counts) == MOST_NAMES + 1
    assert counts[OTHERS] == 20
    assert sum(counts.values()) == 4 * (MOST_NAMES + 5)
