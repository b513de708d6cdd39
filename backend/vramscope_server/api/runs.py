"""Runs: the list, one in full, renaming, pinning, deleting."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.answers.runs import RunList, RunRow
from vramscope_server.api.problems import Conflict, InvalidParameter
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader, the_run
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.services import House
from vramscope_server.store.preferences import alert_rules
from vramscope_server.store.run_queries import list_choices, list_runs, run_in_full

router = APIRouter(tags=["runs"])

Word = Annotated[str, Field(min_length=1, max_length=200)]


class RunChanges(BaseModel):
    """What may be changed about a run; what is not given stays."""

    model_config = ConfigDict(extra="forbid")

    name: Word | None = None
    tags: Annotated[list[Word], Field(max_length=64)] | None = None
    pinned: bool | None = None
    baseline: bool | None = None


@router.get("/runs", summary="The list of runs", responses=answers_with(RunList))
def get_runs(
    request: Request,
    query: Annotated[str, Query(max_length=500, description="words in name, project, tags, device, id or state")] = "",
    project: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[Literal["", "running", "finished", "failed", "lost"], Query()] = "",
    tag: Annotated[str, Query(max_length=200)] = "",
    device: Annotated[str, Query(max_length=4096, description="the whole name, as rows have it")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str, Query(max_length=200, description="next_cursor of the page before")] = "",
) -> Response:
    """``{runs, total, next_cursor, projects, devices, tags}``: pinned and baseline first, then newest first."""
    with reader(request.app.state.house) as connection:
        rows, total, following, projects = list_runs(
            connection,
            query=query,
            project=project,
            state=state,
            tag=tag,
            device=device,
            limit=limit,
            cursor=_place(cursor),
        )
        choices = list_choices(connection)
    return answer({"runs": rows, "total": total, "next_cursor": _cursor(following), "projects": projects} | choices)


@router.get("/runs/{run}", summary="One run in full", responses=answers_with(RunAnswer))
def get_run(request: Request, run: str) -> Response:
    """``show RUN --json``, and ranks, config, events, window, and by which rules its page counts alerts."""
    with reader(request.app.state.house) as connection:
        return answer(run_in_full(connection, the_run(connection, run)) | {"alert_rules": alert_rules(connection)})


@router.patch("/runs/{run}", summary="Rename, tag, pin, or make the baseline", responses=answers_with(RunRow))
def patch_run(request: Request, run: str, changes: RunChanges) -> Response:
    """Answers the row. A project has one baseline: making another run it takes it from the one before."""
    house: House = request.app.state.house
    with reader(house) as connection:
        run_id = str(the_run(connection, run)["id"])
    wanted: dict[str, Any] = changes.model_dump(exclude_none=True)
    if "tags" in wanted:
        wanted["tags"] = list(dict.fromkeys(wanted["tags"]))
    return answer(change(house, lambda connection, book: book.change(connection, run_id, wanted)))


@router.delete("/runs/{run}", summary="Delete a run and its data", status_code=204, response_class=Response)
def delete_run(request: Request, run: str) -> Response:
    """204; a live run: 409."""
    house: House = request.app.state.house
    with reader(house) as connection:
        record = the_run(connection, run)
    run_id = str(record["id"])
    try:
        change(house, lambda connection, book: book.delete(connection, run_id))
    except ValueError:
        raise Conflict(f"{record['name']} is live. Stop it first, or wait until it is lost.") from None
    return Response(status_code=204)


def _cursor(place: tuple[int, int, int] | None) -> str | None:
    return None if place is None else base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _place(cursor: str) -> tuple[int, int, int] | None:
    if not cursor:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[int, int, int])
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise InvalidParameter(
            "The cursor is not one of ours.", field="cursor", seen=cursor, expected="next_cursor of the page before"
        ) from None
