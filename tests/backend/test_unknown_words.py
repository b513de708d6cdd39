"""Words of the wire's lists that this server does not know are stored and shown; all else that is unknown is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from running import RunningServer
from window_maker import training
from wire_maker import GIB, SECOND, Agent, column, leak, new_id, scan

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series as wire_series
from vramscope.protocol.window import ACTIONS, MOST_CATEGORIES, OWNER_CATEGORIES, BadWindow, pack, unpack
from vramscope_server.analysis.ownership.allocation_owners import name_of, ownership_of
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.figures.registry import RUN_FIGURES
from vramscope_server.store.artifacts import MAX_ARTIFACTS, ArtifactRecord, superfluous

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stored(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url)


def everything(agent: Agent) -> bytes:
    """A batch with an unknown word in every list, and with fields that no message has."""
    now_ns = agent.start_ns + SECOND
    piece = wire_messages.Piece(artifact=new_id("a"), kind="heatmap", number=0, pieces=1, about={}, data=b"content")
    tail = wire_messages.Tail(device=0, peak_allocated_bytes=9 * GIB, peak_reserved_bytes=9 * GIB, phase="export")
    known = agent.batch(
        agent.samples(4, allocated_bytes=[1, 2, 3, 4], phase=[0, 2, 6, 6]),
        agent.steps(3, peak_phase=6),
        scan(leak(), leak("echo", "radio", per="epoch", emptied_after=3, growth_bytes_per_step=None), step=3),
        wire_messages.Techniques(
            time_ns=now_ns,
            step=3,
            techniques=[wire_messages.Technique(kind="weights_on_tape", chip="on tape", observed="x")],
        ),
        wire_messages.Event(time_ns=now_ns, kind="tape_ran_out"),
        piece,
        agent.ended("preempted", tails=[tail]),
    )
    batch = msgspec.to_builtins(known, builtin_types=(bytes,))
    for message in (batch, *batch["messages"]):
        message["mood"] = {"of": ["an", "unknown", "agent"]}
    return msgspec.msgpack.encode(batch)


def test_unknown_words_are_stored_and_shown_as_they_are(stored: RunningServer) -> None:
    agent = Agent()
    body = everything(agent)
    for _ in range(2):  # a batch that is sent twice counts once
        answer = stored.post(body)
        assert answer.status_code == 200, answer.text
        assert wire_messages.decode_ack(answer.content).accepted == 1
    run = stored.get(f"/runs/{agent.run}")
    assert (run["state"], run["steps"], run["peak_allocated_bytes"], run["peak_phase"]) == (
        "preempted", 3, 9 * GIB, "export",
    )  # fmt: skip
    assert [technique["chip"] for technique in run["techniques"]] == ["on tape"]
    assert [event["kind"] for event in run["events"]] == ["tape_ran_out"]
    steps = stored.get(f"/runs/{agent.run}/steps")
    assert [step["peak_phase"] for step in steps] == ["phase 6"] * 3


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"type": "spectrum", "time_ns": 1}, "messages[1].type"),
        (
            {"type": "block", "stream": "layers", "device": 0, "rows": 1, "columns": {"layer": column([1])}},
            "messages[1].stream",
        ),
        (
            {
                "type": "block",
                "stream": "samples",
                "device": 0,
                "rows": 1,
                "columns": {"time_ns": column([1]), "step": column([1]), "tensor_count": column([1])},
            },
            "messages[1].columns",
        ),
    ],
)
def test_unknown_messages_streams_and_series_are_refused_by_name(
    stored: RunningServer, message: dict[str, Any], field: str
) -> None:
    agent = Agent()
    batch = msgspec.to_builtins(agent.batch(agent.samples(1)), builtin_types=(bytes,))
    batch["messages"].insert(1, message)
    answer = stored.post(msgspec.msgpack.encode(batch))
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert stored.http.get(f"/runs/{agent.run}").status_code == 404


def test_another_wire_version_is_refused_and_both_are_named(stored: RunningServer) -> None:
    agent = Agent()
    batch = msgspec.to_builtins(agent.batch(agent.samples(1)), builtin_types=(bytes,))
    batch["wire"] = wire_messages.WIRE_VERSION + 1
    answer = stored.post(msgspec.msgpack.encode(batch))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:vramscope:problem:wire-version")
    assert problem["detail"].startswith("The agent speaks wire version 2, this server speaks 1")


def test_leak_of_an_unknown_kind_is_named(stored: RunningServer, cli: Cli) -> None:
    agent = Agent(name=f"newer {new_id()}")
    assert stored.post(everything(agent)).status_code == 200
    answer = stored.get(f"/runs/{agent.run}/leaks")
    assert [(found["kind"], found["kind_words"]) for found in answer["leaks"]] == [
        ("growing", "graphs of earlier steps are kept"),
        ("echo", "found by a newer agent"),
    ]
    assert answer["leaks"][1]["emptied"] == "after 3 epochs"
    code, out, err = cli("leaks", agent.run, "--server", stored.url)
    assert (code, err) == (0, "")
    assert "echo" in out and "411 epochs" in out
    code, out, _ = cli("show", agent.run, "--server", stored.url)
    assert code == 0
    assert "preempted" in out and "export" in out
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


def test_figures_draw_a_run_with_an_unknown_phase(stored: RunningServer) -> None:
    agent = Agent()
    assert stored.post(everything(agent)).status_code == 200
    for name in RUN_FIGURES:
        for axis in ("time", "step"):
            answer = stored.http.get(f"/runs/{agent.run}/figures/{name}", params={"x": axis})
            assert answer.status_code == 200, (name, answer.text)
    assert stored.get(f"/runs/{agent.run}/peak")["phase"] == "phase 6"


def test_unknown_phase_in_a_recording_reads_as_unknown() -> None:
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


def test_owner_category_of_a_newer_agent_reads_as_unknown() -> None:
    """The owner's name is known all the same. A category that is known wins where the same memory has both."""
    window = training(steps=2, layers=4)
    events = {name: np.frombuffer(column, "<i8") for name, column in window.events.items()}
    born = np.flatnonzero((events["action"] == ACTIONS.index("alloc")) & (events["phase"] == 2))[:2]
    rows = {
        "event": [*(born + 1), born[1] + 1],
        "address": [*events["address"][born], events["address"][born[1]]],
        "category": [len(OWNER_CATEGORIES), len(OWNER_CATEGORIES) + 5, OWNER_CATEGORIES.index("gradients")],
        "name": [0, 1, 1],
    }
    owners = {name: np.array(values, "<i8").tobytes() for name, values in rows.items()}
    names = ["page 3 of a cache", "gradient of weight"]
    trace = from_window(unpack(pack(msgspec.structs.replace(window, owners=owners, owner_names=names))))
    of = ownership_of(trace)
    lives = [int(np.flatnonzero(trace.lives.alloc_event == event)[0]) for event in born]
    assert [name_of(trace, of, life) for life in lives] == names
    assert [CATEGORIES[categories_of(trace)[life]] for life in lives] == ["unknown", "gradients"]
    assert sum(row["bytes"] for row in summary(trace)["categories"]) == summary(trace)["allocated_bytes"]
    owners["category"] = np.array([MOST_CATEGORIES] * 3, "<i8").tobytes()
    with pytest.raises(BadWindow, match="category"):
        from_window(msgspec.structs.replace(window, owners=owners, owner_names=names))


def test_artifacts_of_unknown_kinds_are_removed_first() -> None:
    def record(ident: str, kind: str, received_ns: int) -> ArtifactRecord:
        return ArtifactRecord(
            id=ident,
            run_key=1,
            session_id="s",
            rank=0,
            kind=kind,
            about=b"",
            pieces=1,
            bytes=1,
            received_ns=received_ns,
        )

    old = [record(f"w{number}", "window", number) for number in range(3)]
    new = [record(f"h{number}", "heatmap", 1000 + number) for number in range(MAX_ARTIFACTS)]
    assert superfluous([*old, *new]) == ["h0", "h1", "h2"]
