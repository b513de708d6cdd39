"""Folders of columns that were fetched from a bucket, on the disk of this machine: the last used ones, up to a size.

Several server processes of one machine may share the folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

OPENING_SECONDS: Final = 60.0
"""Time in which a folder is opened after it was asked for. It is not deleted before, whatever its size. Files that are mapped
stay readable when they are deleted."""

_DELETED: Final = ".deleted-"
"""Beginning of the names of folders that are being deleted. Identifiers of snapshots have no dot."""


class ColumnCache:
    """Any thread may call it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def find(self, ident: str) -> Path | None:
        """Folder of a snapshot, which counts as used now."""
        path = self._folder / ident
        try:
            _mark_used(path)
        except FileNotFoundError:
            return None
        return path

    def add(self, ident: str, made: Path) -> Path:
        """Move a complete folder here, and delete what was used least lately. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / ident
        try:
            made.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            shutil.rmtree(made, ignore_errors=True)  # another thread or process has fetched the same
        _mark_used(path)
        self._make_room()
        return path

    def drop(self, ident: str) -> None:
        """Delete the folder of a snapshot. Nobody finds half of it, also if the process ends meanwhile."""
        gone = self._folder / f"{_DELETED}{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # it is not there, or another process deletes it
            (self._folder / ident).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _make_room(self) -> None:
        used = []
        for path in self._folder.iterdir():
            if path.name.startswith(_DELETED):
                shutil.rmtree(path, ignore_errors=True)
                continue
            with contextlib.suppress(OSError):  # another process has deleted it
                used.append((path.stat().st_mtime, _size_of(path), path))
        total = sum(size for _, size, _ in used)
        for used_seconds, size, path in sorted(used):
            if total <= self._max_bytes or time.time() - used_seconds < OPENING_SECONDS:
                return
            self.drop(path.name)
            total -= size


def _mark_used(path: Path) -> None:
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns))


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
