"""Upload of a snapshot file in parts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from vramscope_server.analysis.timeline.overview import load_machine_code
from vramscope_server.answers.snapshots import UploadedSnapshot, UploadState
from vramscope_server.api.problems import Busy, Conflict, NotFound
from vramscope_server.api.project_rights import project_of_upload
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.snapshots import DEFAULT_NAME, MAX_NAME, full, snapshot_row
from vramscope_server.api.writes import storing
from vramscope_server.artifact_store.disk_space import DiskFull
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.snapshots import MAX_FILE_BYTES
from vramscope_server.uploads import MAX_STARTED, PART_BYTES, Incomplete, StartedUpload, TooManyUploads, WrongOffset

router = APIRouter(tags=["snapshots"])


class NewUpload(BaseModel):
    """A file that is sent in parts."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = DEFAULT_NAME
    """Name of the file."""
    size_bytes: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)]
    """Size of the file."""
    project: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    """Project that the file belongs to; by default the only one of the token, else none."""


@router.post(
    "/snapshots/uploads",
    summary="Start an upload in parts",
    status_code=201,
    responses=answers_with(UploadState, status=201),
)
def post_upload(request: Request, wanted: NewUpload) -> Response:
    """Then PUT the parts in order, and complete it. An upload that no part reaches for a day is deleted."""
    services: Services = request.app.state.services
    owner = project_of_upload(caller_of(request), wanted.project)
    try:
        started = services.snapshots.uploads.begin(wanted.name.strip() or DEFAULT_NAME, wanted.size_bytes, owner)
    except TooManyUploads:
        raise Busy(f"{MAX_STARTED} uploads are not complete yet.", headers={"Retry-After": "60"}) from None
    except (DiskFull, OSError) as trouble:
        raise full(trouble) from None
    services.snapshots.conversions.prepare()
    created = answer(_state(started), 201)
    created.background = BackgroundTask(
        load_machine_code
    )  # of the first picture, in this process, while the parts come
    return created


@router.get("/snapshots/uploads/{upload}", summary="An upload in parts", responses=answers_with(UploadState))
def get_upload(request: Request, upload: str) -> Response:
    """How far it has come: after a lost connection it goes on from there."""
    return answer(_state(_visible(request, upload)))


@router.put(
    "/snapshots/uploads/{upload}",
    summary="Send the next part of an upload",
    responses=answers_with(UploadState),
)
def put_part(
    request: Request,
    upload: str,
    part: Annotated[bytes, Body(media_type="application/octet-stream", description="At most 1 MiB.")],
    offset: Annotated[int, Query(ge=0, description="Bytes of the file before this part.")],
) -> Response:
    """A part that the server has already is skipped. One that leaves a gap is 409; the answer says where to go on."""
    services: Services = request.app.state.services
    _visible(request, upload)
    try:
        return answer(_state(services.snapshots.uploads.append(upload, offset, part)))
    except LookupError:
        raise _unknown(upload) from None
    except WrongOffset as wrong:
        raise Conflict(
            f"The part does not continue the file: {wrong}.",
            field="offset",
            seen=offset,
            expected=f"at most {wrong.received_bytes}, and an end within the file",
        ) from None
    except (DiskFull, OSError) as trouble:
        raise full(trouble) from None


@router.post(
    "/snapshots/uploads/{upload}/complete",
    summary="Complete an upload in parts",
    status_code=202,
    responses=answers_with(UploadedSnapshot, text="The same file is stored already.")
    | answers_with(UploadedSnapshot, status=202, text="The file waits to be converted."),
)
def complete_upload(request: Request, upload: str) -> Response:
    """All parts must have been received."""
    services: Services = request.app.state.services
    _visible(request, upload)
    try:
        with storing("stored"):
            stored, known = services.snapshots.complete(upload)
    except LookupError:
        raise _unknown(upload) from None
    except Incomplete as short:
        found = short.upload
        raise Conflict(
            f"{found.received_bytes} of {found.size_bytes} bytes were received.",
            field="upload",
            seen=found.received_bytes,
            expected=str(found.size_bytes),
        ) from None
    except OSError as trouble:
        raise full(trouble) from None
    return answer({"known": known, **snapshot_row(services, stored)}, 200 if known else 202)


def _state(upload: StartedUpload) -> UploadState:
    return UploadState(
        upload=upload.id,
        name=upload.name,
        size_bytes=upload.size_bytes,
        received_bytes=upload.received_bytes,
        part_bytes=PART_BYTES,
    )


def _visible(request: Request, upload: str) -> StartedUpload:
    """An upload of a project of the caller. Raises NotFound."""
    services: Services = request.app.state.services
    try:
        started = services.snapshots.uploads.find(upload)
    except LookupError:
        raise _unknown(upload) from None
    except OSError as trouble:
        raise full(trouble) from None
    if not caller_of(request).scope.has(started.project):
        raise _unknown(upload)
    return started


def _unknown(text: str) -> NotFound:
    return NotFound(
        f"Upload {text[:60]!r} not found: it is complete, or no part reached it for a day.",
        field="upload",
        seen=text[:60],
        expected="an id from POST /snapshots/uploads",
        suggestions=[],
    )
