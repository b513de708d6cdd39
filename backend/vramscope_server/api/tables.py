"""Downloads of every table as CSV, JSON or Parquet."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from vramscope_server.answers.tables import NamedTable
from vramscope_server.api.problems import Conflict, InvalidParameter, NotFound
from vramscope_server.api.reports import OwnAnswers
from vramscope_server.api.requested_range import checked_range, reader, require_rank_device, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with, field_meanings, unit_of
from vramscope_server.api.steps import DAMAGED, damaged_words, each_step
from vramscope_server.store.series_reader import Damage, list_rank_devices
from vramscope_server.tables.catalogue import TABLES
from vramscope_server.tables.columns import Column, Kind
from vramscope_server.tables.formats import MEDIA, TableFile, write
from vramscope_server.tables.table import MissingPart, Scope, StepOf, Table, TableQuery

router = APIRouter(tags=["tables"])

PARQUET_MISSING: Final = (
    "Parquet needs pyarrow, which is not installed on the server: pip install 'vramscope[parquet]'."
)
_PIECE_BYTES: Final = 1 << 18
_SCHEMA: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}}
_NEEDS: Final[dict[Scope, tuple[tuple[str, ...], ...]]] = {
    Scope.all: (),
    Scope.run: (("run",),),
    Scope.compare: (("runs",),),
    Scope.profile: (("run", "profile"),),
    Scope.recording: (("run", "recording"),),
    Scope.whatif: (("recording",), ("job",)),
}
"""Parameters, of each group of which a request needs one."""


class TableAnswers(OwnAnswers):
    """Answers of this server with the steps of a run, and what of them could not be read."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.damaged: list[Damage] = []

    def steps(
        self, run: str, rank: int | None, device: int | None, first: int | None, to: int | None
    ) -> Iterator[Sequence[StepOf]]:
        """Yield the steps of all ranks and devices, or of one, in pieces."""
        checked_range("step", first, to, 10)
        with reader(self._request) as connection:
            record = require_run(connection, run)
            places = list_rank_devices(connection, record)
            asked = [one for one in places if rank in (None, one.rank) and device in (None, one.device)]
            for place in asked or [require_rank_device(connection, record, rank, device)]:
                for piece in each_step(connection, record, place, first, to, self.damaged):
                    yield [StepOf(place.rank, place.device, step) for step in piece]


@router.get("/tables", summary="All tables", responses=answers_with(list[NamedTable]))
def get_tables() -> Response:
    """Names, columns and units of the tables that can be downloaded."""
    return answer(
        [
            NamedTable(
                name=table.name,
                title=table.title,
                scope=table.scope.value,
                columns=[
                    {"name": one.name, "kind": one.kind.value, "unit": unit_of_column(one), "about": _meaning(one)}
                    for one in table.columns
                ],
            )
            for table in TABLES.values()
        ]
    )


@router.get(
    "/tables/{name}",
    summary="Download a table",
    response_class=Response,
    responses={
        200: {
            "content": {media: _SCHEMA.get(media, {}) for media in MEDIA.values()},
            "description": "The file.",
        }
    },
)
def get_table(
    request: Request,
    name: str,
    form: Annotated[Literal["csv", "json", "parquet"], Query(alias="format", description="Format.")] = "csv",
    run: Annotated[str, Query(max_length=200, description="Run.")] = "",
    runs: Annotated[str, Query(max_length=20_000, description="Runs to compare, separated by commas.")] = "",
    base: Annotated[str | None, Query(max_length=200, description="Baseline; by default the first run.")] = None,
    rank: Annotated[int | None, Query(ge=0, description="Rank of the steps; by default all.")] = None,
    device: Annotated[int | None, Query(ge=-1, description="Device of the steps; by default all.")] = None,
    first: Annotated[int | None, Query(alias="from", description="First step.")] = None,
    to: Annotated[int | None, Query(description="Last step, included.")] = None,
    profile: Annotated[str, Query(max_length=200, description="Profile; by default the run's newest.")] = "",
    recording: Annotated[str, Query(max_length=200, description="Recording; by default the run's newest.")] = "",
    job: Annotated[str, Query(max_length=200, description="Job of a what-if on the recording.")] = "",
    query: Annotated[str, Query(max_length=500, description="Words of the list of runs.")] = "",
    project: Annotated[str, Query(max_length=200, description="Project of the list of runs.")] = "",
    state: Annotated[
        Literal["", "running", "finished", "failed", "lost"], Query(description="State of the list of runs.")
    ] = "",
    tag: Annotated[str, Query(max_length=200, description="Tag of the list of runs.")] = "",
    device_name: Annotated[str, Query(max_length=4096, description="Device of the list of runs.")] = "",
    cluster_job: Annotated[str, Query(max_length=200, description="Cluster's job of the list of runs.")] = "",
) -> Response:
    """All rows, with sizes in bytes. `/tables` names the tables. In CSV an apostrophe precedes text that a spreadsheet would take
    for a formula; JSON and Parquet have the text as it is. Parquet without pyarrow on the server is 409. Steps that cannot be read
    are missing: the header `Vramscope-Damaged-Steps` names them, and the file's name ends with `incomplete`.
    """
    table = _table(name)
    asked = TableQuery(
        run=run, runs=runs, base=base, rank=rank, device=device, first=first, to=to, profile=profile, recording=recording,
        job=job, query=query, project=project, state=state, tag=tag, device_name=device_name, cluster_job=cluster_job,
    )  # fmt: skip
    for enough in _NEEDS[table.scope]:
        if not any(getattr(asked, one) for one in enough):
            needed = " or ".join(enough)
            raise InvalidParameter(f"The table {name} needs {needed}.", field=enough[0], seen="", expected=needed)
    source = TableAnswers(request)
    file = _written(table, TableFile(form), source, asked)
    ident = re.sub(r"[^\w.-]+", "_", run or recording or profile, flags=re.ASCII)[:80]
    words = ["vramscope", *([ident] if ident else []), name, *(["incomplete"] if source.damaged else [])]
    headers = {
        "Content-Disposition": f'attachment; filename="{"-".join(words)}.{form}"',
        "Content-Length": str(file.seek(0, os.SEEK_END)),
        "Cache-Control": "no-store",
    }
    file.seek(0)
    if source.damaged:
        headers[DAMAGED] = damaged_words(source.damaged)
    media = MEDIA[TableFile(form)]
    return StreamingResponse(
        _pieces(file), media_type=f"{media}; charset=utf-8" if form == "csv" else media, headers=headers
    )


def unit_of_column(column: Column) -> str | None:
    """Unit of a column's numbers; None for one that is counted, or no number."""
    return unit_of(column.name) if column.kind in (Kind.integer, Kind.number) else None


def _meaning(column: Column) -> str:
    answer_type, field = column.described_by or ("", "")
    return column.meaning or field_meanings().get(answer_type, {}).get(field, "")


def _table(name: str) -> Table:
    if name not in TABLES:
        raise NotFound(
            f"There is no table {name[:60]!r}.",
            field="name",
            seen=name[:60],
            expected=f"one of {', '.join(TABLES)}",
            suggestions=[],
        )
    return TABLES[name]


def _written(table: Table, form: TableFile, source: TableAnswers, query: TableQuery) -> IO[bytes]:
    """The whole file: a problem is refused before the first byte is sent."""
    with contextlib.ExitStack() as unless_written:
        file = unless_written.enter_context(tempfile.TemporaryFile())
        try:
            write(table, form, table.rows(source, query), file)
        except ImportError:
            raise Conflict(PARQUET_MISSING) from None
        except MissingPart as missing:
            raise Conflict(str(missing)) from None
        unless_written.pop_all()
    return file


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
