"""Buckets without a server: parts from several processes, large and damaged objects, and the cache of columns."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3_server import S3Server

from vramscope_server.artifact_store import bucket as bucket_module
from vramscope_server.artifact_store import bucket_store, column_cache, disk_space
from vramscope_server.artifact_store.bucket import Bucket
from vramscope_server.artifact_store.bucket_store import BucketStore
from vramscope_server.artifact_store.column_cache import ColumnCache
from vramscope_server.artifact_store.store import ArtifactsUnreachable, Needed
from vramscope_server.uploads import KEPT_SECONDS, WrongOffset

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture
def opened(bucket: str, tmp_path: Path) -> BucketStore:
    """A store without a server."""
    return BucketStore.open(f"s3://{bucket}", tmp_path / "work", "x", lambda: 0, cache_bytes=1 << 30)


def test_parts_that_two_processes_store_in_turn_are_one_file(opened: BucketStore, bucket: str, tmp_path: Path) -> None:
    """Each part through one of two stores by chance, some of them twice, in sizes by chance."""
    choice = random.Random(5)
    other = BucketStore.open(f"s3://{bucket}", tmp_path / "other", "x", lambda: 1, cache_bytes=1 << 30)
    data = choice.randbytes(40_000)
    upload = opened.uploads.begin("a", len(data)).id
    while (received := choice.choice((opened, other)).uploads.find(upload).received_bytes) < len(data):
        start = max(0, received - choice.randrange(2000))
        piece = data[start : start + choice.randrange(1, 5000)]
        if start + len(piece) > len(data):
            continue
        for _ in range(choice.randrange(1, 3)):
            choice.choice((opened, other)).uploads.append(upload, start, piece)
    assert opened.uploads.sha256(upload) == other.uploads.sha256(upload) == hashlib.sha256(data).hexdigest()
    target = tmp_path / "fetched"
    assert other.fetch_file(upload[:12], target) == target
    assert target.read_bytes() == data
    with pytest.raises(WrongOffset):
        opened.uploads.append(upload, len(data), b"more")
    opened.uploads.drop(upload)
    with pytest.raises(LookupError):
        other.uploads.find(upload)
    with pytest.raises(LookupError):
        other.uploads.append(upload, 0, data[:10])


def test_an_upload_without_parts_for_a_day_is_forgotten(
    opened: BucketStore, s3_store: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = opened.uploads.begin("a", 10).id
    opened.uploads.append(upload, 0, b"123")
    opened.uploads.drop_old()
    assert opened.uploads.find(upload).received_bytes == 3
    later = time.time() + KEPT_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    opened.uploads.drop_old()
    with pytest.raises(LookupError):
        opened.uploads.find(upload)
    assert opened.sweep(lambda: Needed(set(), set())) == 1
    assert s3_store.names(bucket) == ["database"]


def test_an_upload_whose_parts_were_deleted_begins_again(opened: BucketStore) -> None:
    upload = opened.uploads.begin("a", 6).id
    for offset in (0, 3):
        opened.uploads.append(upload, offset, b"123")
    opened.drop_file(upload[:12])
    with pytest.raises(LookupError):
        opened.uploads.sha256(upload)
    assert opened.uploads.find(upload).received_bytes == 0
    assert opened.uploads.append(upload, 0, b"123456").received_bytes == 6
    assert opened.uploads.sha256(upload) == hashlib.sha256(b"123456").hexdigest()


def test_large_objects_are_written_and_read_in_chunks(
    opened: BucketStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "check_room", lambda folder, wanted: None)
    data = np.random.default_rng(1).bytes(2 * bucket_module.CHUNK_BYTES + 12_345)
    file = tmp_path / "large"
    file.write_bytes(data)
    opened.put_file("0123456789ab", file)
    assert not file.exists()
    target = tmp_path / "copy"
    assert opened.fetch_file("0123456789ab", target) == target
    assert target.read_bytes() == data
    opened.drop_file("0123456789ab")
    assert opened.fetch_file("0123456789ab", target) is None
    folder = tmp_path / "made"
    (folder / "0").mkdir(parents=True)
    (folder / "0" / "a.npy").write_bytes(data)
    (folder / "b.json").write_bytes(b"")
    opened.put_columns("0123456789ab", folder)
    opened._cache.drop("0123456789ab")
    found = opened.columns("0123456789ab")
    assert found is not None
    assert (found / "0" / "a.npy").read_bytes() == data
    assert (found / "b.json").read_bytes() == b""
    assert opened.columns("ffffffffffff") is None


def test_a_store_that_does_not_answer_is_asked_once_for_all_who_wait(
    opened: BucketStore, s3_store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    opened.put_columns("0123456789ab", folder)
    opened._cache.drop("0123456789ab")
    get_folder, asked = opened._bucket.get_folder, []

    def get_once_all_wait(name: str, *how: Any) -> bool:
        asked.append(name)
        time.sleep(0.5)  # the others come meanwhile
        return get_folder(name, *how)

    monkeypatch.setattr(opened._bucket, "get_folder", get_once_all_wait)
    s3_store.gate.close()
    try:
        with ThreadPoolExecutor(8) as callers:
            for answer in [callers.submit(opened.columns, "0123456789ab") for _ in range(8)]:
                with pytest.raises(ArtifactsUnreachable):
                    answer.result()
    finally:
        s3_store.gate.open()
    assert asked == ["columns/0123456789ab.tar"]
    monkeypatch.setattr(bucket_module, "FAILING_SECONDS", 0.0)
    assert opened.columns("0123456789ab")


def test_columns_for_which_the_disk_is_too_small_are_not_fetched(
    opened: BucketStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk would keep the database from storing runs."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 50_000)
    opened.put_columns("0123456789ab", folder)
    opened._cache.drop("0123456789ab")
    free = shutil.disk_usage(tmp_path)._replace(free=disk_space.SPARE_BYTES + 50_000)
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda path: free)
        with pytest.raises(ArtifactsUnreachable, match="bytes are needed"):
            opened.columns("0123456789ab")
    assert list((opened.folder / "making").iterdir()) == []
    assert opened._bucket.trouble is None, "the bucket works"
    assert opened.columns("0123456789ab")


def test_damaged_columns_are_named_and_leave_nothing(opened: BucketStore, bucket: str, s3_store: S3Server) -> None:
    for number, content in enumerate((b"no tar file" * 1000, b"")):
        name = f"{number:012x}"
        assert s3_store.direct.put(f"/{bucket}/columns/{name}.tar", content=content).status_code == 200
        with pytest.raises(ArtifactsUnreachable, match="damaged"):
            opened.columns(name)
    assert list((opened.folder / "making").iterdir()) == []


def test_a_tar_file_with_a_path_outside_is_refused(opened: BucketStore, bucket: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("../../outside")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    Bucket(f"s3://{bucket}").put("columns/0123456789ab.tar", made.getvalue())
    with pytest.raises(ArtifactsUnreachable, match="no file of the folder"):
        opened.columns("0123456789ab")
    assert not list(tmp_path.rglob("outside"))


def test_the_cache_keeps_what_was_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ColumnCache(tmp_path / "cache", max_bytes=250)

    def add(name: str) -> None:
        made = tmp_path / "made"
        made.mkdir()
        (made / "a").write_bytes(b"x" * 100)
        cache.add(name, made)

    for name in ("a", "b", "c"):
        add(name)
    assert all(cache.find(name) for name in ("a", "b", "c")), "they may be about to be opened"
    monkeypatch.setattr(column_cache, "OPENING_SECONDS", 0.0)
    assert cache.find("a")
    add("d")
    assert [name for name in "abcd" if cache.find(name)] == ["a", "d"]
    add("d")
    assert [name for name in "abcd" if cache.find(name)] == ["a", "d"]


def test_a_deletion_that_was_cut_off_leaves_no_half_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ColumnCache(tmp_path / "cache", max_bytes=1000)

    def made() -> Path:
        folder = tmp_path / "made"
        folder.mkdir()
        for name in "ab":
            (folder / name).write_bytes(b"x")
        return folder

    cache.add("1", made())
    delete, deleted = os.unlink, []

    def delete_one(*given: Any, **how: Any) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(given)
        delete(*given, **how)

    monkeypatch.setattr(os, "unlink", delete_one)
    with pytest.raises(KeyboardInterrupt):
        cache.drop("1")
    monkeypatch.undo()
    assert deleted
    assert cache.find("1") is None
    cache.add("2", made())
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["2"]
