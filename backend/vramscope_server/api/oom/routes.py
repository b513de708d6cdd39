"""Routes of out-of-memory errors: their list, their causes and remedies, and their figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol.oom_record import BadOomRecord, OomRecord, unpack
from vramscope.protocol.window import BadWindow
from vramscope_server.analysis.oom.losses import loss_of
from vramscope_server.analysis.oom.remedies.remedy import ReplayFn
from vramscope_server.analysis.oom.report import OomReport, report_of
from vramscope_server.analysis.oom.segments import trace_of
from vramscope_server.analysis.series.trend import trend, work_grows
from vramscope_server.analysis.trace.segment_map import LinearLayout, block_at, describe
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.answers.oom import OomExplained, OomList
from vramscope_server.answers.recordings import Block, MapAtError
from vramscope_server.answers.shared_parts import FigureAnswer
from vramscope_server.api.fragmentation import CellColumns, High, Lines, Low, Offset, categories_in, drawn_map
from vramscope_server.api.oom.errors import errors_of, fatal_of, lost_run_of, ranks_at
from vramscope_server.api.oom.explained import ErrorOfRun, Explained
from vramscope_server.api.oom.other_runs import other_runs
from vramscope_server.api.problems import BadRecording, NotFound, Problem
from vramscope_server.api.recording_request import open_recording, readable
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, find_artifact, read_artifact
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.series_reader import UnknownRankDevice, find_rank_device, floats, load_columns
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.whatif_jobs import Progress, TooMany, Work

if TYPE_CHECKING:
    from vramscope_server.analysis.oom.recording_evidence import WindowEvidence

router = APIRouter(tags=["out of memory"])

WAIT_SECONDS: Final = 0.3
"""Wait for the recording's evidence. Without it the answer comes at once with ``pending``."""
MOST_WAIT_SECONDS: Final = 20.0
WINDOW_COMES_NS: Final = 60_000_000_000
"""A recording that has not come so long after the record is lost, or is in a spool folder."""

Wait = Annotated[
    float, Query(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the evidence of the open recording")
]


@router.get("/runs/{run}/oom", summary="Out-of-memory errors of a run", responses=answers_with(OomList))
def get_errors(request: Request, run: str) -> Response:
    """``{run_id, name, state, errors, fatal, vanished}``: errors by time, the one that ended the run, and a lost run's verdict."""
    with reader(request) as connection:
        record = require_run(connection, run)
        full = run_in_full(connection, record)
        errors = errors_of(connection, record, full)
        gone = None if errors else lost_run_of(connection, record, full)
    return answer(
        OomList(
            run_id=record.id,
            name=record.name,
            state=record.state,
            errors=errors,
            fatal=fatal_of(errors),
            vanished=gone,
        )
    )


@router.get("/oom/{record}", summary="Explain an out-of-memory error", responses=answers_with(OomExplained))
def get_error(request: Request, record: str, wait_seconds: Wait = WAIT_SECONDS) -> Response:
    """Cause, culprit, message, memory by owner, and remedies; see docs/http.md. With ``pending``, ask again: evidence
    of the open recording may follow."""
    explained = explain(request, record, wait_seconds)
    return answer(explained.as_json())


@router.get("/oom/{record}/figure", summary="Last minute before the error", responses=answers_with(FigureAnswer))
def get_figure(request: Request, record: str) -> Response:
    """Memory and counters as a figure."""
    with reader(request) as connection:
        oom = _oom_record(connection, require_error(connection, record))
    return answer(FigureAnswer(figure=_draw(oom).to_dict()))


@router.get(
    "/oom/{record}/loss", summary="Loss of the last minute before the error", responses=answers_with(FigureAnswer)
)
def get_loss(request: Request, record: str) -> Response:
    """The loss as a figure."""
    from vramscope_server.figures import last_losses

    with reader(request) as connection:
        oom = _oom_record(connection, require_error(connection, record))
    return answer(FigureAnswer(figure=last_losses.draw(*loss_of(oom)).to_dict()))


@router.get("/oom/{record}/map", summary="Segment map at the error", responses=answers_with(MapAtError))
def get_map(
    request: Request, record: str, low: Low = None, high: High = None, lines: Lines = 48, columns: CellColumns = 1024
) -> Response:
    """As of a recording; also of a bystander. ``figure`` is null and all else 0 where the layout was not read."""
    oom, trace = _segments(request, record)
    if trace is None:
        return answer(MapAtError(figure=None, read=False))
    row = LinearLayout(trace.end)
    drawn: MapAtError = {
        "read": True,
        **drawn_map(trace, row, low, high, lines, columns, lambda: _categories(request, oom, row)),
    }
    return answer(drawn)


@router.get(
    "/oom/{record}/block", summary="The block at an offset of these segments", responses=answers_with(Block | None)
)
def get_block(request: Request, record: str, offset: Offset) -> Response:
    """Null beyond the end."""
    _, trace = _segments(request, record)
    row = None if trace is None else LinearLayout(trace.end)
    block = None if row is None else block_at(row, offset)
    found: Block | None = None if trace is None or row is None or block is None else describe(trace, row, block)
    return answer(found)


def _segments(request: Request, record: str) -> tuple[OomRecord, Trace | None]:
    with reader(request) as connection:
        oom = _oom_record(connection, require_error(connection, record, kinds=("oom", "bystander")))
    try:
        return oom, trace_of(oom)
    except BadWindow as bad:
        raise BadRecording(
            f"The layout of the record is not consistent: {bad}.", field="record", seen=record[:60]
        ) from None


def _categories(request: Request, oom: OomRecord, row: LinearLayout) -> list[str] | None:
    """Categories of the blocks, from the recording that was open at the error; None if there is none that can be read."""
    if oom.window is None:
        return None
    try:
        stored, opened = open_recording(request, oom.window)
        with readable(stored):
            return categories_in(opened, row.layout, len(opened.trace.events) - 1)
    except (Problem, OSError):
        return None  # still on its way, deleted or damaged: the map needs it for its colours only


@router.get(
    "/oom/{record}/export",
    summary="Error as an HTML file",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "self-contained"}},
)
def get_export(request: Request, record: str) -> Response:
    """A file to share."""
    from vramscope_server.figures.oom_report import report

    explained = explain(request, record, MOST_WAIT_SECONDS)
    page = report(explained.as_json(), _draw(explained.report.record))
    name = f"oom-{explained.report.record.record}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(page, headers=headers, media_type="text/html")


def explain(request: Request, record: str, wait_seconds: float) -> Explained:
    """Explain an error. Raises NotFound.

    wait_seconds   for the recording; without it the diagnosis is the same
    """
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = require_error(connection, record)
        run = require_run(connection, stored.run_id)
        full = run_in_full(connection, run)
        oom = _oom_record(connection, stored)
        rows = errors_of(connection, run, full)
        others = other_runs(connection, run, full, oom)
        growth = _growth(connection, run, oom)
        window = None if oom.window is None else find_artifact(connection, oom.window)
        listed = next(row for row in rows if row["record"] == stored.id)
        ranks = ranks_at(connection, run, full, listed)
    whole = window is not None and window.whole and window.kind == "window"
    row: ErrorOfRun = {**listed, "run": run.name, "window": oom.window if whole else None}
    wanted: list[str] = []

    def report_with(replay: ReplayFn) -> OomReport:
        return report_of(oom, text=row["text"], growth_bytes=growth, replay=replay, others=others)

    def replay_later(confs: Sequence[str]) -> None:
        wanted.extend(confs)

    if not whole:
        coming = oom.window is not None and time.time_ns() - stored.received_ns < WINDOW_COMES_NS
        return Explained(row, report_with(replay_later if coming else lambda confs: []), None, coming, ranks)
    first = report_with(replay_later)
    try:
        job = services.whatif_jobs.ask(["oom", oom.window, wanted], _work(services, str(oom.window), wanted))
    except TooMany:
        return Explained(row, first, None, True, ranks)
    settled = services.whatif_jobs.wait(job, wait_seconds)
    evidence: WindowEvidence | None = job.result
    if not settled or job.given_up:
        return Explained(row, first, None, True, ranks)
    report = report_with(lambda confs: [] if evidence is None else evidence.replayed)
    return Explained(row, report, evidence, False, ranks)


def _work(services: Services, window: str, confs: Sequence[str]) -> Work:
    def work(progress: Progress) -> WindowEvidence:
        from vramscope_server.analysis.oom.recording_evidence import evidence_of

        return evidence_of(services.recordings.open(window).trace, confs, progress)

    return work


def require_error(connection: Connection, text: str, kinds: Sequence[str] = ("oom",)) -> StoredArtifact:
    """Artifact of a record. Raises NotFound."""
    stored = find_artifact(connection, text)
    if stored is None or stored.kind not in kinds or not stored.whole:
        raise NotFound(
            f"Out-of-memory record {text[:60]!r} not found: it does not exist, was deleted, or is still incomplete.",
            field="record",
            seen=text[:60],
            expected="a record from /runs/RUN/oom",
            suggestions=[],
        )
    return stored


def _oom_record(connection: Connection, stored: StoredArtifact) -> OomRecord:
    try:
        return unpack(read_artifact(connection, stored.id))
    except BadOomRecord as bad:
        raise BadRecording(
            f"The artifact is not an out-of-memory record: {bad}.", field="record", seen=stored.id
        ) from None


def _growth(connection: Connection, run: StoredRun, oom: OomRecord) -> int | None:
    """Growth of the memory after each step up to the error; None where it does not certainly grow."""
    if oom.device is None:
        return None
    try:
        place = find_rank_device(connection, run, oom.rank, oom.device)
        names = ["after_step_bytes", "peak_allocated_bytes"]
        loaded = load_columns(
            connection, run, place, "steps", names, x="step", last=oom.step, since_ns=place.started_ns
        )
    except UnknownRankDevice:
        return None
    fit, peaks = (trend(loaded.columns["step"].astype(np.float64), floats(loaded.columns[name])) for name in names)
    if fit is None or not fit.growing or (not oom.leaks and peaks is not None and work_grows(fit, peaks)):
        return None
    return int(fit.slope * (fit.last - fit.begin))


def _draw(oom: OomRecord) -> Any:
    from vramscope_server.figures import last_minute

    return last_minute.draw(
        oom.samples,
        oom.time_ns,
        at_error={
            "allocated_bytes": oom.counters.get("allocated_bytes.all.current"),
            "reserved_bytes": oom.counters.get("reserved_bytes.all.current"),
            "device_used_bytes": oom.total_bytes - oom.free_bytes
            if oom.total_bytes is not None and oom.free_bytes is not None
            else None,
        },
        asked_bytes=oom.asked_bytes,
        capacity_bytes=oom.total_bytes,
    )
