"""What a recording shows: its moments, the strip, the map and its blocks, size classes; and what none of ours shows."""

from __future__ import annotations

import base64
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from running import RunningServer
from window_maker import MIB, Allocator, packed, recorded, training
from wire_maker import Agent, new_id

from vramscope.protocol import messages
from vramscope.protocol.window import ACTIONS, STATES, pack
from vramscope_server.analysis.trace.address_lookup import AddressIndex, address_index
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.segment_map import LinearLayout, block_at, blocks_between, cells
from vramscope_server.analysis.trace.size_classes import free_blocks, requests
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.api import fragmentation
from vramscope_server.figures.segment_map import folded
from vramscope_server.recording_cache import OpenRecording, RecordingCache


def send(server: RunningServer, data: bytes, agent: Agent | None = None, **about: messages.Scalar) -> str:
    """Bytes as a recording of a run; its id."""
    agent, ident = agent or Agent(), new_id("w")
    size = messages.MAX_PIECE_BYTES
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    for number, part in enumerate(parts):
        fields = {"artifact": ident, "kind": "window", "about": {"device": 0, **about}}
        server.send(agent, messages.Piece(number=number, pieces=len(parts), data=part, **fields))  # type: ignore[arg-type]
    return ident


@pytest.fixture(scope="module")
def small(server: RunningServer) -> str:
    return send(server, pack(training()))


def numbers(values: Any) -> np.ndarray[Any, Any]:
    """An array of a figure, as Plotly's JSON has it."""
    if isinstance(values, dict):
        flat = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
        return flat.reshape([int(n) for n in str(values["shape"]).split(",")]) if "shape" in values else flat
    return np.array(values)


# ---- the map ----


def test_the_cells_of_the_map_hold_every_byte() -> None:
    row = LinearLayout(from_window(training(5, 24, small=40)).end)
    for low, high in ((0, row.size_bytes), (3 * MIB, 200 * MIB + 77)):
        for lines, columns in ((1, 1), (7, 13), (48, 300)):
            part = cells(row, low, high, lines, columns)
            inside = part.used + part.rounding + part.pending
            assert inside.max() <= 1 + 1e-9
            blocks, held = row.layout.blocks, 0
            for at in blocks_between(row, low, high):
                block = row.block_order[at]
                if STATES[blocks.state[block]] != "inactive":
                    start, size = int(row.block_starts[at]), int(blocks.size_bytes[block])
                    held += min(start + size, high) - max(start, low)
            assert inside.sum() * part.cell_bytes == pytest.approx(held, rel=1e-9)


def test_each_offset_belongs_to_one_block_and_folding_loses_no_byte() -> None:
    row = LinearLayout(from_window(training()).end)
    blocks = row.layout.blocks
    assert row.size_bytes == row.layout.reserved_bytes == int(blocks.size_bytes.sum())
    for at, start in enumerate(row.block_starts.tolist()):
        block = int(row.block_order[at])
        size = int(blocks.size_bytes[block])
        assert block_at(row, start) == block_at(row, start + size - 1) == block
        pieces = folded(start, start + size, 0, row.size_bytes / 48)
        assert sum(end - first for _, first, end in pieces) == pytest.approx(size)
    assert block_at(row, row.size_bytes) is None


def test_the_map_draws_cells_and_from_near_each_block(server: RunningServer) -> None:
    ident = send(server, pack(training(2, 48, small=60)))
    far = server.get(f"/recordings/{ident}/map", lines=16, columns=200)
    assert (far["exact"], far["blocks"] > 2000, far["from"], far["to"]) == (False, True, 0, far["reserved_bytes"])
    heat = far["figure"]["data"][0]
    assert (heat["type"], numbers(heat["z"]).shape) == ("heatmap", (16, 200))
    assert far["allocated_bytes"] + far["pending_bytes"] + far["free_bytes"] == far["reserved_bytes"]
    near = server.get(f"/recordings/{ident}/map", **{"from": 0, "to": 64 * MIB})
    bars = [trace for trace in near["figure"]["data"] if trace["type"] == "bar"]
    drawn = sum(numbers(bar["x"]).sum() for bar in bars) * near["figure"]["layout"]["meta"]["divisor"]
    assert near["exact"]
    assert drawn == pytest.approx(64 * MIB)
    assert any("softmax" in text or "train" in text for bar in bars for text in bar["hovertext"])


def test_the_map_computes_categories_only_for_blocks(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells have none."""
    called = []
    monkeypatch.setattr(fragmentation, "categories_of_blocks", lambda *given: called.append(given))
    ident = send(server, pack(training(2, 48, small=60)))
    assert not server.get(f"/recordings/{ident}/map", lines=16, columns=200)["exact"]
    assert not called
    assert server.get(f"/recordings/{ident}/map", **{"from": 0, "to": 64 * MIB})["exact"]
    assert len(called) == 1


def test_the_map_sorts_the_addresses_of_a_recording_once(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is kept answers as one made for each map."""
    made: list[object] = []

    def counted(trace: Trace) -> AddressIndex:
        made.append(trace)
        return address_index(trace)

    monkeypatch.setattr(fragmentation, "address_index", counted)
    ident = send(server, pack(training(2, 5, first_step=70, last_step=72)))
    maps = [server.get(f"/recordings/{ident}/map", event=event) for event in (30, 60, 30)]
    assert len(made) == 1
    assert maps[0]["figure"] == maps[2]["figure"] != maps[1]["figure"]


def test_the_place_under_the_pointer_names_who_asked(server: RunningServer, small: str) -> None:
    block = server.get(f"/recordings/{small}/block", offset=0, event=-1)
    assert (block["state"], block["segment"]["pool"], block["size_bytes"] % 512) == ("active_allocated", "large", 0)
    assert block["stack"] == [{"file": "/home/me/train.py", "line": 87, "function": "train", "library": False}]
    assert server.get(f"/recordings/{small}/block", offset=1 << 50) is None


@pytest.mark.parametrize(
    ("about", "rank", "title"),
    [
        ({"first_step": 1, "last_step": 3}, 0, "gpt2 大, steps 1 to 3"),
        ({"first_step": 4, "last_step": 4}, 2, "gpt2 大, step 4, rank 2"),
        ({"first_step": -1, "last_step": -1}, 0, "gpt2 大"),
        ({}, 0, "gpt2 大"),
    ],
)
def test_an_exported_page_and_its_file_have_the_name_of_the_run_and_the_steps(
    server: RunningServer, about: dict[str, int], rank: int, title: str
) -> None:
    recording = send(server, pack(training()), Agent(name="gpt2 大", rank=rank, world_size=4), **about)
    answer = server.http.get(f"/recordings/{recording}/export", params={"format": "html"})
    assert f"<title>{title}</title>" in answer.text and f"<h1>{title}</h1>" in answer.text
    file = answer.headers["content-disposition"].partition('filename="')[2]
    assert file.startswith("gpt2_") and file.isascii() and recording not in answer.text


# ---- moments, strip, sizes ----


def test_the_moments_are_where_something_happened(server: RunningServer, small: str) -> None:
    answer = server.get(f"/recordings/{small}/moments")
    assert [step["step"] for step in answer["steps"]] == [1, 2, 3]
    at_growth = server.get(f"/recordings/{small}/map", event=answer["growth_event"])
    before = server.get(f"/recordings/{small}/map", event=answer["growth_event"] - 1)
    assert before["reserved_bytes"] < at_growth["reserved_bytes"] == answer["peak_reserved_bytes"]
    strip = server.get(f"/recordings/{small}/strip")
    assert strip["peak"]["event"] == answer["peak_event"]
    assert strip["peak"]["reserved_bytes"] == answer["peak_reserved_bytes"]
    at_peak = server.get(f"/recordings/{small}/map")
    assert at_peak["event"] == answer["peak_event"]
    assert at_peak["free_bytes"] == strip["peak"]["usable_bytes"] + strip["peak"]["unusable_bytes"]
    parts = [t for t in strip["figure"]["data"] if t["meta"]["kind"] == "area"]
    (total,) = (t for t in strip["figure"]["data"] if t["meta"]["role"] == "total")
    assert np.allclose(sum(numbers(part["y"]) for part in parts), numbers(total["y"]))
    beyond = server.http.get(f"/recordings/{small}/map", params={"event": answer["events"]})
    assert (beyond.status_code, beyond.json()["field"]) == (422, "event")


def test_the_strip_of_a_window_is_the_same_memory_seen_finer(server: RunningServer, small: str) -> None:
    whole = server.get(f"/recordings/{small}/strip", points=10)
    near = server.get(f"/recordings/{small}/strip", **{"from": 40, "to": 60})
    assert (near["from"], near["to"], near["events"]) == (40, 60, whole["events"])
    (total,) = (numbers(t["y"]) * t["meta"]["divisor"] for t in near["figure"]["data"] if t["meta"]["role"] == "total")
    (x,) = (numbers(t["x"]) for t in near["figure"]["data"] if t["meta"]["role"] == "total")
    assert x.tolist() == list(range(40, 60)), "each of its moments"
    for event, reserved in zip(x.tolist()[::6], total.tolist()[::6], strict=True):
        assert server.get(f"/recordings/{small}/map", event=int(event))["reserved_bytes"] == reserved
    assert near["highest"]["reserved_bytes"] == total.max()
    for one in ("peak", "outline", "out_of_memory", "misfits"):
        assert near[one] == whole[one], "of the whole recording"
    assert (whole["highest"]["event"], whole["highest"]["reserved_bytes"]) == (
        whole["peak"]["event"],
        whole["peak"]["reserved_bytes"],
    )
    refused = server.http.get(f"/recordings/{small}/strip", params={"from": 60, "to": 60})
    assert (refused.status_code, refused.json()["field"]) == (422, "from")


def test_sizes_are_counted_exactly_at_the_powers_of_two() -> None:
    allocator = Allocator()
    for size in (512, 513, 1024, MIB, MIB + 1, 1 << 40):
        allocator.alloc(size)
    trace = from_window(recorded(None, allocator))
    asked = requests(trace)
    by_class = {asked.first + klass: int(n) for klass, n in enumerate(asked.count.sum(axis=0)) if n}
    assert by_class == {9: 1, 10: 2, 20: 1, 21: 1, 40: 1}
    assert (asked.count[0].sum(), asked.count[1].sum(), asked.count[2].sum()) == (4, 2, 0)
    free = free_blocks(trace.end)
    assert int(free.size_bytes.sum()) == trace.end.reserved_bytes - trace.end.allocated_bytes


def test_sizes_show_requests_over_what_is_free(server: RunningServer, small: str) -> None:
    answer = server.get(f"/recordings/{small}/sizes", event=-1)
    assert {trace["meta"]["role"] for trace in answer["figure"]["data"]} <= {"pool-small", "pool-large"}
    free = sum(
        numbers(trace["y"]).sum() * trace["meta"]["divisor"]
        for trace in answer["figure"]["data"]
        if trace["yaxis"] == "y2"
    )
    assert free == pytest.approx(server.get(f"/recordings/{small}/map", event=-1)["free_bytes"])


def test_a_recording_without_events_shows_what_was_held(server: RunningServer) -> None:
    allocator = Allocator()
    allocator.alloc(5 * MIB)
    quiet = Allocator()
    quiet.segments = allocator.segments
    ident = send(server, pack(recorded(allocator.layout(), quiet)))
    answer = server.get(f"/recordings/{ident}/moments")
    assert (answer["events"], answer["peak_event"], answer["peak_reserved_bytes"]) == (0, -1, 20 * MIB)
    assert server.get(f"/recordings/{ident}/map")["allocated_bytes"] == 5 * MIB
    empty = send(server, pack(recorded(None, Allocator())))
    for part in ("moments", "strip", "map", "sizes"):
        assert server.http.get(f"/recordings/{empty}/{part}").status_code == 200, part


# ---- what is damaged, hostile or not whole ----


def broken(change: str) -> bytes:
    window = training()
    events = dict(window.events)
    match change:
        case "no zlib":
            return b"\x80\x04K\x01."
        case "no MessagePack":
            return zlib.compress(b"\xc1" * 100)
        case "cut off":
            return pack(window)[:-200]
        case "another format":
            return pack(msgspec.structs.replace(window, format=99))
        case "columns of different lengths":
            events["size_bytes"] = events["size_bytes"][:-8]
        case "an action that is none":
            events["action"] = packed({"x": [77] * (len(events["action"]) // 8)})["x"]
        case "a stack that is none":
            events["stack"] = packed({"x": [10**9] * (len(events["stack"]) // 8)})["x"]
        case "blocks that overlap":
            blocks = dict(window.end.blocks)
            blocks["address"] = packed({"x": [5] * (len(blocks["address"]) // 8)})["x"]
            return pack(msgspec.structs.replace(window, end=msgspec.structs.replace(window.end, blocks=blocks)))
    return pack(msgspec.structs.replace(window, events=events))


@pytest.mark.parametrize(
    "change",
    [
        "no zlib",
        "no MessagePack",
        "cut off",
        "another format",
        "columns of different lengths",
        "an action that is none",
        "a stack that is none",
        "blocks that overlap",
    ],
)
def test_bytes_that_are_no_recording_are_called_so(server: RunningServer, change: str) -> None:
    ident = send(server, broken(change))
    for part in ("moments", "strip", "map", "sizes", "block?offset=0"):
        refused = server.http.get(f"/recordings/{ident}/{part}")
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:vramscope:problem:bad-recording"), part
    refused = server.http.post(f"/recordings/{ident}/whatif")
    assert refused.status_code == 422
    assert server.http.get(f"/recordings/{ident}/data").content == broken(change)


def test_events_that_contradict_each_other_are_no_fault_of_ours(server: RunningServer) -> None:
    chosen = np.random.default_rng(0)
    window = training(1, 4)
    for _ in range(12):
        events = {}
        for name, column in window.events.items():
            values = np.frombuffer(column, "<i8").copy()
            if name in ("address", "size_bytes", "action"):
                chosen.shuffle(values)
            events[name] = values.tobytes()
        ident = send(server, pack(msgspec.structs.replace(window, events=events)))
        for part in ("moments", "strip", "map", "sizes"):
            answer = server.http.get(f"/recordings/{ident}/{part}")
            assert answer.status_code in (200, 422), (part, answer.text)


def test_a_history_that_cannot_have_begun_is_not_replayed(server: RunningServer) -> None:
    window = training(1, 6)
    sizes = np.frombuffer(window.events["size_bytes"], "<i8").copy()
    freed = np.frombuffer(window.events["action"], "<i8") == ACTIONS.index("free_requested")
    addresses = np.frombuffer(window.events["address"], "<i8").copy()
    addresses[np.flatnonzero(freed)[0]] = 0x6000_0000_0000  # in no segment that ever was
    sizes[np.flatnonzero(freed)[0]] = 512
    events = window.events | {"address": addresses.tobytes(), "size_bytes": sizes.tobytes()}
    ident = send(server, pack(msgspec.structs.replace(window, start=None, events=events)))
    refused = server.http.post(f"/recordings/{ident}/whatif", json={})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:vramscope:problem:bad-recording")
    assert "the start" in refused.json()["detail"]
    late = send(server, pack(msgspec.structs.replace(window, start=None)))
    assert finished(server, server.http.post(f"/recordings/{late}/whatif", json={"confs": [""]}))["state"] == "done"


def test_a_request_that_no_card_holds_is_out_of_memory_and_ends(server: RunningServer) -> None:
    """1 TiB: more than the addresses that an expandable segment reserves, too."""
    allocator = Allocator()
    allocator.alloc(1 << 40)
    huge = send(server, pack(recorded(Allocator().layout(), allocator)))
    confs = ["", "expandable_segments:True"]
    run = finished(server, server.http.post(f"/recordings/{huge}/whatif", json={"confs": confs}))
    assert [row["out_of_memory"] for row in run["result"]["rows"]] == [True, True]


def test_pieces_that_are_missing_are_told(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, messages.Piece(artifact=new_id("w"), kind="window", number=0, pieces=3, about={}, data=b"x"))
    (row,) = server.get(f"/runs/{agent.run}/recordings")["recordings"]
    for method, part in (("GET", "moments"), ("GET", "strip"), ("GET", "map"), ("POST", "whatif")):
        refused = server.http.request(method, f"/recordings/{row['recording']}/{part}")
        assert (refused.status_code, "1 of 3 pieces" in refused.json()["detail"]) == (409, True)
    assert server.http.get("/recordings/nothing/map").status_code == 404


def test_few_recordings_are_kept_open(server: RunningServer) -> None:
    shelf = RecordingCache(server.services.database, events=1000)
    idents = [send(server, pack(training(seed=seed))) for seed in range(4)]
    first = shelf.open(idents[0])
    assert shelf.open(idents[0]) is first
    for ident in idents[1:]:
        shelf.open(ident)
    assert list(shelf._open) == idents[-2:]
    assert shelf.open(idents[0]) is not first


# ---- what if ----


def finished(server: RunningServer, asked: httpx.Response) -> Any:
    answer = asked.json()
    deadline = time.monotonic() + 240  # the first replay on a machine compiles the simulator
    while answer["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        answer = server.get(f"/recordings/{answer['recording']}/whatif/{answer['job']}")
    return answer


def test_a_what_if_is_a_job_and_its_result_is_kept(server: RunningServer, small: str) -> None:
    question = {"confs": ["", "expandable_segments:True"], "device_bytes": 8 << 30}
    asked = server.http.post(f"/recordings/{small}/whatif", json=question)
    assert asked.status_code in (200, 202)
    run = finished(server, asked)
    assert run["state"] == "done", run["problem"]
    result = run["result"]
    assert [row["conf"] for row in result["rows"]][:2] == ["", "expandable_segments:True"]
    recorded_row = result["rows"][0]
    peak = server.get(f"/recordings/{small}/moments")["peak_reserved_bytes"]
    assert recorded_row["peak_reserved_bytes"] == peak
    assert recorded_row["smallest_card_bytes"] <= 8 << 30
    assert result["residual"]["words"]
    again = server.http.post(f"/recordings/{small}/whatif", json=question)
    assert (again.status_code, again.json()["result"]) == (200, result)


@pytest.mark.parametrize(
    ("question", "field", "words"),
    [
        ({"confs": ["", "max_split_size_mb:1"]}, "confs.1", "max_split_size"),
        ({"confs": ["no_such_key:1"]}, "confs.0", "no_such_key"),
        ({"confs": []}, "confs", "at least 1"),
        ({"confs": ["x:1"] * 33}, "confs", "at most 32"),
        ({"device_bytes": 5}, "device_bytes", "greater than or equal"),
        ({"device": 5}, "device", "not permitted"),
    ],
)
def test_settings_that_pytorch_would_refuse_are_refused_with_its_reason(
    server: RunningServer, small: str, question: dict[str, Any], field: str, words: str
) -> None:
    refused = server.http.post(f"/recordings/{small}/whatif", json=question)
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert words in refused.json()["detail"]


def test_what_the_run_reserved_at_other_times_is_told_beside(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(4, peak_reserved_bytes=64 << 30))
    ident = send(server, pack(training()), agent)
    run = finished(server, server.http.post(f"/recordings/{ident}/whatif", json={"confs": [""]}))
    assert run["result"]["notes"][-1].startswith("Outside this window the run reserved up to 64.0 GiB")
    alone = send(server, pack(training()))
    run = finished(server, server.http.post(f"/recordings/{alone}/whatif", json={"confs": [""]}))
    assert not any(note.startswith("Outside this window") for note in run["result"]["notes"])


def test_a_job_that_is_not_known_is_not_found(server: RunningServer, small: str) -> None:
    assert server.http.get(f"/recordings/{small}/whatif/0123456789abcdef").status_code == 404


def test_deleted_recordings_are_let_go(server: RunningServer) -> None:
    ident = send(server, pack(training()))
    server.get(f"/recordings/{ident}/moments")
    assert server.http.delete(f"/recordings/{ident}").status_code == 204
    assert ident not in server.services.recordings._open
    assert server.http.get(f"/recordings/{ident}/moments").status_code == 404


def test_what_is_deleted_while_it_is_being_opened_is_gone_and_not_damaged(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = send(server, pack(training()))
    open_it = server.services.recordings.open

    def deleted_first(wanted: str) -> OpenRecording:
        assert server.http.delete(f"/recordings/{ident}").status_code == 204
        return open_it(wanted)

    monkeypatch.setattr(server.services.recordings, "open", deleted_first)
    assert server.http.get(f"/recordings/{ident}/moments").status_code == 404


def test_who_asks_for_something_else_does_not_wait_and_who_asks_for_the_same_does() -> None:
    opened = OpenRecording(from_window(training()))
    seen, go_on, made = threading.Event(), threading.Event(), []

    def slow() -> str:
        made.append("slow")
        seen.set()
        assert go_on.wait(20)
        return "slow"

    def never() -> str:
        raise AssertionError("it was made already")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(opened.once, ("slow",), slow)
        assert seen.wait(20)
        second = threads.submit(opened.once, ("slow",), slow)
        assert opened.once(("quick",), lambda: opened.once(("inner",), lambda: "quick")) == "quick"
        go_on.set()
        assert (first.result(20), second.result(20), made) == ("slow", "slow", ["slow"])
    with pytest.raises(ZeroDivisionError):
        opened.once(("fails",), lambda: 1 // 0)
    assert opened.once(("fails",), lambda: 1) == 1, "tried again"
    for at in range(60):
        opened.once(("row", at), object)
    assert opened.once(("quick",), never) == "quick", "another kind takes no place of its"
    assert opened.once(("row", 0), lambda: "new") == "new"
