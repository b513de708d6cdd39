"""Other ways to train a recorded step, over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from running import RunningServer
from test_recordings_seen import send
from window_maker import Allocator, recorded, training
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope.protocol.window import pack

NONE = {"gradient_accumulation": 1, "gradient_checkpointing": False, "optimizer_8bit": False, "no_foreach": False}


@pytest.fixture(scope="module")
def small(server: RunningServer) -> str:
    return send(server, pack(training()))


def test_the_recorded_way_and_what_brings_something(server: RunningServer, small: str) -> None:
    answer = server.get(f"/recordings/{small}/prediction")
    peak = server.get(f"/recordings/{small}/anatomy")
    assert answer["recording"] == small and answer["step"] == peak["step"]
    first, second = answer["rows"]
    assert first["techniques"] == NONE
    assert (first["peak_allocated_bytes"], first["saved_bytes"]) == (peak["allocated_bytes"], 0)
    assert second["techniques"] == NONE | {"optimizer_8bit": True}
    assert second["peak_allocated_bytes"] + second["saved_bytes"] == first["peak_allocated_bytes"]
    assert first["rows"] is None and first["rows_that_fit"] is None and answer["furthest_rows"] is None
    assert any("modules" in note for note in answer["notes"])


def test_ways_that_are_asked_for_come_in_their_order_and_what_cannot_be_told_is_null(
    server: RunningServer, small: str
) -> None:
    answer = server.get(
        f"/recordings/{small}/prediction", techniques="no_foreach,gradient_checkpointing+optimizer_8bit,optimizer_8bit"
    )
    assert [row["techniques"] for row in answer["rows"]] == [
        NONE,
        NONE | {"no_foreach": True},
        NONE | {"gradient_checkpointing": True, "optimizer_8bit": True},
        NONE | {"optimizer_8bit": True},
    ]
    unknown = answer["rows"][2]
    assert (unknown["peak_allocated_bytes"], unknown["saved_bytes"], unknown["rows_that_fit"]) == (None, None, None)


@pytest.mark.parametrize("words", ["fp8", "gradient_accumulation", "optimizer_8bit,,no_foreach", "x" * 1999])
def test_what_is_no_technique_is_refused_with_its_field(server: RunningServer, small: str, words: str) -> None:
    url = f"{server.url}/api/v1/recordings/{small}/prediction"
    answer = httpx.get(url, params={"techniques": words}, trust_env=False)
    assert answer.status_code == 422
    response = answer.json()
    assert response["field"] == "techniques" and "gradient_accumulation:4" in response["expected"]


def test_recordings_that_are_empty_or_not_there(server: RunningServer) -> None:
    empty = send(server, pack(recorded(None, Allocator())))
    response = server.get(f"/recordings/{empty}/prediction")
    assert (response["step"], response["rows"]) == (None, []) and response["notes"]
    answer = httpx.get(f"{server.url}/api/v1/recordings/nobody/prediction", trust_env=False)
    assert answer.status_code == 404


def test_the_command_prints_what_the_server_says(
    server: RunningServer, small: str, cli: Callable[..., tuple[int, str, str]]
) -> None:
    run = server.get(f"/recordings/{small}")["run_id"]
    code, out, err = cli("predict", run, "--server", server.url, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == server.get(f"/recordings/{small}/prediction")
    code, out, _ = cli("predict", run, "--server", server.url)
    assert code == 0
    lines: list[Any] = out.splitlines()
    assert any(line.startswith("as recorded ") for line in lines)
    assert any(line.startswith("8-bit state ") and " %" in line for line in lines)
    assert any(line.startswith("note: Checkpointing") for line in lines)
    asked = ("--technique", "gradient_checkpointing", "--technique", "gradient_accumulation:4+no_foreach")
    code, out, _ = cli("predict", run, *asked, "--server", server.url)
    assert code == 0 and "accumulation 4 + foreach=False " in out and "\ncheckpointing " in out


def test_a_baseline_whose_recording_knows_no_steps_has_nothing_to_measure_against(server: RunningServer) -> None:
    """As the last window of a history that the user records, when memory runs out."""
    base, other = Agent(name="base"), Agent(name="other")
    window = training()
    send(
        server,
        pack(msgspec.structs.replace(window, events={**window.events, "step": b"\xff" * len(window.events["step"])})),
        base,
    )
    batch = messages.Technique(kind="batch", chip="batch 8", observed="seen", detail={"batch_size": 8})
    eight_bit = messages.Technique(
        kind="optimizer_8bit", chip="8-bit", observed="seen", detail={"covered_fraction": 1.0, "bits": 8}
    )
    for agent, more in ((base, []), (other, [eight_bit])):
        server.send(
            agent, messages.Techniques(time_ns=agent.start_ns, step=1, techniques=[batch, *more]), agent.steps(3)
        )
    answer = server.get("/compare/techniques", runs=f"{base.run},{other.run}")
    assert [row["measured_peak_allocated_bytes"] for row in answer["rows"]] == [None]


def test_the_command_says_what_is_wrong(
    server: RunningServer, small: str, cli: Callable[..., tuple[int, str, str]]
) -> None:
    run = server.get(f"/recordings/{small}")["run_id"]
    code, out, err = cli("predict", run, "--technique", "checkpointing", "--server", server.url)
    assert (code, out) == (2, "") and "unknown technique 'checkpointing'" in err
    agent = Agent(name="nothing recorded")
    server.send(agent, agent.steps(3))
    code, out, err = cli("predict", agent.run, "--server", server.url)
    assert (code, out) == (3, "") and "no recording" in err


def test_what_was_predicted_of_a_run_stands_beside_what_it_took(server: RunningServer) -> None:
    """Of the steps that were recorded of the baseline; runs that differ in something else are left out."""
    base, narrow, other = Agent(name="base"), Agent(name="8-bit"), Agent(name="bf16")
    recording = send(server, pack(training()), base)
    eight_bit = messages.Technique(
        kind="optimizer_8bit", chip="8-bit 100 %", observed="seen", detail={"covered_fraction": 1.0, "bits": 8}
    )
    half = messages.Technique(kind="mixed_precision", chip="bf16", observed="seen")
    batch = messages.Technique(kind="batch", chip="batch 8", observed="seen", detail={"batch_size": 8})
    for agent, more in ((base, []), (narrow, [eight_bit]), (other, [half])):
        server.send(agent, messages.Techniques(time_ns=agent.start_ns, step=1, techniques=[batch, *more]))
    named = f"{base.run},{narrow.run},{other.run}"
    (row,) = server.get("/compare/techniques", runs=named)["rows"]
    assert (row["run"], row["measured_peak_allocated_bytes"]) == (narrow.run, None), "no step is known yet"
    server.send(narrow, narrow.steps(4, peak_allocated_bytes=[900 << 20, 901 << 20, 900 << 20, 4 << 30]))
    answer = server.get("/compare/techniques", runs=named)
    assert answer["recording"]["recording"] == recording and answer["step"] == 3
    (row,) = answer["rows"]
    assert row["techniques"] == NONE | {"optimizer_8bit": True} and row["name"] == "8-bit" and row["rows"] == 8
    assert (
        row["predicted_peak_allocated_bytes"]
        == server.get(f"/recordings/{recording}/prediction")["rows"][1]["peak_allocated_bytes"]
    )
    assert row["measured_peak_allocated_bytes"] == 901 << 20, "the fourth step was not recorded"
    assert server.get("/compare/techniques", runs=f"{narrow.run},{base.run}") == {
        "recording": None,
        "step": None,
        "rows": [],
    }
