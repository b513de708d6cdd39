"""Profiles over HTTP: what they say, rows sorted and searched, figures, the trace, and what cannot be read."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import msgspec
import numpy as np
import pytest
from profile_maker import MARKUP, a_profile, history_of
from running import RunningServer
from wire_maker import Agent, steps

from vramscope.protocol import messages
from vramscope.protocol import profile as profile_tables
from vramscope.protocol.profile import NO_LINE, NOT_ATTRIBUTED, OUTSIDE, PYTHON, BadProfile, pack, unpack
from vramscope_server.analysis.profile.history import BEFORE
from vramscope_server.analysis.profile.history import history_of as history_of_table
from vramscope_server.analysis.timeline.overview import held_by


def numbers(answer: Any) -> list[float]:
    """A column of a figure, as Plotly packs it."""
    if isinstance(answer, list):
        return answer
    return np.frombuffer(base64.b64decode(answer["bdata"]), answer["dtype"]).tolist()


def send(server: RunningServer, agent: Agent, ident: str, data: bytes, kind: str = "profile", **about: Any) -> str:
    fields = {"first_step": 20, "last_step": 21, "reason": "asked for", **about}
    server.send(agent, messages.Piece(artifact=ident, kind=kind, number=0, pieces=1, about=fields, data=data))
    return ident


def test_a_profile_comes_back_as_it_was_packed_and_bad_bytes_say_what_is_wrong() -> None:
    profile = a_profile()
    assert unpack(pack(profile)) == profile
    with pytest.raises(BadProfile, match="cut off"):
        unpack(pack(profile)[:-9])
    with pytest.raises(BadProfile, match="not compressed by zlib"):
        unpack(b"{}")
    with pytest.raises(BadProfile, match=r"operations: no column 'calls'"):
        less = {name: data for name, data in profile.operations.items() if name != "calls"}
        unpack(pack(msgspec.structs.replace(profile, operations=less)))
    with pytest.raises(BadProfile, match="lines: columns of different lengths"):
        unpack(pack(msgspec.structs.replace(profile, lines={**profile.lines, "calls": b"12345678"})))
    with pytest.raises(BadProfile, match=r"history: no column 'total_bytes'"):
        less = {name: data for name, data in profile.history.items() if name != "total_bytes"}
        unpack(pack(msgspec.structs.replace(profile, history=less)))
    with pytest.raises(BadProfile, match="format 99"):
        unpack(pack(msgspec.structs.replace(profile, format=99)))
    many = profile_tables.MAX_BYTES
    try:
        profile_tables.MAX_BYTES = 100  # type: ignore[misc]
        with pytest.raises(BadProfile, match="more than 100 bytes"):
            unpack(pack(profile))
    finally:
        profile_tables.MAX_BYTES = many  # type: ignore[misc]


def test_what_a_profile_says(server: RunningServer) -> None:
    agent = Agent()
    send(server, agent, "profile00001", pack(a_profile()))
    (row,) = server.get(f"/runs/{agent.run}/profiles")["profiles"]
    assert (row["profile"], row["whole"], row["trace"]) == ("profile00001", True, None)
    assert server.get(f"/runs/{agent.run}")["profiles"] == 1
    answer = server.get("/profiles/profile00001")
    assert answer["time"].startswith(
        "A profiled step took 50.0 ms (30.0 ms without the profiler). The device was busy for 80.0 % of it."
    )
    assert "aten::mm 100.0 %" in answer["time"]
    assert answer["memory"].startswith(
        "Peak allocated is 3.00 GiB (in step 20, in the backward pass), of which 1.00 GiB existed before"
    )
    assert "by line: net.py:7 (1.50 GiB) and net.py:8 (512 MiB)" in answer["memory"]
    assert answer["tables"]["operations"]["sums"]["self_allocated_bytes"] == answer["allocated_bytes"]
    unknown = server.get(f"/profiles/{send(server, agent, 'profile00002', pack(a_profile(device_time=False)))}")
    assert "Device time is unknown" in unknown["time"] and unknown["device_busy_ns"] is None
    assert unknown["tables"]["operations"]["sums"]["self_device_ns"] is None
    on_cpu = a_profile(device=-1, device_time=False, peak_bytes=None, before_bytes=None, allocated_bytes=None)
    assert (
        "unknown: there is no CUDA device"
        in server.get(f"/profiles/{send(server, agent, 'profile00003', pack(on_cpu))}")["memory"]
    )


def test_rows_are_sorted_searched_and_cut(server: RunningServer) -> None:
    agent = Agent()
    ident = send(server, agent, "profile00004", pack(a_profile()))
    answer = server.get(f"/profiles/{ident}/tables/operations", sort="self_cpu_ns", limit=2)
    assert [row["name"] for row in answer["rows"]] == [PYTHON, "aten::mm"] and answer["rows"][0]["special"]
    assert (answer["matched"], answer["total"], answer["steps"]) == (4, 4, 2)
    assert answer["rows"][1]["phase"] == "forward" and answer["rows"][1]["shapes"] == "8x8, 8x8"
    rest = server.get(f"/profiles/{ident}/tables/operations", sort="self_cpu_ns", limit=2, offset=2)
    assert [row["self_cpu_ns"] for row in rest["rows"]] == [20_000_000, 10_000_000]
    rising = server.get(f"/profiles/{ident}/tables/operations", sort="self_cpu_ns", order="rising", limit=1)
    assert rising["rows"][0]["self_cpu_ns"] == 10_000_000
    found = server.get(f"/profiles/{ident}/tables/modules", search="linear", sort="name")
    assert [row["name"] for row in found["rows"]] == ["up"]
    assert server.get(f"/profiles/{ident}/tables/lines", search="NET.PY")["matched"] == 2
    assert server.get(f"/profiles/{ident}/tables/lines", search="nowhere")["rows"] == []
    (line,) = [row for row in server.get(f"/profiles/{ident}/tables/lines")["rows"] if row["line"] == 8]
    assert line["last_line"] is None
    wrong = server.http.get(f"/profiles/{ident}/tables/operations", params={"sort": "weight"})
    assert (
        wrong.status_code == 422 and wrong.json()["field"] == "sort" and "self_peak_bytes" in wrong.json()["expected"]
    )
    assert server.http.get(f"/profiles/{ident}/tables/threads").status_code == 422


def test_figures_show_operations_by_phase_and_modules_as_boxes(server: RunningServer) -> None:
    agent = Agent()
    ident = send(server, agent, "profile00005", pack(a_profile()))
    for by in ("peak", "allocated", "cpu", "device"):
        bars = server.get(f"/profiles/{ident}/figures/operations", by=by)["figure"]
        assert {trace["meta"]["role"] for trace in bars["data"]} <= {"phase-forward", "phase-backward", "phase-other"}
        assert "<img" not in str(bars["data"]) or "&lt;img" in str(bars["data"])
        boxes = server.get(f"/profiles/{ident}/figures/modules", by=by)["figure"]
        assert boxes["data"]
    boxes = server.get(f"/profiles/{ident}/figures/modules", by="peak")["figure"]
    (trace,) = [trace for trace in boxes["data"] if trace["meta"]["role"] == "flame-module"]
    placed = sorted(zip(*(numbers(trace[axis]) for axis in ("y", "base", "x")), strict=True))
    assert placed == [(0, 0.0, 2.0), (1, 0.0, 1.5), (2, 0.0, 0.5)], "GiB: the root, its child, and the child's"
    unknown = send(server, agent, "profile00006", pack(a_profile(device_time=False)))
    figure = server.get(f"/profiles/{unknown}/figures/operations", by="device")["figure"]
    assert figure["data"] == [] and "unknown" in figure["layout"]["annotations"][0]["text"]


def test_the_trace_is_handed_out_with_its_profile_and_goes_with_it(server: RunningServer) -> None:
    agent = Agent()
    ident = send(server, agent, "profile00007", pack(a_profile()))
    assert server.http.get(f"/profiles/{ident}/trace").status_code == 404
    trace = gzip.compress(b'{"traceEvents": []}')
    send(server, agent, "trace0000007", trace, kind="trace")
    send(server, agent, "trace0000008", b"another", kind="trace", first_step=90)
    (row,) = server.get(f"/runs/{agent.run}/profiles")["profiles"]
    assert row["trace"] == {"whole": True, "bytes": len(trace)}
    answer = server.http.get(f"/profiles/{ident}/trace")
    assert answer.headers["content-type"] == "application/gzip" and answer.content == trace
    assert f"vramscope-{agent.run}-step-20.json.gz" in answer.headers["content-disposition"]
    assert server.http.delete(f"/profiles/{ident}").status_code == 204
    assert server.get(f"/runs/{agent.run}/profiles")["profiles"] == []
    gone = server.http.get(f"/profiles/{ident}")
    assert gone.status_code == 404 and gone.json()["field"] == "profile"
    assert server.http.get("/profiles/trace0000007").status_code == 404, "a trace is no profile"


def test_what_is_not_whole_or_cannot_be_read_says_so(server: RunningServer) -> None:
    agent = Agent()
    half = messages.Piece(artifact="profile00010", kind="profile", number=0, pieces=2, about={}, data=b"x")
    server.send(agent, half)
    for path in ("", "/tables/lines", "/figures/modules"):
        answer = server.http.get(f"/profiles/profile00010{path}")
        assert answer.status_code == 409 and "1 of 2 pieces" in answer.json()["detail"]
    send(server, agent, "profile00011", b"not a profile")
    bad = server.http.get("/profiles/profile00011")
    assert bad.status_code == 422 and "cannot be read" in bad.json()["detail"]
    wild = a_profile()
    names = np.array([10**6] * 4, "<i8").tobytes()
    send(
        server,
        agent,
        "profile00012",
        pack(msgspec.structs.replace(wild, operations={**wild.operations, "name": names})),
    )
    assert {row["name"] for row in server.get("/profiles/profile00012/tables/operations")["rows"]} == {"?"}
    assert server.http.get("/profiles/profile00012").status_code == 200


def test_a_live_run_is_asked_and_told_once_and_one_that_ended_is_not(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, steps(start_ns=agent.start_ns))
    asked = server.http.post(f"/runs/{agent.run}/profiles")
    assert asked.status_code == 202 and asked.json() == {"asked": [0]}
    assert server.send(agent, steps(start_ns=agent.start_ns, first=4)).requests == [messages.RECORD_PROFILE]
    assert server.send(agent, steps(start_ns=agent.start_ns, first=7)).requests == []
    assert server.http.post(f"/runs/{agent.run}/profiles", params={"trace": 1}).status_code == 202
    assert server.send(agent, steps(start_ns=agent.start_ns, first=10)).requests == [messages.RECORD_TRACE]
    server.send(agent, messages.Ended(time_ns=agent.start_ns + 1, state="finished"))
    late = server.http.post(f"/runs/{agent.run}/profiles")
    assert late.status_code == 409 and "only a running training can be profiled" in late.json()["detail"]


def test_what_was_held_adds_up_to_what_was_allocated_at_every_moment(server: RunningServer) -> None:
    """By each table. Memory that no event reports has an area of its own, and so has memory from before."""
    ident = send(server, Agent(), "profile00031", pack(a_profile()))
    gib, mib = 1 << 30, 1 << 20
    allocated = [1, 2, 2.5, 3, 2.5, 2, *((at * gib + 3 * mib) / gib for at in (2, 1, 0.75)), 0.75]
    for table, names in {
        "operations": ["aten::mm", MARKUP, PYTHON],
        "modules": ["up", "up.inner", "Net", OUTSIDE],
        "lines": ["net.py:7", "net.py:8", NO_LINE],
    }.items():
        figure = server.get(f"/profiles/{ident}/figures/memory", table=table)["figure"]
        held = {trace["meta"]["role"].partition(":")[2]: numbers(trace["y"]) for trace in figure["data"]}
        assert list(held) == ["before the profile", *names, "(not attributed)"]
        assert np.sum(list(held.values()), 0).tolist() == allocated
        assert held["before the profile"] == [1] * 8 + [0.75] * 2
        assert held["(not attributed)"] == [0] * 6 + [2 * mib / gib] * 3 + [0]
        assert numbers(figure["data"][0]["x"]) == [*range(10)]
        (seen,) = [one["text"] for one in figure["layout"]["annotations"]]
        assert seen == "maximum not attributed: 2.00 MiB"


@pytest.mark.parametrize("changes", [{"history": {}}, {"start_bytes": None}, {"modules": {}}])
def test_a_profile_that_does_not_tell_its_moments_says_so(server: RunningServer, changes: dict[str, Any]) -> None:
    """As those of earlier agents, and those without counters or modules."""
    ident = send(server, Agent(), f"profileno{''.join(changes).replace('_', '')}", pack(a_profile(**changes)))
    figure = server.get(f"/profiles/{ident}/figures/memory", table="modules")["figure"]
    assert not figure["data"] and "no memory timeline" in figure["layout"]["annotations"][0]["text"]


def test_what_was_let_go_unseen_is_taken_from_what_was_there_before() -> None:
    """And does not come again when the allocator's count rises."""
    history = history_of([
        (100, 1_050, 0, 1, 0),  # (50 of before went unseen)
        (100, 1_200, 0, 1, 0),  # (50 came unseen)
        (-100, 1_100, 0, 1, 0),
    ])  # fmt: skip
    made = history_of_table(a_profile(history=history, start_bytes=1_000), "operations")
    assert made is not None
    names = made.grouping.names
    held = held_by(made.curve, made.grouping.group, len(names), np.arange(-1, 3))
    assert held[names.index(BEFORE)].tolist() == [1_000, 950, 950, 950]
    assert held[names.index(NOT_ATTRIBUTED)].tolist() == [0, 0, 50, 50]
    assert held.sum(0).tolist() == [1_000, 1_050, 1_200, 1_100]
