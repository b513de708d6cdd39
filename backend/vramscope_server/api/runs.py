"""Runs: list, show, change, delete."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.answers.runs import RunList, RunRow
from vramscope_server.api.problems import Conflict, InvalidParameter
from vramscope_server.api.project_rights import require_project
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.audit_log import Action, Done, differences, noted
from vramscope_server.store.preferences import alert_rules
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.run_queries import list_choices, list_runs
from vramscope_server.store.stored_rows import RunChange

router = APIRouter(tags=["runs"])

Word = Annotated[str, Field(min_length=1, max_length=200)]


class RunChanges(BaseModel):
    """Changes of a run. A field that is left out keeps its value."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    project: Word | None = None
    """Project of the run. A token that is bound to projects needs both. A moved run is no baseline, unless you set it."""
    name: Word | None = None
    """Name of the run."""
    tags: Annotated[list[Word], Field(max_length=64)] | None = None
    """Tags of the run."""
    note: Annotated[str, Field(max_length=2000)] | None = None
    """Note on the run, plain text; an empty one removes it. Spaces at its start and end are removed."""
    pinned: bool | None = None
    """Whether the run stays at the top of the list and is never deleted automatically."""
    baseline: bool | None = None
    """Whether the run is the baseline of its project."""


@router.get("/runs", summary="List runs", responses=answers_with(RunList))
def get_runs(
    request: Request,
    query: Annotated[
        str, Query(max_length=500, description="Words in name, project, tags, device, identifier or state.")
    ] = "",
    project: Annotated[str, Query(max_length=200, description="Name of a project.")] = "",
    state: Annotated[Literal["", "running", "finished", "failed", "lost"], Query(description="State.")] = "",
    tag: Annotated[str, Query(max_length=200, description="Tag.")] = "",
    device: Annotated[str, Query(max_length=4096, description="Full name of the device.")] = "",
    job: Annotated[
        str, Query(max_length=200, description="Identifier of a cluster's job or array, or name of a pod.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of runs.")] = 100,
    cursor: Annotated[str, Query(max_length=200, description="`next_cursor` of the previous page.")] = "",
) -> Response:
    """Pinned runs and baselines come first, then the newest."""
    with reader(request) as connection:
        rows, total, following, projects = list_runs(
            connection,
            query=query,
            project=project,
            state=state,
            tag=tag,
            device=device,
            job=job,
            limit=limit,
            cursor=_place(cursor),
        )
        devices, tags = list_choices(connection)
    return answer(
        RunList(runs=rows, total=total, next_cursor=_cursor(following), projects=projects, devices=devices, tags=tags)
    )


@router.get("/runs/{run}", summary="One run in full", responses=answers_with(RunAnswer))
def get_run(request: Request, run: str) -> Response:
    """Facts, ranks, events, leaks and configuration."""
    with reader(request) as connection:
        return answer({**run_in_full(connection, require_run(connection, run)), "alert_rules": alert_rules(connection)})


@router.patch("/runs/{run}", summary="Change a run", responses=answers_with(RunRow))
def patch_run(request: Request, run: str, changes: RunChanges) -> Response:
    """Rename, tag, pin, move to another project, write a note, or make it the baseline. A new baseline replaces the project's."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        record = require_run(connection, run)
    run_id = str(record.id)
    if changes.project is not None:
        require_project(caller_of(request), changes.project)
    wanted = _wanted(changes)
    before = {name: getattr(record, name) for name in wanted}
    different = differences(before, wanted)
    moved = any(one.field == "project" for one in different)
    action = Action.run_moved if moved else Action.run_changed
    note = noted(caller_of(request).actor, Done(action, run_id, record.name, record.project, different))
    return answer(change(services, lambda connection, state: state.change(connection, run_id, wanted), note))


@router.delete("/runs/{run}", summary="Delete a run", status_code=204, response_class=Response)
def delete_run(request: Request, run: str) -> Response:
    """All of its data is deleted. A live run is refused with 409."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        record = require_run(connection, run)
    run_id = str(record.id)
    note = noted(caller_of(request).actor, Done(Action.run_deleted, run_id, record.name, record.project))
    try:
        change(services, lambda connection, state: state.delete(connection, run_id), note)
    except ValueError:
        raise Conflict(f"{record.name} is live. Stop it first, or wait until it counts as lost.") from None
    return Response(status_code=204)


def _wanted(changes: RunChanges) -> RunChange:
    wanted: RunChange = {}
    if changes.project is not None:
        wanted["project"] = changes.project
    if changes.name is not None:
        wanted["name"] = changes.name
    if changes.tags is not None:
        wanted["tags"] = list(dict.fromkeys(changes.tags))
    if changes.note is not None:
        wanted["note"] = changes.note.strip()
    if changes.pinned is not None:
        wanted["pinned"] = changes.pinned
    if changes.baseline is not None:
        wanted["baseline"] = changes.baseline
    return wanted


def _cursor(place: tuple[int, int, int] | None) -> str | None:
    return None if place is None else base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _place(cursor: str) -> tuple[int, int, int] | None:
    if not cursor:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[int, int, int])
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise InvalidParameter(
            "The cursor is not one of this server.",
            field="cursor",
            seen=cursor,
            expected="next_cursor of the previous page",
        ) from None
