"""Artifacts in a folder. Server processes on several machines need the same one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from vramscope_server.artifact_store.disk_space import check_room
from vramscope_server.artifact_store.store import Needed
from vramscope_server.uploads import Uploads


class FolderStore:
    """Files wait under ``waiting``; columns are the folder ``<id>``.

    What was made in the same folder is renamed, so that a file or folder is always complete.
    """

    trouble: str | None = None

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        """``is_shared``: other processes may use the same database."""
        self.folder = folder
        self.uploads = Uploads(folder / "uploading", lambda wanted: check_room(self.folder, wanted))
        self._is_shared = is_shared

    def put_file(self, ident: str, file: Path) -> None:
        """Move the file."""
        (self.folder / "waiting").mkdir(exist_ok=True)
        file.rename(self._file(ident))

    def put_upload(self, ident: str, upload: str) -> None:
        """Move its file."""
        self.put_file(ident, self.uploads.path(upload))

    def fetch_file(self, ident: str, target: Path) -> Path | None:
        """The file itself."""
        file = self._file(ident)
        return file if file.exists() else None

    def withdraw_file(self, ident: str) -> None:
        """Delete the file: its sender sends it again."""
        self.drop_file(ident)

    def drop_file(self, ident: str) -> None:
        """Delete the file."""
        self._file(ident).unlink(missing_ok=True)

    def put_columns(self, ident: str, made: Path) -> None:
        """Move the folder."""
        # A process that was taken over may have left the same columns there.
        shutil.rmtree(self.folder / ident, ignore_errors=True)
        made.rename(self.folder / ident)

    def columns(self, ident: str) -> Path | None:
        """The folder itself."""
        folder = self.folder / ident
        return folder if folder.is_dir() else None

    def drop_columns(self, ident: str) -> None:
        """Delete the folder. Mapped files stay readable for those who have them open."""
        shutil.rmtree(self.folder / ident, ignore_errors=True)

    def missing_file(self) -> str:
        """A conversion deletes the file when it has read it."""
        if self._is_shared:
            return "its file is missing: all server processes need the same folder of snapshots, or a bucket"
        return "its conversion was interrupted: upload it again"

    def sweep(self, needed: Callable[[], Needed]) -> int:
        """Nothing: a folder may hold what somebody has put there."""
        return 0

    def _file(self, ident: str) -> Path:
        return self.folder / "waiting" / ident
