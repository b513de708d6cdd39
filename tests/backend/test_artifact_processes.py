"""Several server processes on one PostgreSQL and one bucket, each with a folder of its own: as on several machines."""

from __future__ import annotations

import hashlib
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from s3_server import S3Server
from server_group import Member
from snapshot_maker import snapshot_of
from waiting import CONVERSION_SECONDS, eventually

from vramscope_server.cli.server import serve

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("postgres"), pytest.mark.timeout(900)]


@pytest.fixture
def database_kind() -> str:
    return "postgresql"


@pytest.fixture
def members(database_url: str, bucket: str, tmp_path: Path) -> Iterator[list[Member]]:
    running: list[Member] = []
    for name in ("one", "two"):
        running.append(Member(database_url, tmp_path / name, artifacts=f"s3://{bucket}/team"))
    yield running
    for member in running:
        member.end()


def ready(member: Member, ident: str) -> dict[str, Any]:
    def row() -> Any:
        found = member.get(f"/snapshots/{ident}")
        return found["state"] in ("ready", "failed") and found

    found: dict[str, Any] = eventually(row, CONVERSION_SECONDS)
    assert (found["state"], found["problem"]) == ("ready", None)
    return found


def test_parts_go_to_any_process_and_all_read_the_columns(
    members: list[Member], s3_store: S3Server, bucket: str
) -> None:
    data = pickle.dumps(snapshot_of(15_000))
    upload = members[0].http.post("/snapshots/uploads", json={"name": "a", "size_bytes": len(data)}).json()["upload"]
    place, size = f"/snapshots/uploads/{upload}", 200_000
    for number, offset in enumerate(range(0, len(data), size)):
        part = data[offset : offset + size]
        headers = {"Content-Type": "application/octet-stream"}
        answer = members[number % 2].http.put(place, params={"offset": offset}, content=part, headers=headers)
        assert answer.json()["received_bytes"] == offset + len(part)
    done = members[1].http.post(f"{place}/complete")
    assert done.status_code == 202, done.text
    ident = ready(members[0], done.json()["snapshot"])["snapshot"]
    one, two = (member.get(f"/recordings/{ident}-0/moments") for member in members)
    assert one == two
    again = members[0].http.post("/snapshots", content=data)
    assert (again.status_code, again.json()["snapshot"]) == (200, ident)
    assert members[1].http.delete(f"/snapshots/{ident}").status_code == 204
    assert members[0].http.get(f"/recordings/{ident}-0/moments").status_code == 404
    assert s3_store.names(bucket) == ["team/database"]


def test_another_machine_takes_over_the_conversion_of_one_that_was_killed(members: list[Member]) -> None:
    """Its copy of the file is on the dead machine's disk; the bucket still has the file."""
    ident = members[0].http.post("/snapshots", content=pickle.dumps(snapshot_of(20_000))).json()["snapshot"]
    converting = eventually(lambda: next((m for m in members if m.children("snapshot_conversion")), None))
    with converting.conversions_stopped():
        (other,) = [member for member in members if member is not converting]
        converting.kill()
        found = ready(other, ident)
        assert found["devices"][0]["events"] == 60_000
        assert other.get(f"/recordings/{ident}-0/moments")["peak_reserved_bytes"] > 0


def test_workers_share_a_bucket_and_do_not_start_without_it(
    database_url: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    member = Member(database_url, tmp_path / "data", artifacts=f"s3://{bucket}", workers="2")
    try:
        ident = member.http.post("/snapshots", content=pickle.dumps(snapshot_of(300))).json()["snapshot"]
        ready(member, ident)
        for _ in range(8):  # a new connection may reach the other process
            url = f"{member.process.url}/api/v1/recordings/{ident}-0/moments"
            assert httpx.get(url, timeout=60, trust_env=False).json()["peak_reserved_bytes"] > 0
    finally:
        member.end()
    monkeypatch.setenv("VRAMSCOPE_ARTIFACTS", "s3://nothing-here")
    assert serve("127.0.0.1", 0, database_url, tmp_path / "other", workers=2) == 2
    assert "s3://nothing-here cannot be used: NoSuchBucket." in capsys.readouterr().err


@pytest.mark.slow
def test_random_kills_lose_no_file_that_was_acknowledged(
    database_url: str, bucket: str, s3_store: S3Server, tmp_path: Path
) -> None:
    """Two processes are killed at random while files arrive, whole and in parts. A client tries again until it has an answer."""
    choice = random.Random(11)
    group = [Member(database_url, tmp_path / str(number), artifacts=f"s3://{bucket}") for number in range(2)]
    acknowledged: dict[str, str] = {}
    ended = threading.Event()
    kills = 0

    def killing() -> None:
        nonlocal kills
        while not ended.wait(choice.uniform(0.3, 3.0)):
            at = choice.randrange(2)
            group[at].kill()
            kills += 1
            group[at] = Member(database_url, tmp_path / f"{kills + 1}", artifacts=f"s3://{bucket}")

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        for size in range(500, 2500, 50):
            data = pickle.dumps(snapshot_of(size))
            ident = sent(lambda: choice.choice(group), data, in_parts=size % 100 == 0)
            acknowledged[ident] = hashlib.sha256(data).hexdigest()
            eventually(lambda: kills >= len(acknowledged) // 3)
    finally:
        ended.set()
        killer.join()
    try:
        print(f"{kills} kills, {len(acknowledged)} files")
        rows = {ident: ready(group[0], ident) for ident in acknowledged}
        assert {ident: row["sha256"] for ident, row in rows.items()} == acknowledged
        for ident in acknowledged:
            assert group[1].get(f"/recordings/{ident}-0/moments")["peak_reserved_bytes"] > 0
        eventually(lambda: len(group[0].get("/snapshots")["snapshots"]) == len(acknowledged))
    finally:
        for member in group:
            member.end()


def sent(member: Callable[[], Member], data: bytes, *, in_parts: bool) -> str:
    """Send a file as a client does, and return the identifier of its snapshot."""

    def ask(method: str, place: str, **what: Any) -> httpx.Response:
        def answer() -> httpx.Response | None:
            try:
                found = httpx.request(
                    method, f"{member().process.url}/api/v1{place}", timeout=60, trust_env=False, **what
                )
            except httpx.TransportError:
                return None
            return found if found.status_code < 500 else None

        found: httpx.Response = eventually(answer)
        return found

    if not in_parts:
        return str(ask("POST", "/snapshots", content=data).json()["snapshot"])
    place = f"/snapshots/uploads/{ask('POST', '/snapshots/uploads', json={'size_bytes': len(data)}).json()['upload']}"
    received, size = 0, len(data) // 4 + 1
    while received < len(data):
        part = data[received : received + size]
        headers = {"Content-Type": "application/octet-stream"}
        received = ask("PUT", place, params={"offset": received}, content=part, headers=headers).json()[
            "received_bytes"
        ]
    done = ask("POST", f"{place}/complete")
    if done.status_code == 404:  # it was completed, and the answer was lost
        return str(ask("POST", "/snapshots", content=data).json()["snapshot"])
    return str(done.json()["snapshot"])
