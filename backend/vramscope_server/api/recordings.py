"""Recordings of a run: list, request, bytes, delete."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.answers.recordings import RecordingList, RecordingRow
from vramscope_server.answers.shared_parts import Asked
from vramscope_server.api.problems import Conflict, NotFound
from vramscope_server.api.requested_range import Rank, reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, find_artifact, list_artifacts, read_artifact
from vramscope_server.store.audit_log import Action, Done, noted
from vramscope_server.store.list_row import seconds
from vramscope_server.store.snapshots import KIND as SNAPSHOT
from vramscope_server.store.snapshots import find_device

router = APIRouter(tags=["recordings"])


@router.get("/runs/{run}/recordings", summary="Recordings of a run", responses=answers_with(RecordingList))
def get_recordings(request: Request, run: str) -> Response:
    """Newest first."""
    with reader(request) as connection:
        record = require_run(connection, run)
        found = list_artifacts(connection, record)
    rows = [recording_row(stored) for stored in found if stored.kind == "window"]
    return answer(RecordingList(run_id=record.id, state=record.state, recordings=rows))


@router.post(
    "/runs/{run}/recordings",
    summary="Request a recording",
    status_code=202,
    responses=answers_with(Asked, status=202),
)
def ask_for_recording(request: Request, run: str, rank: Rank = None) -> Response:
    """The live processes of the run record a window of allocator history. Without a live process: 409."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        record = require_run(connection, run)
    run_id = str(record.id)
    asked = change(services, lambda connection, state: state.ask(connection, run_id, rank, messages.RECORD_WINDOW))
    if not asked:
        who = record.name if rank is None else f"rank {rank} of {record.name}"
        raise Conflict(f"{who} is not live: only a running training can record its allocator.")
    return answer({"asked": asked}, 202)


@router.get("/recordings/{recording}", summary="One recording", responses=answers_with(RecordingRow))
def get_recording(request: Request, recording: str) -> Response:
    """The row of the list."""
    with reader(request) as connection:
        return answer(recording_row(require_recording(connection, recording)))


@router.get(
    "/recordings/{recording}/data",
    summary="Bytes of a recording",
    response_class=Response,
    responses={
        200: {
            "content": {"application/octet-stream": {}},
            "description": "as `agent/vramscope/protocol/window.py` says",
        }
    },
)
def get_data(request: Request, recording: str) -> Response:
    """For the command line. 409 while pieces are missing."""
    with reader(request) as connection:
        stored = of_run(require_recording(connection, recording))
        whole(stored)
        data = read_artifact(connection, stored.id)
    return Response(data, headers={"Cache-Control": "no-store"}, media_type="application/octet-stream")


@router.delete("/recordings/{recording}", summary="Delete a recording", status_code=204, response_class=Response)
def delete_recording(request: Request, recording: str) -> Response:
    """A device of a snapshot file is refused with 409."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = of_run(require_recording(connection, recording))
        run = require_run(connection, stored.run_id)
    note = noted(caller_of(request).actor, Done(Action.recording_deleted, stored.id, run.name, run.project))
    change(services, lambda connection, state: state.delete_artifact(connection, stored.run_id, stored.id), note)
    services.recordings.close(stored.id)
    return Response(status_code=204)


def recording_row(stored: StoredArtifact) -> RecordingRow:
    """A recording as a row of the list."""
    return {
        "recording": stored.id,
        "run_id": stored.run_id or None,
        "rank": stored.rank,
        "whole": stored.whole,
        "pieces": stored.pieces,
        "pieces_received": stored.received,
        "bytes": stored.bytes,
        "received_seconds": seconds(stored.received_ns),
        "about": dict(stored.about),
    }


def require_recording(connection: Connection, text: str) -> StoredArtifact:
    """Recording of a request. Raises NotFound."""
    stored = find_artifact(connection, text) or find_device(connection, text)
    if stored is None or stored.kind not in ("window", SNAPSHOT):
        raise NotFound(
            f"Recording {text[:60]!r} not found.",
            field="recording",
            seen=text[:60],
            expected="an id from /runs/RUN/recordings, or of a device from /snapshots",
            suggestions=[],
        )
    return stored


def of_run(stored: StoredArtifact) -> StoredArtifact:
    """The same, if a run recorded it. Raises Conflict for a device of a snapshot."""
    if stored.kind == SNAPSHOT:
        raise Conflict(f"This is a device of a snapshot file: see /snapshots/{stored.about['snapshot']}.")
    return stored


def whole(stored: StoredArtifact) -> None:
    """Raise Conflict for a recording with missing pieces, or a snapshot that is not converted."""
    if stored.kind == SNAPSHOT and not stored.whole:
        raise Conflict("This snapshot is not converted yet.")
    if not stored.whole:
        raise Conflict(f"This recording is incomplete: {stored.received} of {stored.pieces} pieces have arrived.")
