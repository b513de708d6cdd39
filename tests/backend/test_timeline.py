"""The timeline over HTTP: what each call answers, and what it says to questions that cannot be."""

from __future__ import annotations

import re
from array import array
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running import RunningServer
from test_recordings_seen import numbers, send
from window_maker import GIB, MIB, Allocator, recorded, training

from vramscope.protocol.window import pack

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def small(server: RunningServer) -> str:
    return send(server, pack(training()))


def test_the_figures_show_what_the_answers_say(server: RunningServer, small: str) -> None:
    answer = server.get(f"/recordings/{small}/timeline")
    areas = [trace for trace in answer["figure"]["data"] if trace["meta"]["kind"] == "area"]
    assert [trace["meta"]["colour"] for trace in areas] == [series["colour"] for series in answer["series"]]
    top = sum(numbers(trace["y"]) for trace in areas) * areas[0]["meta"]["divisor"]
    assert np.array_equal(np.round(top[:-1]), answer["outline"]["allocated_bytes"])
    assert top[-1] == top[-2], "the last event lasts until the end"
    assert max(answer["outline"]["allocated_bytes"]) == answer["peak"]["allocated_bytes"] == round(top.max())
    assert sum(series["peak_bytes"] for series in answer["series"]) == answer["peak"]["allocated_bytes"]
    spans = [trace for trace in answer["figure"]["data"] if trace["meta"]["kind"] == "span"]
    drawn = sum(text.startswith("phase") for trace in spans for text in trace["hovertext"])
    phases = array("q", training().events["phase"])
    assert drawn + answer["ruler"]["left_out"]["phase"] == sum(1 for phase, _ in groupby(phases) if phase >= 0)
    near = server.get(f"/recordings/{small}/allocations", **{"from": 10, "to": 60, "by": "site"})
    assert (near["from"], near["to"], near["left_out"], near["left_out_peak_bytes"]) == (10, 60, 0, 0)
    polygons = [trace for trace in near["figure"]["data"] if trace["meta"]["kind"] == "polygon"]
    assert sum(len(trace["meta"]["rows"]) for trace in polygons) == near["drawn"]
    for trace in polygons:
        x, y = numbers(trace["x"]), numbers(trace["y"])
        assert len(x) == len(y)
        assert np.flatnonzero(np.isnan(y)).tolist() == trace["meta"]["ends"], "a gap behind each polygon"
    flame = server.get(f"/recordings/{small}/flame")
    assert flame["moment"] == answer["look_at"]
    assert flame["drawn"] == sum(len(trace["text"]) for trace in flame["figure"]["data"])
    closer = server.get(f"/recordings/{small}/flame", focus=flame["figure"]["data"][0]["customdata"][1], event=0)
    assert closer["focus_lost"] is True
    assert (closer["focus_names"], closer["focus_bytes"]) == ([], closer["total_bytes"])


def test_a_place_of_the_picture_is_an_allocation(server: RunningServer, small: str) -> None:
    for detail in ("areas", "allocations"):
        found = server.get(f"/recordings/{small}/at", event=100, bytes=400 * MIB, detail=detail)
        one = found["allocation"]
        assert one["born"]["event"] <= 100 < one["freed"]["event"]
        assert server.get(f"/recordings/{small}/life", allocation=one["allocation"]) == one
    above = server.get(f"/recordings/{small}/at", event=100, bytes=80 * GIB)
    assert (above["allocation"], above["series"], above["in_band"]) == (None, None, False)
    moment = server.get(f"/recordings/{small}/at", event=100)
    assert moment["allocated_bytes"] == above["allocated_bytes"] <= moment["reserved_bytes"]


def test_what_cannot_be_is_refused_by_the_name_of_its_field(server: RunningServer, small: str) -> None:
    events = server.get(f"/recordings/{small}/timeline")["events"]
    for part, asked, field in (
        ("timeline", {"by": "colour"}, "by"),
        ("timeline", {"from": 60, "to": 60}, "from"),
        ("timeline", {"from": events, "to": events + 5}, "from"),
        ("timeline", {"from": -2}, "from"),
        ("timeline", {"points": 5}, "points"),
        ("allocations", {"to": -1}, "to"),
        ("at", {"event": events}, "event"),
        ("at", {"event": 1, "bytes": -1}, "bytes"),
        ("at", {"event": 1, "bytes": 1, "detail": "all"}, "detail"),
        ("life", {"allocation": 10**9}, "allocation"),
        ("life", {}, "allocation"),
        ("flame", {"focus": "here"}, "focus"),
        ("flame", {"by": "line"}, "by"),
        ("flame", {"event": 10**30}, "event"),
        ("between", {"a": 1}, "b"),
        ("between", {"a": events, "b": 1}, "a"),
    ):
        refused = httpx.get(f"{server.url}/api/v1/recordings/{small}/{part}", params=asked, trust_env=False)
        assert (refused.status_code, refused.json()["field"]) == (422, field), (part, asked, refused.text)
    assert httpx.get(f"{server.url}/api/v1/recordings/none/timeline", trust_env=False).status_code == 404


def test_nothing_recorded_and_names_with_markup_are_shown_as_they_are(server: RunningServer) -> None:
    allocator = Allocator()
    block = allocator.alloc(3 * MIB, 0)
    allocator.events = {name: [] for name in allocator.events}
    words = ["<b>me</b>/%{x}.py"] * 5 + ["<script>alert(1)</script>"] * 5
    empty = send(server, pack(recorded(allocator.layout(), allocator, words=words)))
    answer = server.get(f"/recordings/{empty}/timeline", by="site")
    assert (answer["events"], answer["peak"]["allocated_bytes"], answer["peak"]["step"]) == (0, block.size, None)
    assert server.get(f"/recordings/{empty}/allocations")["drawn"] == 1
    assert server.get(f"/recordings/{empty}/between", a=-1, b=-1)["both_bytes"] == block.size
    texts = [
        text for trace in server.get(f"/recordings/{empty}/flame")["figure"]["data"] for text in trace["hovertext"]
    ]
    assert texts and not any("<script>" in text or "<b>" in text or "%{" in text for text in texts)
    near = server.get(f"/recordings/{empty}/allocations", by="site")
    drawn = [*answer["figure"]["data"], *near["figure"]["data"]]
    labels = [trace["name"] for trace in drawn if trace["meta"]["kind"] in ("area", "polygon")]
    assert len(labels) == 2
    assert not any("<script>" in label for label in labels)


def test_every_field_of_the_timeline_stands_in_the_http_document(server: RunningServer, small: str) -> None:
    text = (DOCS / "http.md").read_text()

    def names(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(names, value))
        if not isinstance(value, dict):
            return set()
        return set(value) | set().union(*(names(one) for name, one in value.items() if name != "figure"))

    for part, asked in (
        ("timeline", {}),
        ("allocations", {}),
        ("at", {"event": 100, "bytes": MIB}),
        ("flame", {}),
        ("between", {"a": 1, "b": 90}),
    ):
        answer = server.get(f"/recordings/{small}/{part}", **asked)
        assert not [name for name in names(answer) if not re.search(rf"\b{name}\b", text)], part
