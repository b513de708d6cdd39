"""Several server processes on one PostgreSQL and one bucket, each with a folder of its own: as on several machines."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server
from server_group import Member
from snapshot_maker import snapshot_of
from waiting import CONVERSION_SECONDS, eventually

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
    for child in converting.children("snapshot_conversion"):
        child.send_signal(signal.SIGSTOP)
    (other,) = [member for member in members if member is not converting]
    converting.kill()
    found = ready(other, ident)
    assert found["devices"][0]["events"] == 60_000
    assert other.get(f"/recordings/{ident}-0/moments")["peak_reserved_bytes"] > 0
