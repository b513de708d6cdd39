"""Uploads a file to a server in parts, and goes on where it was after a lost connection."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vramscope_server.answers.snapshots import SnapshotList, UploadedSnapshot, UploadState
from vramscope_server.cli.client import Connection, Failure, Unreachable
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, NOT_FOUND
from vramscope_server.cli.format import plain

PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0)
"""Pauses before the tries of a part, or of the end, after a lost connection, or after an answer that is not the server's own."""


def upload_file(server: str, path: Path, tell: Callable[[int, int], None]) -> UploadedSnapshot:
    """Send a snapshot file, into the project of ``VRAMSCOPE_PROJECT``.

    Raises Failure as ``client.ask`` does, for a lost connection after the last try."""
    size = path.stat().st_size
    if not size:
        raise Failure(f"{plain(str(path))} is empty.", BAD_ARGUMENTS)
    with Connection(server) as connection, path.open("rb") as file:
        wanted: dict[str, str | int] = {"name": path.name[:200], "size_bytes": size}
        if project := os.environ.get("VRAMSCOPE_PROJECT"):
            wanted["project"] = project
        state: UploadState = connection.ask("POST", "/snapshots/uploads", json=wanted)
        place = f"/snapshots/uploads/{state['upload']}"

        pauses = iter(PAUSES_SECONDS)
        while state["received_bytes"] < size:
            file.seek(state["received_bytes"])
            part = file.read(state["part_bytes"])
            headers = {"Content-Type": "application/octet-stream"}
            try:
                state = connection.ask("PUT", place, {"offset": state["received_bytes"]}, content=part, headers=headers)
                pauses = iter(PAUSES_SECONDS)
            except Unreachable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)
                with contextlib.suppress(Unreachable):
                    state = connection.ask("GET", place)
            tell(state["received_bytes"], size)
        return _complete(connection, place, path)


def _complete(connection: Connection, place: str, path: Path) -> UploadedSnapshot:
    """Complete the upload. If the answer is lost, the next try finds no upload any more, but the file among the stored ones."""
    is_lost = False
    for pause in (*PAUSES_SECONDS, None):
        try:
            done: UploadedSnapshot = connection.ask("POST", f"{place}/complete")
            return done
        except Unreachable:
            if pause is None:
                raise
            is_lost = True
            time.sleep(pause)
        except Failure as failure:
            stored = _stored(connection, path) if is_lost and failure.code == NOT_FOUND else None
            if stored is None:
                raise
            return stored
    raise AssertionError("unreachable: the last try returns or raises")


def _stored(connection: Connection, path: Path) -> UploadedSnapshot | None:
    """The stored snapshot with the bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    known: SnapshotList = connection.ask("GET", "/snapshots")
    found = next((row for row in known["snapshots"] if row["sha256"] == digest.hexdigest()), None)
    return None if found is None else UploadedSnapshot(**found, known=True)
