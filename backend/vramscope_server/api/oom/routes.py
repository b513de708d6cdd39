"""Out-of-memory errors of a run: which there were, why, and what would have been enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol.oom_record import BadBlackBox, BlackBox, unpack
from vramscope.protocol.window import BadWindow
from vramscope_server.analysis.oom.losses import loss_of
from vramscope_server.analysis.oom.remedies.remedy import Replay
from vramscope_server.analysis.oom.report import PostMortem, post_mortem, told
from vramscope_server.analysis.oom.segments import trace_of
from vramscope_server.analysis.series.trend import trend
from vramscope_server.analysis.trace.segment_map import LinearLayout, block_at, describe
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.answers.common import FigureAnswer
from vramscope_server.answers.oom import OomExplained, OomList
from vramscope_server.answers.recordings import Block, MapAtError
from vramscope_server.api.fragmentation import CellColumns, High, Lines, Low, Offset, drawn_map
from vramscope_server.api.oom.errors import errors_of, fatal_of, ranks_then, vanished_of
from vramscope_server.api.oom.other_ranks import other_runs
from vramscope_server.api.problems import BadRecording, NotFound
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import floats, reader, the_run
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import House
from vramscope_server.store.artifacts import Stored, find_artifact, read_artifact
from vramscope_server.store.run_queries import run_in_full
from vramscope_server.store.series_reader import Run, UnknownPlace, find_place, load_columns
from vramscope_server.whatif_jobs import Progress, TooMany, Work

if TYPE_CHECKING:
    from vramscope_server.analysis.oom.window import Seen

router = APIRouter(tags=["out of memory"])

WAIT_SECONDS: Final = 0.3
"""for what the window adds: an answer is there at once, and says that more is to come"""
MOST_WAIT_SECONDS: Final = 20.0
_PART_HAS_STACKS: Final = (
    "a window records stacks in a part of its steps alone (of the first three in the third): of what was made outside of it no "
    "line is known"
)
WINDOW_COMES_NS: Final = 60_000_000_000
"""after the record a window that has not come by then has been lost, or lies in a spool folder"""

Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for what the window adds")]


@router.get("/runs/{run}/oom", summary="Out-of-memory errors of a run", responses=answers_with(OomList))
def get_errors(request: Request, run: str) -> Response:
    """``{run_id, name, state, errors, fatal, vanished}``: the errors by time, and which of them ended the run."""
    with reader(request.app.state.house) as connection:
        record = the_run(connection, run)
        full = run_in_full(connection, record)
        errors = errors_of(connection, record, full)
        gone = None if errors else vanished_of(connection, record, full)
    return answer(
        {
            "run_id": record["id"],
            "name": record["name"],
            "state": record["state"],
            "errors": errors,
            "fatal": fatal_of(errors),
            "vanished": gone,
        }
    )


@router.get("/oom/{record}", summary="One out-of-memory error, explained", responses=answers_with(OomExplained))
def get_error(request: Request, record: str, wait_seconds: Wait = WAIT_SECONDS) -> Response:
    """Cause, culprit, message, what held the memory, and remedies; see docs/http.md. With ``pending`` ask again: by then it
    may say what the open window adds."""
    explained = explain(request.app.state.house, record, wait_seconds)
    return answer(explained.told())


@router.get("/oom/{record}/figure", summary="The last minute before the error", responses=answers_with(FigureAnswer))
def get_figure(request: Request, record: str) -> Response:
    """``{figure}``."""
    with reader(request.app.state.house) as connection:
        box = _box(connection, the_error(connection, record))
    return answer({"figure": _draw(box).to_dict()})


@router.get(
    "/oom/{record}/loss", summary="The loss of the last minute before the error", responses=answers_with(FigureAnswer)
)
def get_loss(request: Request, record: str) -> Response:
    """``{figure}``."""
    from vramscope_server.figures import last_losses

    with reader(request.app.state.house) as connection:
        box = _box(connection, the_error(connection, record))
    return answer({"figure": last_losses.draw(*loss_of(box)).to_dict()})


@router.get("/oom/{record}/map", summary="The allocator's segments at the error", responses=answers_with(MapAtError))
def get_map(
    request: Request, record: str, low: Low = None, high: High = None, lines: Lines = 48, columns: CellColumns = 1024
) -> Response:
    """As of a recording; also of a rank that stood by. ``figure`` is null and all else 0 where the layout was not read."""
    trace = _segments(request.app.state.house, record)
    if trace is None:
        return answer({"figure": None, "read": False})
    return answer({"read": True, **drawn_map(trace, LinearLayout(trace.end), low, high, lines, columns)})


@router.get(
    "/oom/{record}/block", summary="The block at one place of these segments", responses=answers_with(Block | None)
)
def get_block(request: Request, record: str, offset: Offset) -> Response:
    """``{address, size_bytes, requested_bytes, state, stack, segment}``, or null beyond the end."""
    trace = _segments(request.app.state.house, record)
    row = None if trace is None else LinearLayout(trace.end)
    block = None if row is None else block_at(row, offset)
    return answer(None if trace is None or row is None or block is None else describe(trace, row, block))


def _segments(house: House, record: str) -> Trace | None:
    with reader(house) as connection:
        box = _box(connection, the_error(connection, record, kinds=("oom", "bystander")))
    try:
        return trace_of(box)
    except BadWindow as bad:
        raise BadRecording(f"Its layout contradicts itself: {bad}.", field="record", seen=record[:60]) from None


@router.get(
    "/oom/{record}/export",
    summary="The error as one HTML file",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "needs nothing from elsewhere"}},
)
def get_export(request: Request, record: str) -> Response:
    """To send to a colleague."""
    from vramscope_server.figures.oom_report import report

    explained = explain(request.app.state.house, record, MOST_WAIT_SECONDS)
    page = report(explained.told(), _draw(explained.box))
    name = f"oom-{explained.box.record}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(page, headers=headers, media_type="text/html")


@dataclass(frozen=True, slots=True)
class Explained:
    """One error: its row in the list, the record, why it happened, and what the window adds, where that is known by now."""

    row: dict[str, Any]
    box: BlackBox
    post: PostMortem
    seen: Seen | None
    pending: bool
    """the window is on its way to the server, or being looked at"""
    ranks: list[dict[str, Any]]

    def told(self) -> dict[str, Any]:
        """As the API tells it."""
        sites = None if self.seen is None else self.seen.by_site
        words = None if _has_all_lines(sites) else self._why_no_lines(sites)
        return (
            self.row
            | told(self.post, self.box, by_site=sites)
            | {
                "pending": self.pending,
                "by_site_words": words,
                "ranks": self.ranks,
            }
        )

    def _why_no_lines(self, sites: list[dict[str, Any]] | None) -> str:
        if sites:
            return _PART_HAS_STACKS
        if self.box.window is None:
            return "no window of allocator history was open then: lines of code are known only where one is recorded"
        if self.pending:
            return "the window that was open is on its way, or being looked at"
        if self.row["window"] is None:
            return "a window was open then and has not come: it was lost, or vramscope sync on its machine sends it"
        if self.seen is None:
            return "the window that was open could not be read"
        return "the window that was open holds no allocation that was alive then"


def _has_all_lines(sites: list[dict[str, Any]] | None) -> bool:
    """(The row of all further places has no category.)"""
    return bool(sites) and all(row["file"] for row in sites or () if row["category"])


def explain(house: House, record: str, wait_seconds: float) -> Explained:
    """``wait_seconds``: for the window; without it the verdict is the same. Raises NotFound."""
    with reader(house) as connection:
        stored = the_error(connection, record)
        run = the_run(connection, stored.run_id)
        full = run_in_full(connection, run)
        box = _box(connection, stored)
        rows = errors_of(connection, run, full)
        others = other_runs(connection, run, full, box)
        growth = _growth(connection, run, box)
        window = None if box.window is None else find_artifact(connection, box.window)
        row = next(row for row in rows if row["record"] == stored.id)
        ranks = ranks_then(connection, run, full, row)
    whole = window is not None and window.whole and window.kind == "window"
    row |= {"run": run["name"], "window": box.window if whole else None}
    wanted: list[str] = []

    def explained(replay: Replay) -> PostMortem:
        return post_mortem(box, text=row["text"], growth_bytes=growth, replay=replay, others=others)

    def replay_later(confs: Sequence[str]) -> None:
        wanted.extend(confs)

    if not whole:
        coming = box.window is not None and time.time_ns() - stored.received_ns < WINDOW_COMES_NS
        return Explained(row, box, explained(replay_later if coming else lambda confs: []), None, coming, ranks)
    post = explained(replay_later)
    try:
        job = house.sweeps.ask(["oom", box.window, wanted], _work(house, str(box.window), wanted))
    except TooMany:
        return Explained(row, box, post, None, True, ranks)
    settled = house.sweeps.wait(job, wait_seconds)
    seen: Seen | None = job.result
    if not settled or job.given_up:
        return Explained(row, box, post, None, True, ranks)
    return Explained(row, box, explained(lambda confs: [] if seen is None else seen.replayed), seen, False, ranks)


def _work(house: House, window: str, confs: Sequence[str]) -> Work:
    def work(progress: Progress) -> Seen:
        from vramscope_server.analysis.oom.window import scan

        return scan(house.shelf.open(window).trace, confs, progress)

    return work


def the_error(connection: Connection, text: str, kinds: Sequence[str] = ("oom",)) -> Stored:
    """The record meant. Raises NotFound."""
    stored = find_artifact(connection, text)
    if stored is None or stored.kind not in kinds or not stored.whole:
        raise NotFound(
            f"There is no out-of-memory record {text[:60]!r} (any more, or not whole yet).",
            field="record",
            seen=text[:60],
            expected="a record from /runs/RUN/oom",
            suggestions=[],
        )
    return stored


def _box(connection: Connection, stored: Stored) -> BlackBox:
    try:
        return unpack(read_artifact(connection, stored.id))
    except BadBlackBox as bad:
        raise BadRecording(f"Its bytes are no out-of-memory record: {bad}.", field="record", seen=stored.id) from None


def _growth(connection: Connection, run: Run, box: BlackBox) -> int | None:
    """By how much the floor has risen up to the error, where it rises for sure."""
    if box.device is None:
        return None
    try:
        place = find_place(connection, run, box.rank, box.device)
        told = load_columns(
            connection, run, place, "steps", ["after_step_bytes"], x="step", last=box.step, since_ns=place.started_ns
        )
    except UnknownPlace:
        return None
    fit = trend(told.columns["step"].astype(np.float64), floats(told.columns["after_step_bytes"]))
    if fit is None or not fit.growing:
        return None
    return int(fit.slope * (fit.last - fit.begin))


def _draw(box: BlackBox) -> Any:
    from vramscope_server.figures import last_minute

    return last_minute.draw(
        box.samples,
        box.time_ns,
        at_error={
            "allocated_bytes": box.counters.get("allocated_bytes.all.current"),
            "reserved_bytes": box.counters.get("reserved_bytes.all.current"),
            "device_used_bytes": box.total_bytes - box.free_bytes
            if box.total_bytes is not None and box.free_bytes is not None
            else None,
        },
        asked_bytes=box.asked_bytes,
        capacity_bytes=box.total_bytes,
    )
