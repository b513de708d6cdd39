"""Artifacts in a bucket. Any number of server processes on any machines need no shared folder.

``files/<id>/<offset>`` are the parts of a file that waits, ``columns/<id>.tar`` are the columns of a snapshot, and ``database``
has the identifier of the database that the objects belong to. Every object is written at once, and appears when it is complete.
A row of the database is written after the object that it needs, and deleted before it. What is left over when a process ends in
between is deleted by :meth:`BucketStore.sweep`.

Files that a FolderStore left in the local folder are found there, on this machine alone.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vramscope_server.artifact_store.bucket import Bucket
from vramscope_server.artifact_store.bucket_uploads import FILES, UPLOADING, BucketUploads, part_name, parts_of
from vramscope_server.artifact_store.column_cache import ColumnCache
from vramscope_server.artifact_store.disk_space import DiskFull, check_room
from vramscope_server.artifact_store.folder import FolderStore
from vramscope_server.artifact_store.store import ID_LENGTH, ArtifactsRefused, ArtifactsUnreachable, Needed

log = logging.getLogger("vramscope_server.artifacts")

COLUMNS: Final = "columns"
DATABASE: Final = "database"
LEFT_OVER_SECONDS: Final = 3600.0
"""Age from which an object without a row counts as left over."""


class BucketStore:
    """Open it with :meth:`open`."""

    def __init__(self, bucket: Bucket, folder: Path, owner: Callable[[], int], *, cache_bytes: int) -> None:
        """``folder``: of this machine. ``owner``: number of this process, for the names of what it writes there."""
        self.folder = folder
        self.uploads = BucketUploads(bucket)
        self._bucket = bucket
        self._owner = owner
        self._earlier = FolderStore(folder, is_shared=False)
        self._cache = ColumnCache(folder / "fetched", cache_bytes)
        self._fetching = threading.Lock()

    @classmethod
    def open(
        cls, url: str, folder: Path, database_id: str, owner: Callable[[], int], *, cache_bytes: int
    ) -> BucketStore:
        """Open a store, and write to it once. Raises ArtifactsRefused if that fails, or if it belongs to another database."""
        try:
            bucket = Bucket(url)
            bucket.list(UPLOADING)
            found = bucket.get(DATABASE)
            if found is None or found == database_id.encode():
                bucket.put(DATABASE, database_id.encode())
                check = f"check/{secrets.token_hex(6)}"
                bucket.put(check, b"")
                bucket.delete([check])
                return cls(bucket, folder, owner, cache_bytes=cache_bytes)
        except ArtifactsUnreachable as trouble:
            raise ArtifactsRefused(f"{trouble.strerror}.") from None
        raise ArtifactsRefused(
            f"{url} belongs to another database. Name another prefix in VRAMSCOPE_ARTIFACTS, or delete the object "
            f"{DATABASE!r} there if that database is gone."
        )

    @property
    def trouble(self) -> str | None:
        """Why the last request failed."""
        return self._bucket.trouble

    def put_file(self, ident: str, file: Path) -> None:
        """Send the file, and delete it here."""
        self._bucket.put_file(part_name(ident, 0), file)
        file.unlink(missing_ok=True)

    def put_upload(self, ident: str, upload: str) -> None:
        """Nothing: its parts lie where the file waits."""
        assert ident == upload[:ID_LENGTH]

    def fetch_file(self, ident: str, target: Path) -> Path | None:
        """Copy the file to ``target``, or return one that was left in the folder. Raises DiskFull."""
        parts, size_bytes = parts_of(self._bucket.list(f"{FILES}/{ident}"))
        if not parts:
            return self._left_in_folder(ident, target)
        check_room(target.parent, size_bytes)
        only = parts[0] if len(parts) == 1 else None
        chunks = (
            self._bucket.get_large(only.name, only.bytes)
            if only is not None
            else self._bucket.get_all([part.name for part in parts])
        )
        with target.open("wb") as file:
            for data in chunks:
                file.write(data)
        return target

    def _left_in_folder(self, ident: str, target: Path) -> Path | None:
        """A second name for the file: a conversion deletes what it reads, and the bucket may not take the columns."""
        left = self._earlier.fetch_file(ident, target)
        if left is None:
            return None
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(left)
        except OSError:  # a file system without links
            check_room(target.parent, left.stat().st_size)
            shutil.copyfile(left, target)
        return target

    def withdraw_file(self, ident: str) -> None:
        """Nothing: the row may be stored after all. A sweep deletes the file otherwise."""

    def drop_file(self, ident: str) -> None:
        """Delete the parts."""
        self._earlier.drop_file(ident)
        self._bucket.delete(one.name for one in self._bucket.list(f"{FILES}/{ident}"))

    def put_columns(self, ident: str, made: Path) -> None:
        """Send the folder, and keep it in the cache."""
        self._bucket.put_folder(_columns(ident), made)
        self._cache.drop(ident)
        self._cache.add(ident, made)

    def columns(self, ident: str) -> Path | None:
        """The folder in the cache, fetched where it is not there."""
        found = self._cache.find(ident)
        if found is not None:
            return found
        with self._fetching:  # devices of one snapshot are often opened together
            found = self._cache.find(ident)
            if found is None:
                self._bucket.refuse_while_failing()
                found = self._fetch(ident)
            return found

    def _fetch(self, ident: str) -> Path | None:
        making = self.folder / "making" / f"{ident}.{secrets.token_hex(4)}-{self._owner()}"
        making.mkdir(mode=0o700, parents=True)
        try:
            if self._bucket.get_folder(_columns(ident), making, lambda wanted: check_room(self.folder, wanted)):
                return self._cache.add(ident, making)
            return self._earlier.columns(ident)
        except ArtifactsUnreachable:
            raise
        except (DiskFull, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ArtifactsUnreachable(f"columns cannot be stored in {self.folder}: {reason}") from None
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def drop_columns(self, ident: str) -> None:
        """Delete the object, and the folder in the cache of this machine. Those of others are deleted when they are old."""
        self._cache.drop(ident)
        self._earlier.drop_columns(ident)
        self._bucket.delete([_columns(ident)])

    def missing_file(self) -> str:
        """The bucket had it when it was received."""
        return f"its file is missing in {self._bucket.url}"

    def sweep(self, needed: Callable[[], Needed]) -> int:
        """Delete left-over objects. Those that were written lately stay: their rows may follow."""
        files: dict[str, list[str]] = {}
        newest: dict[str, float] = {}
        for one in self._bucket.list(FILES):
            ident = one.name.split("/")[1]
            files.setdefault(ident, []).append(one.name)
            newest[ident] = max(one.written_seconds, newest.get(ident, 0.0))
        columns = {one.name.removeprefix(f"{COLUMNS}/").removesuffix(".tar"): one for one in self._bucket.list(COLUMNS)}
        uploading = {one.name.removeprefix(f"{UPLOADING}/")[:ID_LENGTH] for one in self._bucket.list(UPLOADING)}
        rows = needed()
        before = time.time() - LEFT_OVER_SECONDS
        old_files = {ident for ident, seconds in newest.items() if seconds < before} - rows.files - uploading
        old_columns = {ident for ident, one in columns.items() if one.written_seconds < before} - rows.columns
        self._bucket.delete(name for ident in old_files for name in files[ident])
        self._bucket.delete(columns[ident].name for ident in old_columns)
        if old_files or old_columns:
            log.info(
                "%s: deleted %d left-over files and %d columns", self._bucket.url, len(old_files), len(old_columns)
            )
        return len(old_files) + len(old_columns)


def _columns(ident: str) -> str:
    return f"{COLUMNS}/{ident}.tar"
