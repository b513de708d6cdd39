"""Snapshot files in parts: across lost connections and restarts, in order, each byte once."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import PATIENCE_SECONDS, RunningServer
from snapshot_maker import snapshot_of
from waiting import eventually

from vramscope_server import uploads as uploads_module
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.overview import load_machine_code
from vramscope_server.analysis.timeline.render_cache import save_pictures
from vramscope_server.cli import run_command, upload
from vramscope_server.cli.client import Connection, Unreachable
from vramscope_server.uploads import KEPT_SECONDS, PART_BYTES, Uploads, WrongOffset

FILE = pickle.dumps(snapshot_of(40_000))


def started(server: RunningServer, size: int = len(FILE)) -> dict[str, Any]:
    answer = server.http.post("/snapshots/uploads", json={"name": "a.pickle", "size_bytes": size})
    assert answer.status_code == 201
    state: dict[str, Any] = answer.json()
    return state


def send(server: RunningServer, state: dict[str, Any], offset: int, part: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/octet-stream"}
    path = f"/snapshots/uploads/{state['upload']}"
    return server.http.put(path, params={"offset": offset}, content=part, headers=headers)


def parts_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    for offset in range(0, len(data), PART_BYTES):
        yield offset, data[offset : offset + PART_BYTES]


def test_a_file_in_parts_becomes_a_snapshot_and_is_known_the_second_time(server: RunningServer) -> None:
    assert len(FILE) > 2 * PART_BYTES
    for known in (False, True):
        state = started(server)
        assert (state["received_bytes"], state["part_bytes"]) == (0, PART_BYTES)
        for offset, part in parts_of(FILE):
            assert send(server, state, offset, part).json()["received_bytes"] == offset + len(part)
        done = server.http.post(f"/snapshots/uploads/{state['upload']}/complete")
        assert (done.status_code, done.json()["known"], done.json()["bytes"]) == (
            200 if known else 202,
            known,
            len(FILE),
        )
        assert server.http.get(f"/snapshots/uploads/{state['upload']}").status_code == 404
        deadline = time.monotonic() + PATIENCE_SECONDS
        while server.get(f"/snapshots/{done.json()['snapshot']}")["state"] != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert not os.listdir(server.services.settings.snapshots_dir / "uploading")


def test_a_part_twice_is_stored_once_and_one_that_leaves_a_gap_is_refused(server: RunningServer) -> None:
    state = started(server, 30)
    assert send(server, state, 0, b"a" * 10).status_code == 200
    assert send(server, state, 0, b"a" * 10).json()["received_bytes"] == 10
    assert send(server, state, 5, b"a" * 10).json()["received_bytes"] == 15, "of an overlap the new bytes alone"
    gap = send(server, state, 20, b"c" * 10)
    assert (gap.status_code, gap.json()["field"], gap.json()["seen"]) == (409, "offset", 20)
    assert "15 bytes were received" in gap.json()["detail"]
    assert send(server, state, 15, b"b" * 16).status_code == 409, "beyond the end"
    early = server.http.post(f"/snapshots/uploads/{state['upload']}/complete")
    assert (early.status_code, early.json()["detail"]) == (409, "15 of 30 bytes were received.")
    assert server.get(f"/snapshots/uploads/{state['upload']}")["received_bytes"] == 15


@pytest.mark.parametrize("upload", ["0" * 32, "..%2f..%2fvramscope.db", "x" * 60_000])
def test_an_unknown_upload_is_not_found(server: RunningServer, upload: str) -> None:
    for method, path in (("GET", ""), ("PUT", "?offset=0"), ("POST", "/complete")):
        answer = server.http.request(
            method, f"/snapshots/uploads/{upload}{path}", content=b"x" if method == "PUT" else None
        )
        assert answer.status_code in (404, 405), answer.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"size_bytes": 0}, "size_bytes"),
        ({"size_bytes": (16 << 30) + 1}, "size_bytes"),
        ({"size_bytes": 1, "name": ""}, "name"),
        ({"name": "x"}, "size_bytes"),
    ],
)
def test_a_bad_start_names_its_field(server: RunningServer, body: dict[str, Any], field: str) -> None:
    answer = server.http.post("/snapshots/uploads", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_part_that_is_too_large_is_refused_and_a_full_disk_is_told(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = started(server)
    assert send(server, state, 0, b"x" * (PART_BYTES + 1)).status_code == 413
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    full = send(server, state, 0, b"x" * 10)
    assert (full.status_code, "1,000 are free" in full.json()["detail"]) == (503, True)
    assert server.http.post("/snapshots/uploads", json={"size_bytes": 10}).status_code == 503


def test_an_upload_goes_on_after_a_restart_and_is_deleted_after_a_day(tmp_path: Path) -> None:
    first = Uploads(tmp_path, lambda wanted: None)
    half = first.begin("a", 6)
    whole = first.append(half.id, 0, b"abc")
    again = Uploads(tmp_path, lambda wanted: None)
    assert again.find(half.id) == whole
    with pytest.raises(WrongOffset):
        again.append(half.id, 4, b"e")
    again.append(half.id, 3, b"def")
    same = again.begin("a", 6)
    again.append(same.id, 0, b"abcdef")
    assert again.sha256(half.id) == again.sha256(same.id), "read again, and counted as it came"
    old = time.time() - KEPT_SECONDS - 1
    os.utime(tmp_path / half.id, (old, old))
    again.drop_old()
    assert sorted(os.listdir(tmp_path)) == sorted([same.id, f"{same.id}.json"])


def test_a_part_that_is_half_written_is_no_part(tmp_path: Path, small_disk: Callable[[int], Any]) -> None:
    uploads = Uploads(small_disk(2000).path / "uploading", lambda wanted: None)
    half = uploads.begin("a", 3_000_000)
    uploads.append(half.id, 0, b"a" * 1_000_000)
    with pytest.raises(OSError, match="space"):
        uploads.append(half.id, 1_000_000, b"b" * 2_000_000)
    assert uploads.find(half.id).received_bytes == 1_000_000
    same = Uploads(tmp_path, lambda wanted: None)
    twin = same.begin("a", 1_000_000)
    same.append(twin.id, 0, b"a" * 1_000_000)
    assert uploads.sha256(half.id) == same.sha256(twin.id)


def test_no_more_uploads_are_started_than_fit(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    first = server.http.post("/snapshots/uploads", json={"size_bytes": 600})
    second = server.http.post("/snapshots/uploads", json={"size_bytes": 600})
    assert (first.status_code, second.status_code) in ((201, 503), (503, 503)), "the size of other uploads counts"
    monkeypatch.undo()
    monkeypatch.setattr(uploads_module, "MAX_STARTED", 0)
    refused = server.http.post("/snapshots/uploads", json={"size_bytes": 1})
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:vramscope:problem:busy")


def test_an_upload_is_completed_once(server: RunningServer) -> None:
    data = pickle.dumps(snapshot_of(31))
    state = started(server, len(data))
    send(server, state, 0, data)
    statuses: list[int] = []

    def complete() -> None:
        statuses.append(server.http.post(f"/snapshots/uploads/{state['upload']}/complete").status_code)

    threads = [threading.Thread(target=complete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(statuses) == [202, 404, 404, 404]


@pytest.mark.parametrize("arrives", [True, False])
def test_the_command_completes_although_the_answer_is_lost(
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arrives: bool,
) -> None:
    """As behind a proxy that gives up before the server answers, or that passes nothing on."""
    monkeypatch.setattr(upload, "PAUSES_SECONDS", (0.01, 0.01))
    ask, tries = Connection.ask, []

    def lose(self: Connection, method: str, path: str, *more: Any, **body: Any) -> Any:
        if not path.endswith("/complete") or len(tries) == 2:
            return ask(self, method, path, *more, **body)
        tries.append(path)
        if arrives and len(tries) == 1:
            ask(self, method, path, *more, **body)
        raise Unreachable("the answer was lost")

    monkeypatch.setattr(Connection, "ask", lose)
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot_of(32 + arrives)))
    assert run_command(["snapshot", str(path), "--server", server.url]) == 0
    ident = capsys.readouterr().out.strip().rpartition("/")[2]
    assert server.get(f"/snapshots/{ident}")["bytes"] == path.stat().st_size


class Relay(socketserver.ThreadingTCPServer):
    """Passes bytes on to a server, and cuts each connection after this number of them."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, port: int, most_bytes: int) -> None:
        self.cut = 0
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    back = threading.Thread(target=self.pass_back, args=(server,), daemon=True)
                    back.start()
                    passed = 0
                    while data := self.request.recv(65536):
                        passed += len(data)
                        if passed > most_bytes:
                            relay.cut += 1
                            return
                        server.sendall(data)

            def pass_back(self, server: socket.socket) -> None:
                try:
                    while data := server.recv(65536):
                        self.request.sendall(data)
                except OSError:
                    pass  # (it was cut)

        super().__init__(("127.0.0.1", 0), Handler)


def test_the_command_ends_where_a_part_never_arrives(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As behind a proxy that lets small requests through only: the state can be read, and no part can be sent."""
    monkeypatch.setattr(upload, "PAUSES_SECONDS", (0.01,) * 3)
    path = tmp_path / "a.pickle"
    path.write_bytes(FILE)
    with Relay(server.port, 200_000) as relay:
        threading.Thread(target=relay.serve_forever, args=(0.02,), daemon=True).start()
        assert run_command(["snapshot", str(path), "--server", f"http://127.0.0.1:{relay.server_address[1]}"]) == 4
        relay.shutdown()
    assert relay.cut == 4
    assert "no server answers" in capsys.readouterr().err


def test_the_command_goes_on_where_it_was_after_lost_connections(
    start_server: Callable[..., RunningServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(upload, "PAUSES_SECONDS", (0.1,) * 5)
    server = start_server()
    path = tmp_path / "a.pickle"
    path.write_bytes(FILE)
    with Relay(server.port, 2 * PART_BYTES) as relay:
        threading.Thread(target=relay.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{relay.server_address[1]}"
        assert run_command(["snapshot", str(path), "--server", address]) == 0
        relay.shutdown()
    assert relay.cut >= 1
    ident = capsys.readouterr().out.strip().rpartition("/")[2]
    assert server.get(f"/snapshots/{ident}")["bytes"] == len(FILE)
    assert server.get(f"/snapshots/{ident}")["state"] == "ready"


def test_the_machine_code_of_the_first_picture_is_loaded_during_the_upload(server: RunningServer) -> None:
    load_machine_code.cache_clear()
    started(server)
    eventually(lambda: load_machine_code.cache_info().currsize, PATIENCE_SECONDS, "the machine code")


LOAD_AND_DRAW = """
import sys
from pathlib import Path
from vramscope_server.analysis.timeline import curve, overview
from vramscope_server.analysis.timeline.render_cache import load_pictures
overview.load_machine_code()
compiled = (overview._walk.dispatcher, curve._highest.dispatcher)
before = [len(one.signatures) for one in compiled]
drawn, groupings = load_pictures(Path(sys.argv[1]))
for grouping in groupings:
    overview.overview(drawn, grouping, -1, drawn.end)
assert before == [len(one.signatures) for one in compiled] == [1, 1], before
"""


def test_the_machine_code_that_is_loaded_early_is_that_of_a_snapshot(tmp_path: Path) -> None:
    """Code for other types of arrays would be compiled in vain, and the picture would wait for its own."""
    (trace,) = read(FILE).devices
    save_pictures(trace, tmp_path)
    subprocess.run([sys.executable, "-c", LOAD_AND_DRAW, str(tmp_path)], check=True)
