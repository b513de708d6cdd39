"""Start of a server that keeps its snapshot files in a bucket: what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from running import RunningServer
from s3_server import S3Server

from vramscope_server import settings
from vramscope_server.artifact_store import bucket_store
from vramscope_server.artifact_store.store import ArtifactsRefused
from vramscope_server.cli.server import serve
from vramscope_server.settings import Settings

pytestmark = pytest.mark.xdist_group("s3")
Start = Callable[..., RunningServer]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("s3://nothing-here/x", "s3://nothing-here/x cannot be used: NoSuchBucket."),
        ("https://bucket", "an address is s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://", "an address is s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket", "credentials stand in AWS_... variables"),
        ("s3://a bucket", "an address is s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/a//b", "an address is s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/../b", "an address is s3://BUCKET or s3://BUCKET/PREFIX"),
    ],
)
def test_a_server_without_its_bucket_does_not_start(
    bucket: str,
    given: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VRAMSCOPE_ARTIFACTS", given)
    assert serve("127.0.0.1", 0, None, tmp_path / "data") == 2
    told = capsys.readouterr().err
    assert words in told and "secret" not in told


@pytest.mark.parametrize("given", ["s3://lab", "s3://lab/", "s3://Lab_2.x/my prefix/b"])
def test_addresses_of_buckets(given: str) -> None:
    assert Settings(artifacts=given).artifacts == given.rstrip("/")


def test_a_server_whose_bucket_does_not_answer_does_not_start(
    bucket: str,
    s3_store: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VRAMSCOPE_ARTIFACTS", f"s3://{bucket}")
    s3_store.gate.close()
    try:
        assert serve("127.0.0.1", 0, None, tmp_path / "data") == 2
    finally:
        s3_store.gate.open()
    assert f"s3://{bucket} cannot be used" in capsys.readouterr().err


def test_a_prefix_belongs_to_one_database(bucket: str, start_server: Start) -> None:
    """A sweep would delete what another database needs."""
    start_server(artifacts=f"s3://{bucket}/a")
    with pytest.raises(ArtifactsRefused, match="belongs to another database"):
        start_server(artifacts=f"s3://{bucket}/a")
    start_server(artifacts=f"s3://{bucket}/b")


def test_a_server_with_a_read_only_database_deletes_nothing(
    bucket: str, s3_store: S3Server, start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be an old copy, which does not know the newest snapshots."""
    server = start_server(artifacts=f"s3://{bucket}/a")
    newer = "a/columns/0123456789ab.tar"
    assert s3_store.direct.put(f"/{bucket}/{newer}", content=b"x").status_code == 200
    monkeypatch.setattr(bucket_store, "LEFT_OVER_SECONDS", -60.0)
    with monkeypatch.context() as reading:
        reading.setattr(server.services.database, "read_only", "the disk is read-only")
        server.services.snapshots.sweep()
    assert newer in s3_store.names(bucket)
    server.services.snapshots.sweep()
    assert newer not in s3_store.names(bucket)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"vramscope\[server,s3\]"):
        Settings(artifacts="s3://bucket")
