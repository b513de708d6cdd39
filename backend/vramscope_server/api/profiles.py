"""Profiles of torch.profiler: list, request, open, delete."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import messages, series
from vramscope.protocol.profile import BadProfile, Profile, unpack
from vramscope_server.analysis.profile.history import history_of
from vramscope_server.analysis.profile.summary_text import memory_sentence, time_sentence
from vramscope_server.analysis.profile.tables import DEFAULT_SORT, SORTS, Table, tables_of
from vramscope_server.answers.profiles import ProfileInFull, ProfileList, ProfileTable
from vramscope_server.answers.recordings import ProfileRow
from vramscope_server.answers.shared_parts import Asked, FigureAnswer
from vramscope_server.api.problems import BadRecording, Conflict, InvalidParameter, NotFound
from vramscope_server.api.recordings import recording_row, whole
from vramscope_server.api.requested_range import Rank, reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, find_artifact, list_artifacts, read_artifact
from vramscope_server.store.audit_log import Action, Done, Note, noted
from vramscope_server.store.run_queries import UnknownRun, find_run

router = APIRouter(tags=["profiles"])
log = logging.getLogger("vramscope_server")

TableName = Literal["operations", "modules", "lines"]
FigureName = Literal["operations", "modules", "memory"]
BY: Final = {
    "peak": "self_peak_bytes",
    "allocated": "self_allocated_bytes",
    "cpu": "self_cpu_ns",
    "device": "self_device_ns",
}
By = Annotated[Literal["peak", "allocated", "cpu", "device"], Query(description="Quantity.")]


@router.get("/runs/{run}/profiles", summary="Profiles of a run", responses=answers_with(ProfileList))
def get_profiles(request: Request, run: str) -> Response:
    """Newest first."""
    with reader(request) as connection:
        record = require_run(connection, run)
        found = list_artifacts(connection, record)
    rows = [profile_row(stored, found) for stored in found if stored.kind == "profile"]
    return answer(ProfileList(run_id=record.id, state=record.state, profiles=rows))


@router.post(
    "/runs/{run}/profiles",
    summary="Request a profile",
    status_code=202,
    responses=answers_with(Asked, status=202),
)
def ask_for_profile(
    request: Request,
    run: str,
    rank: Rank = None,
    trace: Annotated[bool, Query(description="Whether to record PyTorch's trace too.")] = False,
) -> Response:
    """The live processes of the run profile their next steps. Without a live process: 409."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        record = require_run(connection, run)
    run_id = str(record.id)
    words = messages.RECORD_TRACE if trace else messages.RECORD_PROFILE
    asked = change(services, lambda connection, state: state.ask(connection, run_id, rank, words))
    if not asked:
        who = record.name if rank is None else f"rank {rank} of {record.name}"
        raise Conflict(f"{who} is not live: only a running training can be profiled.")
    return answer({"asked": asked}, 202)


@router.get("/profiles/{profile}", summary="Open a profile", responses=answers_with(ProfileInFull))
def get_profile(request: Request, profile: str) -> Response:
    """Facts, two sentences, and the size of each table."""
    stored, opened, siblings = open_profile(request, profile)
    tables = tables_of(opened)
    facts = {
        name: getattr(opened, name)
        for name in opened.__struct_fields__
        if name not in ("operations", "modules", "lines", "history", "words", "cost", "format", "peak_phase")
    }
    phase = opened.peak_phase
    return answer(
        profile_row(stored, siblings)
        | facts
        | {
            "cost": msgspec.to_builtins(opened.cost),
            "peak_phase": series.phase_name(phase) if phase >= 0 else None,
            "time": time_sentence(opened, tables["operations"]),
            "memory": memory_sentence(opened, tables["operations"], tables["modules"], tables["lines"]),
            "tables": {name: {"rows": len(table), "sums": table.sums} for name, table in tables.items()},
        }
    )


@router.get("/profiles/{profile}/tables/{table}", summary="Rows of a profile", responses=answers_with(ProfileTable))
def get_table(
    request: Request,
    profile: str,
    table: TableName,
    sort: Annotated[str, Query(description="Column to sort by, or `name`.")] = DEFAULT_SORT,
    order: Annotated[
        Literal["falling", "rising"], Query(description="Order of numbers; names always rise.")
    ] = "falling",
    search: Annotated[str, Query(max_length=200, description="Text in names, classes and files, in any case.")] = "",
    limit: Annotated[int, Query(ge=1, le=5000, description="Maximum number of rows.")] = 100,
    offset: Annotated[int, Query(ge=0, description="Number of rows to skip.")] = 0,
) -> Response:
    """A page of a table, sorted and searched."""
    if sort not in SORTS:
        raise InvalidParameter(
            f"Unknown column {sort[:60]!r}.", field="sort", seen=sort[:60], expected=f"one of {', '.join(SORTS)}"
        )
    _, opened, _ = open_profile(request, profile)
    made = Table.of(opened, table)
    rows, matched = made.rows(sort=sort, rising=order == "rising", search=search, limit=limit, offset=offset)
    return answer({"table": table, "rows": rows, "matched": matched, "total": len(made), "steps": opened.steps})


@router.get("/profiles/{profile}/figures/{name}", summary="Figure of a profile", responses=answers_with(FigureAnswer))
def get_figure(
    request: Request,
    profile: str,
    name: FigureName,
    by: By = "peak",
    table: Annotated[TableName, Query(description="Table whose rows the figure `memory` stacks.")] = "operations",
) -> Response:
    """The largest operations, the step as modules, or memory over time."""
    from vramscope_server.figures import profile_history, profile_modules, profile_operations

    _, opened, _ = open_profile(request, profile)
    if name == "memory":
        return answer({"figure": profile_history.draw(history_of(opened, table)).to_dict()})
    draw = profile_operations.draw if name == "operations" else profile_modules.draw
    return answer({"figure": draw(Table.of(opened, name), BY[by]).to_dict()})


@router.get(
    "/profiles/{profile}/trace",
    summary="Trace of a profile",
    response_class=Response,
    responses={
        200: {"content": {"application/gzip": {}}, "description": "Chrome's JSON, gzipped: for ui.perfetto.dev"}
    },
)
def get_trace(request: Request, profile: str) -> Response:
    """PyTorch's trace for ui.perfetto.dev. 404 if it was not requested, 409 while pieces are missing."""
    with reader(request) as connection:
        stored = require_profile(connection, profile)
        run = require_run(connection, stored.run_id)
        trace = trace_of(stored, list_artifacts(connection, run))
        if trace is None:
            raise NotFound(
                "This profile has no trace: it is recorded only on request.",
                field="profile",
                seen=profile[:60],
                expected="a profile that was requested with its trace",
                suggestions=[],
            )
        whole(trace)
        data = read_artifact(connection, trace.id)
    name = f"vramscope-{stored.run_id}-step-{stored.about.get('first_step')}.json.gz"
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, headers=headers, media_type="application/gzip")


@router.delete("/profiles/{profile}", summary="Delete a profile", status_code=204, response_class=Response)
def delete_profile(request: Request, profile: str) -> Response:
    """Its trace is deleted too."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = require_profile(connection, profile)
        run = require_run(connection, stored.run_id)
        trace = trace_of(stored, list_artifacts(connection, run))
    note = noted(caller_of(request).actor, Done(Action.profile_deleted, stored.id, run.name, run.project))
    _delete(services, stored, note)
    if trace is not None:
        _delete(services, trace, None)
    return Response(status_code=204)


def _delete(services: Services, stored: StoredArtifact, note: Note | None) -> None:
    change(services, lambda connection, state: state.delete_artifact(connection, stored.run_id, stored.id), note)


def profile_row(stored: StoredArtifact, siblings: Sequence[StoredArtifact]) -> ProfileRow:
    """A profile as a row of the list."""
    trace, row = trace_of(stored, siblings), recording_row(stored)
    return {
        "profile": row["recording"],
        "run_id": row["run_id"],
        "rank": row["rank"],
        "whole": row["whole"],
        "pieces": row["pieces"],
        "pieces_received": row["pieces_received"],
        "bytes": row["bytes"],
        "received_seconds": row["received_seconds"],
        "about": row["about"],
        "trace": None if trace is None else {"whole": trace.whole, "bytes": trace.bytes},
    }


def trace_of(stored: StoredArtifact, siblings: Sequence[StoredArtifact]) -> StoredArtifact | None:
    """Trace that was recorded with a profile."""
    steps = ("first_step", "last_step", "reason")
    for other in siblings:
        same = other.rank == stored.rank and all(other.about.get(key) == stored.about.get(key) for key in steps)
        if other.kind == "trace" and same:
            return other
    return None


def require_profile(connection: Connection, text: str) -> StoredArtifact:
    """Profile of a request. Raises NotFound."""
    stored = find_artifact(connection, text)
    if stored is None or stored.kind != "profile":
        raise NotFound(
            f"Profile {text[:60]!r} not found.",
            field="profile",
            seen=text[:60],
            expected="an id from /runs/RUN/profiles",
            suggestions=[],
        )
    return stored


def newest_profile(request: Request, run_id: str | None, rank: int) -> Profile | None:
    """Newest readable profile of a rank; None: there is none."""
    if not run_id:
        return None
    with reader(request) as connection:
        try:
            found = list_artifacts(connection, find_run(connection, run_id))
        except UnknownRun:
            return None
        wholes = [one for one in found if one.kind == "profile" and one.whole and one.rank == rank]
        data = read_artifact(connection, wholes[0].id) if wholes else None
    if data is None:
        return None
    try:
        return unpack(data)
    except BadProfile as bad:
        log.warning("profile %s cannot be read: %s", wholes[0].id, bad)
        return None


def open_profile(request: Request, text: str) -> tuple[StoredArtifact, Profile, list[StoredArtifact]]:
    """(stored artifact, profile, artifacts of the run). Raises NotFound, Conflict, BadRecording."""
    with reader(request) as connection:
        stored = require_profile(connection, text)
        whole(stored)
        siblings = list_artifacts(connection, require_run(connection, stored.run_id))
        data = read_artifact(connection, stored.id)
    try:
        return stored, unpack(data), siblings
    except BadProfile as bad:
        log.warning("profile %s cannot be read: %s", stored.id, bad)
        raise BadRecording(f"This profile cannot be read: {bad}.", field="profile", seen=stored.id) from None
