"""Snapshot files in a bucket: nothing that was acknowledged is lost, and what is deleted is deleted there."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import RunningServer
from s3_server import S3Server
from snapshot_maker import snapshot_of
from waiting import CONVERSION_SECONDS, eventually

from vramscope_server import conversions
from vramscope_server.artifact_store import bucket_store
from vramscope_server.artifact_store.bucket import Bucket
from vramscope_server.artifact_store.opening import open_artifacts
from vramscope_server.artifact_store.store import ArtifactsUnreachable
from vramscope_server.snapshots import Snapshots
from vramscope_server.store.writer import StorageTrouble

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("s3")]  # the first conversion compiles
Start = Callable[..., RunningServer]


@pytest.fixture
def server(bucket: str, start_server: Start) -> RunningServer:
    return start_server(artifacts=f"s3://{bucket}/a/b")


def data_of(allocations: int) -> bytes:
    return pickle.dumps(snapshot_of(allocations))


def upload(server: RunningServer, data: bytes) -> dict[str, Any]:
    answer = server.http.post("/snapshots", content=data)
    assert answer.status_code in (200, 202), answer.text
    made: dict[str, Any] = answer.json()
    return made


def begin(server: RunningServer, size: int) -> str:
    answer = server.http.post("/snapshots/uploads", json={"name": "a.pickle", "size_bytes": size})
    assert answer.status_code == 201, answer.text
    return f"/snapshots/uploads/{answer.json()['upload']}"


def part(server: RunningServer, place: str, offset: int, data: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    return server.http.put(place, params={"offset": offset}, content=data, headers=headers)


def settled(server: RunningServer, ident: str) -> dict[str, Any]:
    def row() -> Any:
        found = server.get(f"/snapshots/{ident}")
        return found["state"] in ("ready", "failed") and found

    found: dict[str, Any] = eventually(row, CONVERSION_SECONDS)
    assert (found["state"], found["problem"]) == ("ready", None)
    return found


def below(store: S3Server, bucket: str, folder: str) -> list[str]:
    return [name.removeprefix("a/b/") for name in store.names(bucket) if name.startswith(f"a/b/{folder}")]


def test_a_file_is_kept_in_the_bucket_and_deleted_there(server: RunningServer, s3_store: S3Server, bucket: str) -> None:
    data = data_of(200)
    row = settled(server, upload(server, data)["snapshot"])
    ident = row["snapshot"]
    assert row["sha256"] == hashlib.sha256(data).hexdigest()
    eventually(lambda: not below(s3_store, bucket, "files/"))
    assert below(s3_store, bucket, "columns/") == [f"columns/{ident}.tar"]
    assert sorted(one.name for one in (server.services.settings.snapshots_dir).iterdir()) == [
        "fetched", "incoming", "making",
    ]  # fmt: skip
    assert server.get(f"/recordings/{ident}-0/moments")["peak_reserved_bytes"] > 0
    assert upload(server, data)["known"] is True
    assert not below(s3_store, bucket, "files/"), "the second copy is not kept"
    assert server.http.delete(f"/snapshots/{ident}").status_code == 204
    assert [name for name in s3_store.names(bucket) if name != "a/b/database"] == []
    assert not list((server.services.settings.snapshots_dir / "fetched").iterdir())
    assert server.http.get(f"/recordings/{ident}-0/moments").status_code == 404


def test_another_machine_reads_the_same_columns(
    server: RunningServer, start_server: Start, bucket: str, tmp_path: Path
) -> None:
    """The second server has the database and no file of the first."""
    ident = settled(server, upload(server, data_of(300))["snapshot"])["snapshot"]
    answers = [f"/recordings/{ident}-0/moments", f"/recordings/{ident}-0/timeline"]
    expected = [server.get(one) for one in answers]
    folder = server.services.settings.snapshots_dir
    server.stop()
    folder.rename(tmp_path / "away")
    other = start_server(server.services.settings.data_dir, artifacts=f"s3://{bucket}/a/b")
    assert [other.get(one) for one in answers] == expected
    ours, theirs = (path / "fetched" / ident for path in (folder, tmp_path / "away"))
    names = sorted(one.relative_to(theirs) for one in theirs.rglob("*") if one.is_file())
    assert names == sorted(one.relative_to(ours) for one in ours.rglob("*") if one.is_file())
    assert all((ours / one).read_bytes() == (theirs / one).read_bytes() for one in names)


def test_files_of_the_folder_are_found_after_a_bucket_was_set(
    start_server: Start, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is converted, and one that waits."""
    before = start_server()
    ready = settled(before, upload(before, data_of(310))["snapshot"])["snapshot"]
    expected = before.get(f"/recordings/{ready}-0/moments")
    monkeypatch.setattr(before.services.snapshots.conversions, "wake", lambda: None)
    waiting = upload(before, data_of(320))["snapshot"]
    before.stop()
    server = start_server(before.services.settings.data_dir, artifacts=f"s3://{bucket}/a/b")
    settled(server, waiting)
    assert server.get(f"/recordings/{waiting}-0/moments")
    assert server.get(f"/recordings/{ready}-0/moments") == expected
    eventually(lambda: below(s3_store, bucket, "") == [f"columns/{waiting}.tar", "database"])
    for ident in (ready, waiting):
        assert server.http.delete(f"/snapshots/{ident}").status_code == 204
    assert below(s3_store, bucket, "columns/") == []
    folder = server.services.settings.snapshots_dir
    assert not (folder / ready).exists()
    assert list((folder / "waiting").iterdir()) == []


def test_a_file_of_the_folder_outlasts_a_bucket_that_does_not_answer(
    start_server: Start, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "TROUBLE_SECONDS", 0.2)
    before = start_server()
    monkeypatch.setattr(before.services.snapshots.conversions, "wake", lambda: None)
    waiting = upload(before, data_of(330))["snapshot"]
    before.stop()
    put, refused = Bucket.put_folder, []

    def put_at_second_try(self: Bucket, name: str, folder: Path) -> None:
        if not refused:
            refused.append(name)
            raise ArtifactsUnreachable("it does not answer")
        put(self, name, folder)

    monkeypatch.setattr(Bucket, "put_folder", put_at_second_try)
    server = start_server(before.services.settings.data_dir, artifacts=f"s3://{bucket}/a/b")
    settled(server, waiting)
    assert refused == [f"columns/{waiting}.tar"]
    folder = server.services.settings.snapshots_dir
    eventually(lambda: not [*(folder / "waiting").iterdir(), *(folder / "making").iterdir()])


def test_an_upload_in_parts_goes_on_at_another_process(server: RunningServer, start_server: Start, bucket: str) -> None:
    """A restart in the middle stands for the other process: it knows nothing of the parts but what is in the bucket."""
    data = data_of(20_000)
    size = 300_000
    place = begin(server, len(data))
    for offset in (0, size):
        assert part(server, place, offset, data[offset : offset + size]).json()["received_bytes"] == offset + size
    server.stop()
    other = start_server(server.services.settings.data_dir, artifacts=f"s3://{bucket}/a/b")
    assert other.get(place)["received_bytes"] == 2 * size
    early = other.http.post(f"{place}/complete")
    assert (early.status_code, early.json()["seen"]) == (409, 2 * size)
    assert part(other, place, 3 * size, data[3 * size : 4 * size]).status_code == 409, "a gap"
    assert part(other, place, size, data[size : 2 * size]).json()["received_bytes"] == 2 * size, "received already"
    overlapping = part(other, place, size, data[size : 3 * size])
    assert overlapping.json()["received_bytes"] == 3 * size
    for offset in range(3 * size, len(data), size):
        assert part(other, place, offset, data[offset : offset + size]).status_code == 200
    done = other.http.post(f"{place}/complete")
    assert (done.status_code, done.json()["bytes"]) == (202, len(data))
    assert done.json()["sha256"] == hashlib.sha256(data).hexdigest()
    assert other.http.get(place).status_code == 404
    assert settled(other, done.json()["snapshot"])["devices"][0]["events"] == 60_000


def test_a_process_that_dies_after_the_row_was_stored_loses_nothing(
    server: RunningServer, start_server: Start, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer never arrives, so that the client completes its upload once more, at the next process."""
    data = data_of(150)
    place = begin(server, len(data))
    part(server, place, 0, data)
    upload = place.rpartition("/")[2]
    snapshots = server.services.snapshots
    monkeypatch.setattr(snapshots.conversions, "wake", lambda: None)
    monkeypatch.setattr(snapshots.uploads, "drop", lambda ident: None)  # it dies before
    taken, known = snapshots.complete(upload)
    assert (taken.id, known) == (upload[:12], False)
    server.stop()
    other = start_server(server.services.settings.data_dir, artifacts=f"s3://{bucket}/a/b")
    settled(other, taken.id)
    eventually(lambda: not below(s3_store, bucket, "files/"))
    again = other.http.post(f"{place}/complete")
    assert (again.status_code, again.json()["snapshot"]) == (200, taken.id), again.text
    assert other.get(f"/recordings/{taken.id}-0/moments")["peak_reserved_bytes"] > 0
    assert not below(s3_store, bucket, "uploading")


def test_an_upload_that_another_process_completes_meanwhile_is_known(
    server: RunningServer, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process stores the row and converts the file between the check and the hash."""
    data = data_of(155)
    place = begin(server, len(data))
    part(server, place, 0, data)
    snapshots = server.services.snapshots
    sha256 = snapshots.uploads.sha256
    services = server.services
    store = open_artifacts(services.settings, services.database)
    other = Snapshots(store, services.database, services.writer, max_bytes=1, memory_bytes=1)

    def sha256_after_the_other(upload: str) -> str:
        made, known = other.complete(upload)
        assert not known
        snapshots.conversions.wake()
        settled(server, made.id)
        eventually(lambda: not below(s3_store, bucket, "files/"))
        return sha256(upload)

    monkeypatch.setattr(other.conversions, "wake", lambda: None)
    monkeypatch.setattr(snapshots.uploads, "sha256", sha256_after_the_other)
    answer = server.http.post(f"{place}/complete")
    assert (answer.status_code, answer.json()["sha256"]) == (200, hashlib.sha256(data).hexdigest()), answer.text
    assert server.http.get(place).status_code == 404


def test_a_bucket_that_does_not_answer_refuses_uploads_and_conversions_wait(
    server: RunningServer, s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "TROUBLE_SECONDS", 0.2)
    ready = settled(server, upload(server, data_of(120))["snapshot"])["snapshot"]
    data = data_of(130)
    place = begin(server, len(data))
    half = len(data) // 2
    assert part(server, place, 0, data[:half]).status_code == 200
    fetch = server.services.artifacts.fetch_file

    def fetch_while_closed(ident: str, target: Path) -> Path | None:
        s3_store.gate.close()
        return fetch(ident, target)

    monkeypatch.setattr(server.services.artifacts, "fetch_file", fetch_while_closed)
    try:
        waiting = upload(server, data_of(140))["snapshot"]
        eventually(lambda: server.services.artifacts.trouble)
        for answer in (
            server.http.post("/snapshots", content=data_of(150)),
            server.http.post("/snapshots/uploads", json={"name": "b", "size_bytes": 5}),
            part(server, place, half, data[half:]),
            server.http.get(place),
            server.http.post(f"{place}/complete"),
        ):
            assert (answer.status_code, answer.json()["title"]) == (503, "Nothing can be stored at the moment")
            assert "s3://" in answer.json()["detail"], answer.json()
        health = server.http.get("/health")
        assert health.status_code == 503
        assert "s3://" in health.text
        assert server.get(f"/recordings/{ready}-0/moments"), "it is in the cache of this machine"
        server.services.recordings.close(f"{ready}-0")
        server.services.artifacts._cache.drop(ready)
        assert server.http.get(f"/recordings/{ready}-0/moments").status_code == 503
        assert server.get(f"/snapshots/{waiting}")["state"] in ("waiting", "converting")
    finally:
        monkeypatch.setattr(server.services.artifacts, "fetch_file", fetch)
        s3_store.gate.open()
    settled(server, waiting)
    assert server.get(f"/recordings/{ready}-0/moments")
    assert part(server, place, half, data[half:]).status_code == 200
    settled(server, server.http.post(f"{place}/complete").json()["snapshot"])
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("in_bucket", "end"),
    [(True, ("ready", None)), (False, ("failed", "its conversion was interrupted: upload it again"))],
)
def test_a_conversion_whose_end_could_not_be_stored_is_settled_later(
    bucket: str, start_server: Start, monkeypatch: pytest.MonkeyPatch, in_bucket: bool, end: tuple[str, str | None]
) -> None:
    """The bucket still has the file. In a folder the conversion has deleted it."""
    monkeypatch.setattr(conversions, "TROUBLE_SECONDS", 0.2)
    server = start_server(artifacts=f"s3://{bucket}/a/b" if in_bucket else None)
    settle = server.services.snapshots.conversions._settle
    failures = [StorageTrouble("the disk is full")]

    def fail_once(ident: str, **values: Any) -> None:
        if failures:
            raise failures.pop()
        settle(ident, **values)

    monkeypatch.setattr(server.services.snapshots.conversions, "_settle", fail_once)
    ident = upload(server, data_of(110))["snapshot"]

    def row() -> Any:
        found = server.get(f"/snapshots/{ident}")
        return found["state"] in ("ready", "failed") and found

    found = eventually(row, CONVERSION_SECONDS)
    assert not failures
    assert (found["state"], found["problem"]) == end


def test_what_could_not_be_deleted_is_deleted_by_a_sweep(
    server: RunningServer, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is needed, or was written lately, stays."""
    gone, kept = (settled(server, upload(server, data_of(size))["snapshot"])["snapshot"] for size in (160, 170))
    place = begin(server, 10)
    part(server, place, 0, b"12345")
    s3_store.gate.close()
    try:
        assert server.http.delete(f"/snapshots/{gone}").status_code == 204, "the row is deleted"
    finally:
        s3_store.gate.open()
    orphan = "a/b/files/0123456789ab/0000000000000000"
    assert s3_store.direct.put(f"/{bucket}/{orphan}", content=b"x").status_code == 200
    before = s3_store.names(bucket)
    server.services.snapshots.sweep()
    assert s3_store.names(bucket) == before
    monkeypatch.setattr(bucket_store, "LEFT_OVER_SECONDS", -60.0)
    server.services.snapshots.sweep()
    assert set(before) - set(s3_store.names(bucket)) == {orphan, f"a/b/columns/{gone}.tar"}
    assert below(s3_store, bucket, "columns/") == [f"columns/{kept}.tar"]
    assert server.get(place)["received_bytes"] == 5


def test_the_retention_thread_sweeps_the_bucket(
    server: RunningServer, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "LEFT_OVER_SECONDS", -60.0)
    orphan = "a/b/columns/0123456789ab.tar"
    assert s3_store.direct.put(f"/{bucket}/{orphan}", content=b"x").status_code == 200
    monkeypatch.setattr(server.services.retention, "_hour_ended", 0.0)
    server.services.retention._delete_hourly()
    assert orphan not in s3_store.names(bucket)
    assert s3_store.direct.put(f"/{bucket}/{orphan}", content=b"x").status_code == 200
    server.services.retention._delete_hourly()
    assert orphan in s3_store.names(bucket), "once an hour"


def test_limit_of_all_snapshots_deletes_objects(
    bucket: str, start_server: Start, s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(artifacts=f"s3://{bucket}/a/b", snapshots_bytes=1)
    old = settled(server, upload(server, data_of(180))["snapshot"])["snapshot"]
    new = settled(server, upload(server, gzip.compress(data_of(190)))["snapshot"])["snapshot"]
    eventually(lambda: below(s3_store, bucket, "columns/") == [f"columns/{new}.tar"])
    assert server.http.get(f"/snapshots/{old}").status_code == 404
