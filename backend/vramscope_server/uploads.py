"""Uploads in parts: a file grows under ``uploading`` until it is complete, also across a lost connection or a restart.

Beside the bytes ``<id>`` lies ``<id>.json`` with its name, size and project. The number of received bytes is the file's size.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

PART_BYTES: Final = 1 << 20
"""Maximum size of a part: what proxies let through without being told."""
KEPT_SECONDS: Final = 24 * 3600.0
"""Time after its last part in which an upload can go on."""
MAX_STARTED: Final = 100
"""Maximum number of uploads that are not complete."""
_READ_BYTES: Final = 1 << 20


class StartedUpload(NamedTuple):
    """An upload whose parts are being received."""

    id: str
    name: str
    size_bytes: int
    received_bytes: int
    project: str | None = None

    def new_bytes(self, offset: int, data: bytes) -> bytes:
        """Return what of a part was not received yet. Raises WrongOffset for a gap before it, and beyond the file's end."""
        if offset > self.received_bytes or offset + len(data) > self.size_bytes:
            raise WrongOffset(self.received_bytes)
        return data[self.received_bytes - offset :]


class TooManyUploads(Exception):
    """As many uploads as may be started are not complete yet."""


class Incomplete(Exception):
    """Parts of the file are missing."""

    def __init__(self, upload: StartedUpload) -> None:
        super().__init__(upload.id)
        self.upload = upload


class WrongOffset(Exception):
    """The part does not continue the file."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__(f"{received_bytes} bytes were received")
        self.received_bytes = received_bytes


class PartHash:
    """Hash of the first bytes of a file."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.size_bytes = 0

    def add(self, data: bytes, offset: int) -> None:
        """Add a part. One that does not continue (another process received the part before) leaves it incomplete."""
        if offset == self.size_bytes:
            self.hash.update(data)
            self.size_bytes += len(data)

    def hexdigest(self) -> str:
        """The hash as text."""
        digest: str = self.hash.hexdigest()
        return digest


class Uploads:
    """Uploads in parts. Any thread may call it. ``check_room(bytes)`` raises DiskFull if they do not fit on the disk."""

    def __init__(self, folder: Path, check_room: Callable[[int], None]) -> None:
        self._folder = folder
        self._check_room = check_room
        self._lock = threading.Lock()
        self._hashes: dict[str, PartHash] = {}
        """Hash of what was received, by id; missing after a restart."""

    def begin(self, name: str, size_bytes: int, project: str | None = None) -> StartedUpload:
        """A new upload. Raises TooManyUploads, DiskFull, OSError."""
        self.drop_old()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [self.find(path.stem) for path in self._folder.glob("*.json")]
        if len(others) >= MAX_STARTED:
            raise TooManyUploads
        self._check_room(size_bytes + sum(one.size_bytes - one.received_bytes for one in others))
        ident = secrets.token_hex(16)
        (self._folder / ident).touch()
        about = {"name": name, "size_bytes": size_bytes, "project": project}
        (self._folder / f"{ident}.json").write_text(json.dumps(about))
        self._hashes[ident] = PartHash()
        return StartedUpload(ident, name, size_bytes, 0, project)

    def find(self, ident: str) -> StartedUpload:
        """An upload as far as it has come. Raises LookupError."""
        try:
            about = json.loads(self.about(ident).read_text())
            received = self.path(ident).stat().st_size
            return StartedUpload(ident, about["name"], about["size_bytes"], received, about.get("project"))
        except (OSError, ValueError):
            raise LookupError(ident) from None

    def append(self, ident: str, offset: int, data: bytes) -> StartedUpload:
        """Add a part. One that was received already is skipped: its answer may have been lost.

        Raises LookupError, WrongOffset, DiskFull, OSError.
        """
        with self._lock, self.locked(ident):
            known = self.find(ident)
            new = known.new_bytes(offset, data)
            if not new:
                return known
            self._check_room(len(new))
            try:
                with self.path(ident).open("ab") as file:
                    file.write(new)
            except OSError:
                os.truncate(self.path(ident), known.received_bytes)
                raise
            if ident in self._hashes:
                self._hashes[ident].add(new, known.received_bytes)
            return known._replace(received_bytes=known.received_bytes + len(new))

    def sha256(self, ident: str) -> str:
        """Hash of a complete file. It is read for that, a second a GB, unless this process received all of it."""
        known = self._hashes.get(ident)
        if known is None or known.size_bytes != self.path(ident).stat().st_size:
            known = PartHash()
            with self.path(ident).open("rb") as file:
                while data := file.read(_READ_BYTES):
                    known.add(data, known.size_bytes)
        return known.hexdigest()

    @contextlib.contextmanager
    def locked(self, ident: str) -> Iterator[None]:
        """Keep other server processes from the file. Raises LookupError."""
        try:
            file = self.about(ident).open("rb")
        except OSError:
            raise LookupError(ident) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def drop(self, ident: str) -> None:
        """Forget an upload, and delete what is still here of it."""
        self._hashes.pop(ident, None)
        self.path(ident).unlink(missing_ok=True)
        self.about(ident).unlink(missing_ok=True)

    def drop_old(self) -> None:
        """Delete uploads that no part has reached for a day."""
        for about in self._folder.glob("*.json"):
            path = about.with_suffix("")
            newest = path.stat().st_mtime if path.exists() else 0.0
            if time.time() - newest > KEPT_SECONDS:
                self.drop(about.stem)

    def path(self, ident: str) -> Path:
        """File of an upload. Raises LookupError for what cannot be an id."""
        if not re.fullmatch(r"[0-9a-f]{32}", ident):
            raise LookupError(ident)
        return self._folder / ident

    def about(self, ident: str) -> Path:
        """File with the name, size and project of an upload."""
        return self.path(ident).with_suffix(".json")
