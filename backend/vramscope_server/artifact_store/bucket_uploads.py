"""Uploads in parts to a bucket: each part is an object of its own, so that any server process can take the next one.

``uploading/<upload>.json`` has the name, size and project. The parts lie where the file waits later, under ``files/<snapshot>``,
each named by its offset in the file. The objects without a gap from 0 on are what was received. Nothing is copied when the
file is complete.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from vramscope_server.artifact_store.bucket import Bucket, StoredObject
from vramscope_server.artifact_store.store import ID_LENGTH
from vramscope_server.uploads import (
    KEPT_SECONDS,
    MAX_STARTED,
    PartHash,
    StartedUpload,
    TooManyUploads,
)

UPLOADING: Final = "uploading"
FILES: Final = "files"


class _About(msgspec.Struct):
    """Facts about an upload."""

    name: str
    size_bytes: int
    project: str | None


_decode = msgspec.json.Decoder(_About).decode


class BucketUploads:
    """Any thread may call it, and so may other processes. Methods raise ArtifactsUnreachable."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self._hashes: dict[str, PartHash] = {}
        """Hash of what this process received from the beginning on, by upload."""
        self._received: dict[str, int] = {}
        """Bytes of an upload at its last listing: parts are only added."""

    def begin(self, name: str, size_bytes: int, project: str | None = None) -> StartedUpload:
        """A new upload. Raises TooManyUploads."""
        self.drop_old()
        if len(self._bucket.list(UPLOADING)) >= MAX_STARTED:
            raise TooManyUploads
        ident = secrets.token_hex(16)
        self._bucket.put(_about(ident), msgspec.json.encode(_About(name, size_bytes, project)))
        with self._lock:
            self._hashes[ident] = PartHash()
        return StartedUpload(ident, name, size_bytes, 0, project)

    def find(self, ident: str) -> StartedUpload:
        """An upload as far as it has come. Raises LookupError."""
        data = self._bucket.get(_about(ident))
        if data is None:
            self._forget(ident)
            raise LookupError(ident)
        try:
            about = _decode(data)
        except msgspec.MsgspecError:
            raise LookupError(ident) from None
        return StartedUpload(ident, about.name, about.size_bytes, self._received_bytes(ident), about.project)

    def append(self, ident: str, offset: int, data: bytes) -> StartedUpload:
        """Add a part. One that was received already is skipped. Raises LookupError, WrongOffset."""
        known = self.find(ident)
        new = known.new_bytes(offset, data)
        if not new:
            return known
        # Another process may write the same part at the same time: the object is the same.
        self._bucket.put(part_name(ident[:ID_LENGTH], known.received_bytes), new)
        with self._lock:
            if ident in self._hashes:
                self._hashes[ident].add(new, known.received_bytes)
            self._received[ident] = max(known.received_bytes + len(new), self._received.get(ident, 0))
        return known._replace(received_bytes=known.received_bytes + len(new))

    def sha256(self, ident: str) -> str:
        """Hash of a complete file. It is read for that, unless this process received all of it.

        Raises LookupError if parts were deleted: its snapshot failed, or was deleted.
        """
        parts, size_bytes = parts_of(self._bucket.list(_folder(ident)))
        with self._lock:
            known = self._hashes.get(ident)
            received = self._received.get(ident, 0)
        if size_bytes < received:
            self._forget(ident)
            raise LookupError(ident)
        if known is None or known.size_bytes != size_bytes:
            known = PartHash()
            for data in self._bucket.get_all([part.name for part in parts]):
                known.add(data, known.size_bytes)
        return known.hexdigest()

    @contextlib.contextmanager
    def locked(self, ident: str) -> Iterator[None]:
        """Nothing: the database recognises the same file, and nothing is moved."""
        yield

    def drop(self, ident: str) -> None:
        """Forget an upload. Its parts are the file of a snapshot now."""
        self._bucket.delete([_about(ident)])
        self._forget(ident)

    def drop_old(self) -> None:
        """Forget uploads that no part has reached for a day. A sweep deletes their parts."""
        for about in self._bucket.list(UPLOADING):
            ident = about.name.removeprefix(f"{UPLOADING}/").removesuffix(".json")
            if time.time() - about.written_seconds > KEPT_SECONDS:
                newest = max((one.written_seconds for one in self._bucket.list(_folder(ident))), default=0.0)
                if time.time() - newest > KEPT_SECONDS:
                    self.drop(ident)

    def _received_bytes(self, ident: str) -> int:
        """Bytes without a gap. Only parts are listed that came since the last call."""
        with self._lock:
            start = self._received.get(ident, 0)
        after = part_name(ident[:ID_LENGTH], start - 1) if start else None
        _, end = parts_of(self._bucket.list(_folder(ident), after), start)
        with self._lock:
            self._received[ident] = max(end, self._received.get(ident, 0))
        return end

    def _forget(self, ident: str) -> None:
        with self._lock:
            self._hashes.pop(ident, None)
            self._received.pop(ident, None)


def part_name(snapshot: str, offset: int) -> str:
    """Name of a part of a file. The order of the names is that of the parts."""
    return f"{FILES}/{snapshot}/{offset:016x}"


def parts_of(stored: list[StoredObject], start: int = 0) -> tuple[list[StoredObject], int]:
    """Objects that follow each other without a gap from an offset on, and their end."""
    parts, end = [], start
    for one in stored:
        if int(one.name.rpartition("/")[2], 16) == end and one.bytes:
            parts.append(one)
            end += one.bytes
    return parts, end


def _about(ident: str) -> str:
    """Name of the object about an upload. Raises LookupError for what cannot be an identifier."""
    if not re.fullmatch(r"[0-9a-f]{32}", ident):
        raise LookupError(ident)
    return f"{UPLOADING}/{ident}.json"


def _folder(ident: str) -> str:
    return f"{FILES}/{ident[:ID_LENGTH]}"
