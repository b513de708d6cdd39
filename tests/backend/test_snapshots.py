"""Snapshot files: taken in, converted by a process of their own, opened like recordings, deleted; and all that can go wrong."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from disks import SmallDisk
from running import PATIENCE_SECONDS, RunningServer
from snapshot_maker import (
    AS_TEXT,
    BASE,
    IN_FORCE,
    MARKUP,
    MIB,
    SETTINGS,
    Held,
    HeldAtStart,
    file_of_stacks,
    snapshot_of,
    two_sizes,
    with_private_pool,
)
from waiting import CONVERSION_SECONDS, eventually

from vramscope_server import snapshots
from vramscope_server.analysis.fragmentation.breakdown import parts_of
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.curve import allocation_curve
from vramscope_server.analysis.timeline.flamegraph import MOST_BOXES
from vramscope_server.analysis.timeline.grouping import grouping_of
from vramscope_server.analysis.timeline.render_cache import KEPT, load_pictures, save_pictures
from vramscope_server.analysis.trace import export
from vramscope_server.analysis.trace.column_store import load, mapped, save, save_column, save_stacks
from vramscope_server.analysis.trace.trace import layout_at
from vramscope_server.artifact_store import disk_space
from vramscope_server.store.snapshots import list_snapshots

pytestmark = pytest.mark.timeout(900)  # the first conversion on a machine compiles what reads: 20 s of a core


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("snapshots"))
    yield running
    running.stop()


def upload(server: RunningServer, data: bytes, name: str = "a.pickle") -> dict[str, Any]:
    answer = server.http.post("/snapshots", content=data, params={"name": name})
    assert answer.status_code in (200, 202), answer.text
    response: dict[str, Any] = answer.json()
    return response


def settled(server: RunningServer, ident: str) -> dict[str, Any]:
    """The row once it is ready or failed."""
    return eventually(
        lambda: (answer := server.http.get(f"/snapshots/{ident}").json())["state"] in ("ready", "failed") and answer,
        CONVERSION_SECONDS,
    )


@pytest.fixture(scope="module")
def ready(server: RunningServer) -> dict[str, Any]:
    """Two devices, names with markup, gzipped."""
    data = gzip.compress(pickle.dumps(snapshot_of(40, devices=2)))
    answer = upload(server, data, f"{MARKUP}.gz")
    assert answer["known"] is False
    assert answer["sha256"] == hashlib.sha256(data).hexdigest()
    row = settled(server, answer["snapshot"])
    assert (row["state"], row["problem"]) == ("ready", None)
    return row


def files(server: RunningServer, *parts: str) -> list[str]:
    folder = server.services.snapshots.folder.joinpath(*parts)
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


# ---- what is there ----


def test_each_device_opens_like_a_recording(server: RunningServer, ready: dict[str, Any]) -> None:
    assert [one["device"] for one in ready["devices"]] == [0, 1]
    assert ready["name"] == f"{MARKUP}.gz"
    for one in ready["devices"]:
        assert one["events"] == 120
        moments = server.get(f"/recordings/{one['recording']}/moments")
        assert (moments["run_id"], moments["peak_reserved_bytes"]) == (None, 80 * MIB)
        assert server.get(f"/recordings/{one['recording']}/timeline")["peak"]["allocated_bytes"] == 20 * MIB
        assert server.get(f"/recordings/{one['recording']}/strip")["peak"]["reserved_bytes"] == 80 * MIB
        assert server.get(f"/recordings/{one['recording']}/map")["allocated_bytes"] == 20 * MIB
    assert server.http.get(f"/recordings/{ready['snapshot']}-7/moments").status_code == 404


def test_a_private_pool_and_the_settings_in_force_are_shown(server: RunningServer) -> None:
    """A CUDA graph's pool in the list, the map, one allocation and the events; each setting that the file tells."""
    contents = with_private_pool(snapshot_of(20, devices=2), segments=6)
    row = settled(server, upload(server, pickle.dumps(contents))["snapshot"])
    one, other = row["devices"]
    assert (one["private_pools"], other["private_pools"]) == ([[0, 1]], [])
    assert (one["settings"], one["settings_given"]) == (AS_TEXT, SETTINGS["PYTORCH_CUDA_ALLOC_CONF"])
    assert one["settings_in_force"] == IN_FORCE
    written = server.http.get(f"/recordings/{one['recording']}/export", params={"format": "perfetto"})
    assert json.loads(written.content)["otherData"]["settings"] == AS_TEXT
    path = f"/recordings/{one['recording']}"
    places = [server.get(f"{path}/block", offset=2 * MIB * at)["segment"] for at in range(20)]
    assert [place["private_pool"] for place in places] == [None] * 14 + [[0, 1]] * 6, "the map: the default pool first"
    assert {place["address"] for place in places[14:]} == {BASE + at * 2 * MIB for at in range(14, 20)}
    assert server.get(f"{path}/map")["segments"] == 20
    assert server.get(f"{path}/life", allocation=15)["private_pool"] == [0, 1]
    assert server.get(f"{path}/life", allocation=3)["private_pool"] is None
    pools = {tuple(pool["id"]): pool["pool"] for pool in server.get(f"{path}/events", limit=1)["pools"]}
    assert server.get(f"{path}/events", pool=pools[0, 1])["matching"] == 18
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204


def test_only_its_bytes_and_its_deletion_are_elsewhere(server: RunningServer, ready: dict[str, Any]) -> None:
    recording = ready["devices"][0]["recording"]
    for answer in (server.http.get(f"/recordings/{recording}/data"), server.http.delete(f"/recordings/{recording}")):
        assert answer.status_code == 409
        assert f"/snapshots/{ready['snapshot']}" in answer.json()["detail"]


def test_columns_on_the_disk_give_the_same_trace(tmp_path: Path) -> None:
    (trace,) = read(pickle.dumps(snapshot_of(30))).devices
    save_stacks(trace, tmp_path / "stacks")
    moments = save(trace, tmp_path / "0")
    again, same, parts = load(tmp_path / "0", tmp_path / "stacks")
    assert same == moments
    assert all(np.array_equal(one, other) for one, other in zip(parts, parts_of(trace), strict=True))
    assert load_pictures(tmp_path / "0") is None, "as in folders of earlier versions"
    save_pictures(trace, tmp_path / "0")
    pictures = load_pictures(tmp_path / "0")
    assert pictures is not None
    curve = allocation_curve(trace)
    for kept, made in zip(
        [pictures[0], *pictures[1]], [curve, *(grouping_of(trace, curve, by) for by in KEPT)], strict=True
    ):
        for one in fields(made):
            assert np.array_equal(getattr(kept, one.name), getattr(made, one.name)), one.name
    assert list(again.stacks) == list(trace.stacks)
    for part in ("events", "lives", "segment_lives"):
        for name in getattr(trace, part).__slots__:
            if name != "unended":
                assert np.array_equal(getattr(getattr(again, part), name), getattr(getattr(trace, part), name)), name
    for event in (-1, 17, len(trace.events) - 1):
        one, other = layout_at(trace, event), layout_at(again, event)
        assert np.array_equal(one.blocks.size_bytes, other.blocks.size_bytes)
        assert np.array_equal(one.blocks.stack, other.blocks.stack)


def test_as_many_stacks_as_events_take_little_memory_and_a_picture_of_few_boxes(
    server: RunningServer, tmp_path: Path
) -> None:
    """100,000 of each, and of lines. A million are in benchmarks/snapshots.py."""
    stacks = 100_000
    peaks = []
    for allocations in (1000, 1000, stacks):  # (the very first may compile)
        file, folder = tmp_path / "file", tmp_path / f"columns{len(peaks)}"
        file.write_bytes(data := file_of_stacks(allocations))
        folder.mkdir()
        words = [
            sys.executable,
            "-m",
            "vramscope_server.snapshot_conversion",
            str(8 << 30),
            str(os.getpid()),
            str(file),
            str(folder),
        ]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(used.ru_maxrss * 1024)
    assert peaks[2] - peaks[1] < 700 * stacks, "an event, its block, its stack of three frames and its line"
    trace, *_ = load(folder / "0", folder / "stacks")
    assert len(trace.stacks) == len(trace.lives) == stacks
    assert np.array_equal(np.sort(trace.lives.stack), np.arange(stacks))
    row = settled(server, upload(server, data)["snapshot"])
    fire = server.get(f"/recordings/{row['snapshot']}-0/flame", event=stacks - 1)
    assert fire["total_bytes"] == fire["focus_bytes"] == 512 * stacks
    assert 900 < fire["drawn"] <= MOST_BOXES
    assert fire["left_out"] > 0
    assert fire["drawn"] + fire["left_out"] >= 1000 + min(stacks, MOST_BOXES)
    assert len(json.dumps(fire)) < 2 << 20, "the browser gets pictures"
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204


# ---- events and exports ----


def test_events_are_paged_and_searched(server: RunningServer, ready: dict[str, Any]) -> None:
    def events(**wanted: Any) -> dict[str, Any]:
        found: dict[str, Any] = server.get(f"/recordings/{ready['devices'][1]['recording']}/events", **wanted)
        return found

    everything = events(limit=7, offset=3)
    assert (everything["matching"], [row["event"] for row in everything["rows"]]) == (120, list(range(3, 10)))
    first = events(action="alloc", limit=1)["rows"][0]
    assert (first["size_bytes"], first["allocation"], first["address"]) == (MIB, 0, BASE)
    assert first["stack"][0] == {"file": MARKUP, "line": 1, "function": "layer0", "library": True}
    for wanted, matching in [
        ({"action": ["alloc", "free_requested"]}, 60),
        ({"text": "LAYER1"}, 120),
        ({"text": "train.py:2"}, 120),
        ({"text": "train.py:3"}, 0),
        ({"least_bytes": MIB + 1}, 40),
        ({"most_bytes": MIB}, 80),
        ({"address": hex(BASE + 5)}, 4),
        ({"address": str(BASE + MIB)}, 1),
        ({"from": 10, "to": 20}, 10),
        ({"from_seconds": 4e-6, "to_seconds": 5e-6}, 2),
        ({"stream": 5}, 0),
        ({"pool": 0}, 120),
    ]:
        assert events(**wanted)["matching"] == matching, wanted


def test_addresses_that_browsers_would_round_are_told_and_found_as_text(server: RunningServer) -> None:
    """From 2**63 on, and an out-of-memory error that does not know what was free."""
    contents, by = snapshot_of(4), (1 << 64) - (1 << 47)
    contents["device_traces"][0].append(
        {**{key: value for key, value in contents["device_traces"][0][0].items() if key != "addr"},
         "action": "oom", "device_free": (1 << 64) - 1}
    )  # fmt: skip
    for part in contents["segments"]:
        part["address"] += by - BASE
    for one in contents["device_traces"][0][:-1]:
        one["addr"] += by - BASE
    row = settled(server, upload(server, pickle.dumps(contents))["snapshot"])
    path = f"/recordings/{row['snapshot']}-0"
    rows = server.get(f"{path}/events")["rows"]
    assert [one["address"] for one in rows[:2]] == ["0xffff800000000000"] * 2
    assert (rows[-1]["action"], rows[-1]["address"]) == ("oom", None)
    assert server.get(f"{path}/events", address=hex(by + 2 * MIB + 5))["matching"] == 2
    assert server.get(f"{path}/life", allocation=0)["address"] == "0xffff800000000000"
    assert server.get(f"{path}/block", offset=0)["segment"]["address"] == "0xffff800000000000"
    text = server.http.get(f"{path}/export", params={"format": "csv"}).text
    cells = [one["address"] for one in csv.DictReader(io.StringIO(text))]
    assert (cells[0], cells[-1]) == (str(by), "")
    assert any("device_free" in note for note in row["notes"])
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204


def test_what_cannot_be_searched_names_its_field(server: RunningServer, ready: dict[str, Any]) -> None:
    path = f"/recordings/{ready['devices'][0]['recording']}/events"
    for field, value in [("action", "teleport"), ("address", "nowhere"), ("limit", "500"), ("least_bytes", "-1")]:
        answer = server.http.get(path, params={field: value})
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_events_from_beyond_the_last_are_none_and_no_damage(server: RunningServer, ready: dict[str, Any]) -> None:
    path = f"/recordings/{ready['devices'][0]['recording']}/events"
    for first in (10**6, 10**12, 10**30):
        assert server.get(path, **{"from": first})["rows"] == []


def test_an_export_leaves_no_file_whatever_was_asked_of_it(
    server: RunningServer, ready: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = f"/recordings/{ready['devices'][0]['recording']}/export"
    for parts in ("bytes=0-9", "bytes=5-1", "bytes=99999999-", "none"):
        server.http.get(path, params={"format": "parquet"}, headers={"Range": parts})
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_cannot_be_replayed_is_refused_at_once(server: RunningServer, ready: dict[str, Any]) -> None:
    """It would have taken the answers about all others with it."""
    path = f"/recordings/{ready['devices'][0]['recording']}/whatif"
    answer = server.http.post(path, json={"confs": ["", "backend:cudaMallocAsync"]})
    assert (answer.status_code, answer.json()["field"]) == (422, "confs.1")
    assert "is the driver's allocator" in answer.json()["detail"]


def test_a_snapshot_without_events_has_nothing_to_replay_and_that_is_no_fault(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = snapshot_of(3)
    row = settled(server, upload(server, pickle.dumps({**snapshot, "device_traces": [[]]}))["snapshot"])
    path = f"/recordings/{row['devices'][0]['recording']}/whatif"
    job = server.http.post(path, json={}).json()
    while job["state"] in ("waiting", "running"):
        job = server.get(f"{path}/{job['job']}")
    assert (job["state"], job["problem"]) == ("failed", "there are no events to replay")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_window_goes_to_other_tools(server: RunningServer, ready: dict[str, Any]) -> None:
    path = f"/recordings/{ready['devices'][0]['recording']}/export"
    text = server.http.get(path, params={"format": "csv", "from": 10, "to": 20})
    assert "attachment" in text.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(text.text)))
    assert [int(row["event"]) for row in rows] == list(range(10, 20))
    assert {row["step"] for row in rows} == {""}
    assert rows[0]["stack"].startswith(f"{MARKUP}:1 layer0")
    trace = json.loads(server.http.get(path, params={"format": "perfetto"}).content)
    counters = [one["args"]["allocated"] for one in trace["traceEvents"] if one["ph"] == "C"]
    assert (max(counters), counters[-1]) == (20 * MIB, 20 * MIB)
    reported, ended = ([one for one in trace["traceEvents"] if one["ph"] == phase] for phase in "be")
    assert len(reported) == len(ended) == 40 == trace["otherData"]["allocations drawn"]
    page = server.http.get(path, params={"format": "html"}).text
    assert "Plotly.newPlot" in page
    assert "<b>evil" not in page
    assert 'src="http' not in page


def parquet_of(server: RunningServer, recording: str, **window: int) -> Any:
    """The table that a reader of Parquet files finds in the export."""
    answer = server.http.get(f"/recordings/{recording}/export", params={"format": "parquet", **window})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    return pyarrow.parquet.read_table(io.BytesIO(answer.content))


def test_a_window_as_parquet_says_what_its_csv_says(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of each column; what is unknown is null there and empty here. More rows than one piece of the file has."""
    monkeypatch.setattr(export, "_ROWS", 100)
    contents = snapshot_of(900)
    trace = contents["device_traces"][0]
    del trace[3]["pool_id"], trace[5]["time_us"]
    trace[7] = {**trace[7], "user_metadata": "=batch 7", "stream": 140_000_000_000_000, "frames": []}
    row = settled(server, upload(server, pickle.dumps(contents, 4))["snapshot"])
    recording = row["devices"][0]["recording"]
    text = server.http.get(f"/recordings/{recording}/export", params={"format": "csv"}).text
    rows, table = list(csv.DictReader(io.StringIO(text))), parquet_of(server, recording)
    assert table.num_rows == len(rows) == 2700 > 2 * 10 * export._ROWS
    assert table.column_names == list(rows[0])
    for name in table.column_names:
        cells = ["" if value is None else str(value) for value in table[name].to_pylist()]
        assert cells == [row[name].removeprefix("'") for row in rows], name
    kinds = {name: str(table.schema.field(name).type) for name in ("address", "size_bytes", "time_ns", "stack")}
    assert kinds == {
        "address": "uint64", "size_bytes": "int64", "time_ns": "int64",
        "stack": "dictionary<values=string, indices=int32, ordered=0>",
    }  # fmt: skip
    assert (table["time_ns"][5].as_py(), table["pool"][3].as_py(), table["stack"][7].as_py()) == (None, None, None)
    assert table["user_metadata"][7].as_py() == "=batch 7"
    window = parquet_of(server, recording, **{"from": 100, "to": 150})
    assert window["event"].to_pylist() == list(range(100, 150))
    assert window["size_bytes"].to_pylist() == table["size_bytes"].to_pylist()[100:150]
    assert parquet_of(server, recording, **{"from": 100, "to": 100}).num_rows == 0
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204


def test_a_server_that_cannot_write_parquet_says_so(
    server: RunningServer, ready: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert server.get("/server")["parquet"] is True
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert server.get("/server")["parquet"] is False
    answer = server.http.get(
        f"/recordings/{ready['devices'][0]['recording']}/export", params={"format": "parquet", "to": 50}
    )
    assert (answer.status_code, "pip install 'vramscope[parquet]'" in answer.json()["detail"]) == (409, True)
    assert list(tmp_path.glob("*.parquet")) == []


def test_an_upload_leaves_another_one_alone(server: RunningServer) -> None:
    first = server.services.snapshots.upload(None)
    first.write(b"first half")
    second = server.services.snapshots.upload(None)
    second.write(b"another file")
    assert {first.path.read_bytes(), second.path.read_bytes()} == {b"first half", b"another file"}
    first.drop()
    second.drop()


# ---- bad input ----


def test_the_same_file_twice_is_one_snapshot(server: RunningServer, ready: dict[str, Any]) -> None:
    data = gzip.compress(pickle.dumps(snapshot_of(40, devices=2)))
    before = files(server)
    again = upload(server, data, "other name.pickle")
    if again["sha256"] == ready["sha256"]:  # gzip writes the second into its head
        assert (again["known"], again["snapshot"]) == (True, ready["snapshot"])
        assert files(server) == before
    else:
        twice = upload(server, data, "third name")
        assert (twice["known"], twice["snapshot"]) == (True, again["snapshot"])
        assert server.http.delete(f"/snapshots/{again['snapshot']}").status_code == 204


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"traceEvents": [{"ph": "X"}]}', "Chrome trace"),
        (pickle.dumps(snapshot_of(3))[:-50], "cut off"),
        (pickle.dumps({"weights": [1.0]}), "no dict with a key 'segments'"),
    ],
)
def test_what_is_no_snapshot_fails_with_a_word_and_leaves_no_file(
    server: RunningServer, data: bytes, words: str
) -> None:
    row = settled(server, upload(server, data)["snapshot"])
    assert row["state"] == "failed"
    assert words in row["problem"]
    assert row["snapshot"] not in [*files(server), *files(server, "waiting"), *files(server, "making")]
    answer = server.http.get(f"/recordings/{row['snapshot']}-0/moments")
    assert answer.status_code in (404, 409)
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204


def test_an_upload_that_is_cut_off_leaves_nothing(server: RunningServer) -> None:
    rows = server.get("/snapshots")["snapshots"]
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        head = f"POST /api/v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 9000000\r\n\r\n"
        line.sendall(head.encode() + b"\x80\x04" + b"N" * 3_000_000)
        eventually(lambda: files(server, "incoming"))
    eventually(lambda: not files(server, "incoming"))
    assert server.get("/snapshots")["snapshots"] == rows


def test_an_empty_file_and_one_that_is_too_large_are_refused(server: RunningServer) -> None:
    empty = server.http.post("/snapshots", content=b"")
    assert (empty.status_code, empty.json()["field"]) == (422, "body")
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        size = snapshots.MAX_FILE_BYTES + 1
        head = f"POST /api/v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {size}\r\n\r\n"
        line.sendall(head.encode())
        assert b" 413 " in line.recv(100)
    assert not files(server, "incoming")


def test_a_full_disk_is_told_and_nothing_is_stored(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=5 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    answer = server.http.post("/snapshots", content=b"\x80\x04N.")
    assert (answer.status_code, "5,242,880 are free" in answer.json()["detail"]) == (503, True)
    unannounced = server.http.post("/snapshots", content=iter([b"\x80\x04", b"N."]))
    assert (unannounced.status_code, "5,242,880 are free" in unannounced.json()["detail"]) == (503, True)
    assert not files(server, "incoming")


@pytest.mark.parametrize("kib", [100, 300, 700])
def test_a_disk_that_fills_during_conversion_leaves_nothing(
    server: RunningServer, small_disk: Callable[[int], SmallDisk], monkeypatch: pytest.MonkeyPatch, kib: int
) -> None:
    """It holds the file and not its columns, whichever of them is the first that does not fit; with room the same file is taken."""
    disk = small_disk(kib)
    monkeypatch.setattr(disk_space, "SPARE_BYTES", 0)
    monkeypatch.setattr(server.services.artifacts, "folder", disk.path)
    data = gzip.compress(pickle.dumps(snapshot_of(2500)))
    row = settled(server, upload(server, data)["snapshot"])
    assert (row["state"], row["problem"]) == (
        "failed",
        "its columns could not be stored: the server's disk is full. Free some space there, and upload the file again",
    )
    assert (row["devices"], row["stored_bytes"]) == ([], 0)
    assert [path for path in disk.path.rglob("*") if path.is_file()] == []
    assert row["snapshot"] not in files(server)
    assert server.http.get(f"/recordings/{row['snapshot']}-0/moments").status_code == 409
    disk.resize(16 << 10)
    again = settled(server, upload(server, data)["snapshot"])
    assert (again["state"], [one["events"] for one in again["devices"]]) == ("ready", [7500])
    assert again["stored_bytes"] > kib << 10, "the small disk could not have held it"
    assert server.get(f"/recordings/{again['snapshot']}-0/moments")["peak_reserved_bytes"] == 5000 * MIB
    assert server.http.delete(f"/snapshots/{again['snapshot']}").status_code == 204


def test_a_column_that_does_not_fit_is_never_short_in_silence(small_disk: Callable[[int], SmallDisk]) -> None:
    """One page is free: numpy.save would leave a column of a page and some bytes without its end, and say nothing."""
    disk = small_disk(100)
    ballast = disk.fill()
    os.truncate(ballast, ballast.stat().st_size - 4096)
    for rows in (497, 511, 512, 100_000):
        with pytest.raises(OSError) as full:
            save_column(disk.path / "column.npy", np.arange(rows))
        assert full.value.errno == errno.ENOSPC
        (disk.path / "column.npy").unlink()
    save_column(disk.path / "column.npy", np.arange(496))
    assert mapped(disk.path / "column.npy").tolist() == list(range(496))


def test_two_at_once_wait_for_each_other_and_others_are_answered(server: RunningServer) -> None:
    """Two uploads side by side; one is converted while the other waits; one is deleted meanwhile."""
    large = snapshot_of(30_000)
    collected: list[dict[str, Any]] = []
    data = [pickle.dumps({**large, "external_annotations": [at]}) for at in range(2)]
    senders = [threading.Thread(target=lambda one=one: collected.append(upload(server, one))) for one in data]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    idents = [one["snapshot"] for one in collected]
    assert len(set(idents)) == 2
    seen = eventually(
        lambda: {one["state"]: one for one in server.get("/snapshots")["snapshots"] if one["snapshot"] in idents}
    )
    assert "failed" not in seen
    asked = time.monotonic()
    server.get("/runs")
    assert time.monotonic() - asked < 2
    gone = next((one for one in idents if settled_or_not(server, one) == "waiting"), idents[1])
    kept = next(one for one in idents if one != gone)
    assert server.http.delete(f"/snapshots/{gone}").status_code == 204
    assert server.http.get(f"/snapshots/{gone}").status_code == 404
    assert settled(server, kept)["devices"][0]["events"] == 90_000
    assert gone not in [*files(server), *files(server, "waiting")]
    # while it is open: a reader that has it reads on, a new request gets "gone"
    opened = server.services.recordings.open(f"{kept}-0")
    assert server.http.delete(f"/snapshots/{kept}").status_code == 204
    assert int(opened.trace.events.size_bytes.max()) == 2 * MIB
    assert server.http.get(f"/recordings/{kept}-0/moments").status_code == 404
    assert kept not in files(server)


def test_coarse_curves_come_before_the_conversion_ends(server: RunningServer) -> None:
    data = file_of_stacks(310_000)
    ident = upload(server, data)["snapshot"]
    held = Held(server.services.snapshots, ident, has_read=True)
    try:
        row = server.get(f"/snapshots/{ident}")
    finally:
        held.go_on()
    [curve] = row["curves"]
    assert (row["state"], curve["device"], len(curve["event"])) == ("converting", 0, 300)
    row = settled(server, ident)
    assert (row["state"], row["curves"]) == ("ready", [])
    [device] = row["devices"]
    assert curve["events"] == device["events"]
    assert max(curve["reserved_bytes"]) == device["peak_reserved_bytes"]


def test_progress_is_told_while_it_is_converted_and_a_deletion_ends_it(server: RunningServer) -> None:
    """Its process is held: before it reads, amid it, and there it is deleted; the next in line is converted."""
    data = file_of_stacks(300_000)
    first = HeldAtStart(server.services.snapshots)
    ident = upload(server, data)["snapshot"]
    eventually(first.is_held)
    try:
        row = server.get(f"/snapshots/{ident}")
        assert (row["state"], row["preparing"], row["done_bytes"], row["total_bytes"]) == (
            "converting", True, 0, len(data),
        )  # fmt: skip
        behind = upload(server, pickle.dumps(snapshot_of(5)))["snapshot"]
        waits = server.get(f"/snapshots/{behind}")
        assert (waits["state"], waits["place"], waits["preparing"]) == ("waiting", 1, False)
    finally:
        first.go_on()
    held = Held(server.services.snapshots, ident)
    row = server.get(f"/snapshots/{ident}")
    assert (row["state"], row["preparing"]) == ("converting", False)
    assert 0 < row["done_bytes"] < row["total_bytes"] == len(data)
    assert row["curves"] == []
    assert row in server.get("/snapshots")["snapshots"]
    assert files(server, "making") == [f"{ident}-0"]
    assert server.http.delete(f"/snapshots/{ident}").status_code == 204
    assert server.http.get(f"/snapshots/{ident}").status_code == 404
    assert settled(server, behind)["state"] == "ready"
    assert held.process.returncode == -signal.SIGKILL
    assert ident not in [
        *files(server),
        *files(server, "waiting"),
        *files(server, "making"),
        *files(server, "incoming"),
    ]
    assert ident not in [one["snapshot"] for one in server.get("/snapshots")["snapshots"]]
    again = upload(server, data)
    assert (again["known"], settled(server, again["snapshot"])["state"]) == (False, "ready")
    for one in (behind, again["snapshot"]):
        assert server.http.delete(f"/snapshots/{one}").status_code == 204


def test_what_if_of_an_uploaded_file(server: RunningServer) -> None:
    """Two segments where one that grows would do: the recorded settings come out as recorded, the others by the simulator."""
    row = settled(server, upload(server, pickle.dumps(two_sizes()))["snapshot"])
    path = f"/recordings/{row['snapshot']}-0/whatif"
    asked = server.http.post(path, json={"confs": ["expandable_segments:True"]})
    assert asked.status_code in (200, 202), asked.text
    done = eventually(
        lambda: (job := server.get(f"{path}/{asked.json()['job']}"))["state"] in ("done", "failed") and job,
        CONVERSION_SECONDS,
    )
    assert (done["state"], done["problem"]) == ("done", None)
    assert done["result"]["residual"]["exact"] is True
    recorded, expandable = done["result"]["rows"]
    assert (recorded["recorded"], recorded["conf"], recorded["peak_reserved_bytes"]) == (True, "", 50 * MIB)
    assert (expandable["conf"], expandable["peak_reserved_bytes"]) == ("expandable_segments:True", 40 * MIB)
    assert recorded["peak_allocated_bytes"] == expandable["peak_allocated_bytes"] == 30 * MIB
    refused = server.http.post(path, json={"confs": ["expandable_segmints:True"]})
    assert (refused.status_code, "expandable_segmints" in refused.json()["detail"]) == (422, True)
    assert server.http.delete(f"/snapshots/{row['snapshot']}").status_code == 204
    assert server.http.post(path, json={"confs": [""]}).status_code == 404


def settled_or_not(server: RunningServer, ident: str) -> str:
    state: str = server.http.get(f"/snapshots/{ident}").json()["state"]
    return state


def test_the_oldest_go_when_all_take_too_much(start_server: Callable[..., RunningServer]) -> None:
    """The newest stays, whatever it takes; a server that comes back knows what it has."""
    server = start_server(snapshots_bytes=1)
    first = settled(server, upload(server, pickle.dumps(snapshot_of(3)))["snapshot"])
    second = settled(server, upload(server, pickle.dumps(snapshot_of(4)))["snapshot"])
    eventually(lambda: server.http.get(f"/snapshots/{first['snapshot']}").status_code == 404)
    eventually(lambda: first["snapshot"] not in files(server))  # (its row goes first: nobody is led to half a folder)
    data_dir = server.services.settings.data_dir
    server.stop()
    again = start_server(data_dir)
    assert [one["snapshot"] for one in again.get("/snapshots")["snapshots"]] == [second["snapshot"]]
    assert again.get(f"/recordings/{second['snapshot']}-0/moments")["events"] == 12
    with again.services.database.reader() as connection:
        assert [one.state for one in list_snapshots(connection)] == ["ready"]


def test_the_process_of_a_conversion_is_started_with_the_upload(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads its machine code while the bytes arrive, converts the file, and is not left when nobody completes one."""
    server = start_server()
    conversions = server.services.snapshots.conversions
    data = pickle.dumps(snapshot_of(3))
    started = server.http.post("/snapshots/uploads", json={"name": "a.pickle", "size_bytes": len(data)}).json()
    eventually(lambda: conversions._prepared is not None)
    prepared = conversions._prepared
    assert prepared is not None and prepared.poll() is None
    server.http.put(f"/snapshots/uploads/{started['upload']}", params={"offset": 0}, content=data)
    taken = server.http.post(f"/snapshots/uploads/{started['upload']}/complete").json()
    assert settled(server, taken["snapshot"])["state"] == "ready"
    assert conversions._prepared is None and prepared.wait(PATIENCE_SECONDS) == 0, "it was this process"
    server.http.post("/snapshots/uploads", json={"name": "b.pickle", "size_bytes": 5})
    eventually(lambda: conversions._prepared is not None)
    abandoned = conversions._prepared
    monkeypatch.setattr("vramscope_server.conversions.PREPARED_SECONDS", 0.0)
    conversions.wake()
    assert abandoned is not None and abandoned.wait(PATIENCE_SECONDS) != 0


def test_a_prepared_process_that_was_killed_is_replaced(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    conversions = server.services.snapshots.conversions
    conversions.prepare()
    eventually(lambda: conversions._prepared is not None)
    assert conversions._prepared is not None
    conversions._prepared.kill()
    conversions._prepared.wait(PATIENCE_SECONDS)
    row = settled(server, upload(server, pickle.dumps(snapshot_of(3)))["snapshot"])
    assert row["state"] == "ready"
