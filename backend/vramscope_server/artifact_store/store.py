"""What a store of artifacts does. ``FolderStore`` and ``BucketStore`` are the two."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from vramscope_server.uploads import StartedUpload

ID_LENGTH: Final = 12
"""Length of a snapshot's identifier. If its file came in parts, the identifier of the upload begins with it."""


class ArtifactsRefused(Exception):
    """The store cannot be used; the message is a sentence for the person who started the server."""


class ArtifactsUnreachable(OSError):
    """The store does not answer, or refuses a request. It may answer later."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)


class PartialUploads(Protocol):
    """Uploads in parts. Any thread may call it."""

    def begin(self, name: str, size_bytes: int, project: str | None = None) -> StartedUpload:
        """A new upload. Raises TooManyUploads, DiskFull, OSError."""

    def find(self, ident: str) -> StartedUpload:
        """An upload as far as it has come. Raises LookupError, ArtifactsUnreachable."""

    def append(self, ident: str, offset: int, data: bytes) -> StartedUpload:
        """Add a part. One that was received already is skipped. Raises LookupError, WrongOffset, DiskFull, OSError."""

    def sha256(self, ident: str) -> str:
        """Hash of a complete file. Raises OSError, and LookupError if parts of it were deleted."""

    def locked(self, ident: str) -> AbstractContextManager[None]:
        """Keep other server processes from completing it at the same time, where that could do harm. Raises LookupError."""

    def drop(self, ident: str) -> None:
        """Forget an upload whose file was stored. Raises OSError."""

    def drop_old(self) -> None:
        """Delete uploads that no part has reached for a day. Raises OSError."""


class Needed(NamedTuple):
    """Identifiers of the snapshots in the database."""

    files: set[str]
    """Those that wait or are converted."""
    columns: set[str]
    """Those that are converted, or were."""


class ArtifactStore(Protocol):
    """Any thread may call it, and so may other processes and machines. Methods raise OSError; of a bucket
    ArtifactsUnreachable."""

    folder: Path
    """Folder of this machine for files that are being received or made."""

    @property
    def uploads(self) -> PartialUploads:
        """Uploads in parts."""

    @property
    def trouble(self) -> str | None:
        """Why the last request failed; None if it succeeded, or was made long ago."""

    def put_file(self, ident: str, file: Path) -> None:
        """Take a complete file, which waits to be converted from now on. It must lie in ``folder``."""

    def put_upload(self, ident: str, upload: str) -> None:
        """Take the file of a complete upload in parts."""

    def fetch_file(self, ident: str, target: Path) -> Path | None:
        """The file on this machine, where necessary as a copy at ``target``. None: it is missing."""

    def withdraw_file(self, ident: str) -> None:
        """The database did not confirm that it stored the row of this file."""

    def drop_file(self, ident: str) -> None:
        """Delete a file, if it is there."""

    def put_columns(self, ident: str, made: Path) -> None:
        """Take a complete folder of columns, and replace an earlier one. It must lie in ``folder``."""

    def columns(self, ident: str) -> Path | None:
        """Folder of columns on this machine. None: it is missing."""

    def drop_columns(self, ident: str) -> None:
        """Delete columns, if they are there."""

    def missing_file(self) -> str:
        """Why the file of a stored snapshot may be missing, in words."""

    def sweep(self, needed: Callable[[], Needed]) -> int:
        """Delete what no snapshot needs: a process ended between the database and a bucket, or the bucket did not answer.

        ``needed`` is called after the store was listed. Returns the number of files and folders that were deleted.
        """
