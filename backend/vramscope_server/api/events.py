"""Events of a recording, page by page, and export of a window."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from typing import IO, Annotated, Final, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from vramscope.protocol.series import phase_name
from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.trace.export import as_csv, as_perfetto, write_parquet
from vramscope_server.analysis.trace.search import EventFilter, matching_events
from vramscope_server.analysis.trace.segment_map import stack_lines
from vramscope_server.analysis.trace.trace import Trace, address_as_json
from vramscope_server.analysis.trace.types import Events
from vramscope_server.answers.recordings import EventRow, EventsAnswer, Pool
from vramscope_server.api.problems import Conflict, InvalidParameter
from vramscope_server.api.recording_request import open_recording, readable
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.timeline import curve_in, grouping_in, sites_in
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.store.artifacts import StoredArtifact
from vramscope_server.store.run_queries import find_run

router = APIRouter(tags=["recordings"])

PAGE: Final = 200
_PIECE_BYTES: Final = 1 << 20
_MEDIA: Final = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "perfetto": "application/json",
                 "html": "text/html"}  # fmt: skip
_ANY: Final = {"schema": {"type": "object", "description": "A trace in the format of ui.perfetto.dev."}}
_ENDINGS: Final = {"csv": "csv", "parquet": "parquet", "perfetto": "perfetto.json", "html": "html"}

First = Annotated[
    int | None, Query(alias="from", ge=-1, description="First event; by default the first of the recording.")
]
End = Annotated[int | None, Query(alias="to", ge=0, description="End, not included; by default the last event.")]
Size = Annotated[int | None, Query(ge=0, description="Size in bytes.")]
Seconds = Annotated[float | None, Query(allow_inf_nan=False, description="Seconds since the first event.")]


@router.get("/recordings/{recording}/events", summary="Events of a recording", responses=answers_with(EventsAnswer))
def get_events(
    request: Request,
    recording: str,
    first: First = None,
    end: End = None,
    action: Annotated[list[str] | None, Query(description="Actions; by default all.")] = None,
    text: Annotated[
        str,
        Query(
            max_length=200, description="Text in a file or function of the stack, or in the metadata; or `file:line`."
        ),
    ] = "",
    least_bytes: Size = None,
    most_bytes: Size = None,
    from_seconds: Seconds = None,
    to_seconds: Seconds = None,
    address: Annotated[
        str | None, Query(max_length=20, description="Address inside the block or segment, decimal or `0x…`.")
    ] = None,
    stream: Annotated[int | None, Query(description="Stream.")] = None,
    pool: Annotated[int | None, Query(ge=-1, description="Position among `pools`.")] = None,
    offset: Annotated[int, Query(ge=0, description="Number of matching events to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE, description="Maximum number of events.")] = PAGE,
) -> Response:
    """A page of the events that match all conditions."""
    for word in action or ():
        if word not in ACTIONS:
            raise InvalidParameter(
                f"Unknown action {word[:40]!r}.", field="action", seen=word[:40], expected=", ".join(ACTIONS)
            )
    place = _address(address)
    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace = opened.trace
        zero = int(trace.events.time_ns[0]) if len(trace.events) else 0
        wanted = EventFilter(
            first=first or 0, end=end, actions=tuple(action or ()), text=text, min_bytes=least_bytes,
            max_bytes=most_bytes, from_ns=_moment(zero, from_seconds), to_ns=_moment(zero, to_seconds), address=place,
            stream=stream, pool=pool,
        )  # fmt: skip
        matching = matching_events(trace, wanted)
        rows = [_row(trace, at, zero) for at in matching[offset : offset + limit].tolist()]
        pools: list[Pool] = [{"pool": at, "id": list(name)} for at, name in enumerate(trace.pools)]
        return answer(
            EventsAnswer(
                events=len(trace.events),
                matching=len(matching),
                offset=offset,
                frees_told=sites_in(opened).frees_told,
                pools=pools,
                rows=rows,
            )
        )


@router.get(
    "/recordings/{recording}/export",
    summary="Export a window of a recording",
    response_class=Response,
    responses={
        200: {
            "content": {media: _ANY if "json" in media else {} for media in _MEDIA.values()},
            "description": "The file.",
        }
    },
)
def get_export(
    request: Request,
    recording: str,
    form: Annotated[
        Literal["csv", "parquet", "perfetto", "html"], Query(alias="format", description="Format.")
    ] = "csv",
    first: First = None,
    end: End = None,
) -> Response:
    """Events as CSV or Parquet, counters and spans for ui.perfetto.dev, or a self-contained HTML page. Parquet without
    pyarrow on the server is 409.
    """
    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace = opened.trace
        low = max(first or 0, 0)
        high = len(trace.events) if end is None else min(end, len(trace.events))
        if high < low or low > len(trace.events):
            raise InvalidParameter("The window has no events.", field="to", seen=end, expected=f"{low} or more")
        title = _title(request, stored)
        name = re.sub(r"[^\w.-]+", "_", title, flags=re.ASCII)[:80]
        disposition = f'attachment; filename="{name}-{low}-{high}.{_ENDINGS[form]}"'
        headers = {"Content-Disposition": disposition, "Cache-Control": "no-store"}
        if form == "parquet":
            return StreamingResponse(_parquet(trace, low, high), media_type=_MEDIA[form], headers=headers)
        if form == "html":
            return Response(_page(opened, title, low, high), media_type="text/html", headers=headers)
        pieces = as_csv(trace, low, high) if form == "csv" else as_perfetto(trace, low, high)
        return StreamingResponse(pieces, media_type=_MEDIA[form], headers=headers)


def _row(trace: Trace, at: int, zero: int) -> EventRow:
    events, lives = trace.events, trace.lives
    action, time, pool, step, phase = (
        int(column[at]) for column in (events.action, events.time_ns, events.pool, events.step, events.phase)
    )
    row: EventRow = {
        "event": at,
        "seconds": (time - zero) / 1e9 if time >= 0 and zero >= 0 else None,
        "action": ACTIONS[action],
        "address": _place(events, at),
        "size_bytes": int(events.size_bytes[at]),
        "stream": int(events.stream[at]),
        "pool": pool if pool >= 0 else None,
        "step": step if step >= 0 else None,
        "phase": phase_name(phase) if phase >= 0 else None,
        "module": trace.modules[events.module[at]] if events.module[at] >= 0 else None,
        "stack": stack_lines(trace, int(events.stack[at])),
        "user_metadata": trace.label("user_metadata", at),
        "compile_context": trace.label("compile_context", at),
        "allocation": None,
    }
    if row["action"] == "alloc":  # lives are in the order of their allocations
        life = int(np.searchsorted(lives.alloc_event, at))
        row["allocation"] = life if life < len(lives) and lives.alloc_event[life] == at else None
    return row


def _place(events: Events, at: int) -> int | str | None:
    """Address, as address_as_json; of a failed request the free device memory, None if unknown."""
    if ACTIONS[events.action[at]] == "oom":
        return int(events.address[at]) if events.address[at] >= 0 else None
    return address_as_json(events.address[at])


def _address(text: str | None) -> int | None:
    if text is None or not text.strip():
        return None
    try:
        value = int(text.strip(), 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise InvalidParameter(
            f"{text!r} is not an address.", field="address", seen=text, expected="a whole number, as 0x7f00 or 32512"
        )
    return value if value < 1 << 63 else value - (1 << 64)  # as in the columns


def _moment(zero: int, seconds: float | None) -> int | None:
    return None if seconds is None else zero + int(min(max(seconds, -1e9), 1e9) * 1e9)


def _parquet(trace: Trace, low: int, high: int) -> Iterator[bytes]:
    """Write all of it to a temporary file first: it is deleted whatever the reader does."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever reads the pieces
    with contextlib.ExitStack() as unless_written:
        unless_written.callback(file.close)
        try:
            write_parquet(trace, low, high, file)
        except ImportError:
            raise Conflict(
                "Parquet needs pyarrow, which is not installed on the server: pip install 'vramscope[parquet]'."
            ) from None
        file.seek(0)
        unless_written.pop_all()
    return _pieces(file)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _title(request: Request, stored: StoredArtifact) -> str:
    """Name of a snapshot file, or of a run with the recorded steps."""
    if "name" in stored.about:
        return str(stored.about["name"])
    with reader(request) as connection:
        run = find_run(connection, stored.run_id, suggest=False)
    first, last = (stored.about.get(name) for name in ("first_step", "last_step"))
    if first is None or last is None or -1 in (first, last):
        return run.name
    rank = f", rank {stored.rank}" if stored.rank else ""
    return f"{run.name}, {f'step {first}' if first == last else f'steps {first} to {last}'}{rank}"


def _page(opened: OpenRecording, title: str, low: int, high: int) -> str:
    from vramscope_server.figures.snapshot_report import ReportedWindow, parts_of, report

    window = ReportedWindow(
        opened.trace,
        curve_in(opened),
        grouping_in(opened, "site"),
        sites_in(opened),
        opened.moments.out_of_memory_events,
        low,
        high,
    )
    return report(title, parts_of(window))
