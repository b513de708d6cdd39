"""Snapshot files: upload, list with progress, delete."""

from __future__ import annotations

import errno
from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from starlette.requests import ClientDisconnect

from vramscope_server.answers.snapshots import SnapshotList, SnapshotRow, UploadedSnapshot
from vramscope_server.api.problems import InvalidParameter, NotFound, Storage, too_large
from vramscope_server.api.project_rights import project_of_upload
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import storing
from vramscope_server.artifact_store.disk_space import DiskFull
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.snapshots import MAX_FILE_BYTES, Upload
from vramscope_server.store.audit_log import Action, Done, noted
from vramscope_server.store.list_row import seconds
from vramscope_server.store.snapshots import StoredSnapshot, find_snapshot, list_snapshots

router = APIRouter(tags=["snapshots"])

_WRITTEN_BYTES: Final = 1 << 20
MAX_NAME: Final = 200
DEFAULT_NAME: Final = "snapshot.pickle"

Name = Annotated[str, Query(max_length=MAX_NAME, description="Name of the file.")]
ProjectName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_NAME,
        description="Project that the file belongs to; by default the only one of the token, else none.",
    ),
]


@router.post(
    "/snapshots",
    summary="Upload a snapshot file",
    status_code=202,
    responses=answers_with(UploadedSnapshot, text="The same file is stored already.")
    | answers_with(UploadedSnapshot, status=202, text="The file waits to be converted."),
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def post_snapshot(request: Request, name: Name = DEFAULT_NAME, project: ProjectName = None) -> Response:
    """The body is a file of ``torch.cuda.memory._dump_snapshot``, plain or gzipped, up to 16 GiB.

    A large file is better sent in parts (`POST /snapshots/uploads`): it survives a lost connection, and proxies let it through.
    """
    services: Services = request.app.state.services
    owner = project_of_upload(caller_of(request), project)
    announced = _announced(request)
    try:
        upload = await to_thread.run_sync(services.snapshots.upload, announced)
    except (DiskFull, OSError) as trouble:
        raise full(trouble) from None
    try:
        await _receive(request, upload)
        if not upload.size_bytes:
            raise InvalidParameter("The file is empty.", field="body", seen=0, expected="a snapshot file")
        with storing("stored"):
            stored, known = await to_thread.run_sync(
                services.snapshots.take, upload.path, upload.sha256, name.strip() or DEFAULT_NAME, owner
            )
    except ClientDisconnect:
        return Response(status_code=499)  # the client is gone
    except (DiskFull, OSError) as trouble:
        raise full(trouble) from None
    finally:
        upload.drop()
    return answer({"known": known, **snapshot_row(services, stored)}, 200 if known else 202)


@router.get("/snapshots", summary="Snapshot files", responses=answers_with(SnapshotList))
def get_snapshots(request: Request) -> Response:
    """Newest first."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = list_snapshots(connection)
    return answer(
        SnapshotList(
            snapshots=[snapshot_row(services, one) for one in stored],
            stored_bytes=sum(one.stored_bytes for one in stored),
            max_bytes=services.settings.snapshots_bytes,
        )
    )


@router.get("/snapshots/{snapshot}", summary="One snapshot file", responses=answers_with(SnapshotRow))
def get_snapshot(request: Request, snapshot: str) -> Response:
    """The row of the list, with the progress of the conversion."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = find_snapshot(connection, snapshot)
    if stored is None:
        raise _unknown(snapshot)
    return answer(snapshot_row(services, stored))


@router.delete("/snapshots/{snapshot}", summary="Delete a snapshot file", status_code=204, response_class=Response)
def delete_snapshot(request: Request, snapshot: str) -> Response:
    """It may wait, be converted, or be open."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = find_snapshot(connection, snapshot)
    if stored is None:
        raise _unknown(snapshot)
    note = noted(caller_of(request).actor, Done(Action.snapshot_deleted, stored.id, stored.name, stored.project))
    try:
        with storing("changed"):
            services.snapshots.delete(snapshot, note)
    except LookupError:
        raise _unknown(snapshot) from None
    return Response(status_code=204)


def snapshot_row(services: Services, stored: StoredSnapshot) -> SnapshotRow:
    """A snapshot as a row of the list."""
    place, done, total = services.snapshots.progress(stored.id)
    preparing = stored.state == "converting" and not total
    return {
        "snapshot": stored.id,
        "name": stored.name,
        "project": stored.project,
        "sha256": stored.sha256,
        "bytes": stored.bytes,
        "stored_bytes": stored.stored_bytes,
        "state": stored.state,
        "place": place,
        "preparing": preparing,
        "done_bytes": done,
        "total_bytes": total or stored.bytes,
        "curves": services.snapshots.conversions.curves(stored.id),
        "problem": stored.problem,
        "received_seconds": seconds(stored.received_ns),
        "devices": [
            {"recording": f"{stored.id}-{one['device']}", **one}
            for one in stored.devices
        ],
        "notes": stored.notes,
    }  # fmt: skip


async def _receive(request: Request, upload: Upload) -> None:
    """Write the body to the disk, one MiB at a time, in a thread."""
    parts: list[bytes] = []
    size = 0

    async def write() -> None:
        nonlocal size
        data = b"".join(parts)
        parts.clear()
        size = 0
        await to_thread.run_sync(upload.write, data)

    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if upload.size_bytes + size > MAX_FILE_BYTES:
            raise too_large("file", f"more than {MAX_FILE_BYTES} bytes", MAX_FILE_BYTES)
        if size >= _WRITTEN_BYTES:
            await write()
    if parts:
        await write()


def _announced(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None or not text.isdigit():
        return None
    if int(text) > MAX_FILE_BYTES:
        raise too_large("file", f"{text} bytes", MAX_FILE_BYTES)
    return int(text)


def full(trouble: Exception) -> Storage:
    if isinstance(trouble, OSError) and trouble.errno != errno.ENOSPC:
        return Storage(f"Nothing was stored: {trouble.strerror}.", headers={"Connection": "close"})
    reason = f": {trouble}" if isinstance(trouble, DiskFull) else ""
    return Storage(f"Nothing was stored: the server's disk is full{reason}.", headers={"Connection": "close"})


def _unknown(text: str) -> NotFound:
    return NotFound(
        f"Snapshot {text[:60]!r} not found.",
        field="snapshot",
        seen=text[:60],
        expected="an id from /snapshots",
        suggestions=[],
    )
