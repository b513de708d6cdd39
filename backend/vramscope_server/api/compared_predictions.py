"""Measured values of runs beside what a recording of the baseline predicts: ``GET /compare/predictions`` for allocator
settings, ``GET /compare/techniques`` for techniques."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.techniques.compare_with_run import plan_between
from vramscope_server.answers.compare import (
    MeasuredSettings,
    MeasuredTechniques,
    SettingsPredictions,
    TechniquePredictions,
)
from vramscope_server.api.anatomy import known_run
from vramscope_server.api.compare import Runs, compared_runs
from vramscope_server.api.recording_prediction import plan_fields, predicted
from vramscope_server.api.recording_request import readable
from vramscope_server.api.recordings import recording_row
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, list_artifacts
from vramscope_server.store.series_reader import UnknownRankDevice, find_rank_device, load_columns
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["compare"])

Base = Annotated[str | None, Query(description="Baseline, whose recording is used; by default the first run.")]


@router.get(
    "/compare/predictions",
    summary="Allocator settings: what to predict, and what was measured",
    responses=answers_with(SettingsPredictions),
)
def get_predictions(
    request: Request,
    runs: Runs,
    base: Base = None,
) -> Response:
    """A recording of the baseline, and the measured peaks of all runs in the same steps. Ask the recording's ``whatif``
    for the settings of the rows.
    """
    services: Services = request.app.state.services
    with reader(request) as connection:
        found = compared_runs(connection, runs, base)
        stored = _recording(connection, found[0])
    first = last = device = None
    if stored is not None:
        with readable(stored):
            opened = services.recordings.open(stored.id)
            first, last = _steps(opened)
            device = opened.trace.device
    rows: list[MeasuredSettings] = []
    with reader(request) as connection:
        for run in found:
            measured = None
            if stored is not None:
                measured = _measured(connection, run, stored.rank, device, first, last, "peak_reserved_bytes")
            rows.append(
                {
                    "run": run.id,
                    "name": run.name,
                    "conf": run.allocator_settings,
                    "measured_peak_reserved_bytes": measured,
                }
            )
    return answer(
        SettingsPredictions(
            recording=None if stored is None else recording_row(stored),
            steps=None if first is None else {"first": first, "last": last},
            rows=rows,
        )
    )


@router.get(
    "/compare/techniques",
    summary="Techniques: predicted and measured",
    responses=answers_with(TechniquePredictions),
)
def get_techniques(
    request: Request,
    runs: Runs,
    base: Base = None,
) -> Response:
    """Runs that differ from the baseline in techniques that a recording can predict."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        found = compared_runs(connection, runs, base)
        ways = [plan_between(found[0].techniques, run.techniques) for run in found]
        stored = _recording(connection, found[0])
    compared = [(run, way) for run, way in zip(found, ways, strict=True) if way is not None]
    if stored is None or not compared:
        return answer(TechniquePredictions(recording=None, step=None, rows=[]))
    with readable(stored):
        opened = services.recordings.open(stored.id)
        prediction = predicted(opened, known_run(request, stored.run_id, stored.rank), [way for _, way in compared])
        first, last = _steps(opened)
        device = opened.trace.device
    rows: list[MeasuredTechniques] = []
    with reader(request) as connection:
        for (run, way), row in zip(compared, prediction.rows[1:], strict=False):
            measured = _measured(connection, run, stored.rank, device, first, last, "peak_allocated_bytes")
            rows.append(
                {
                    "run": run.id,
                    "name": run.name,
                    "techniques": plan_fields(way),
                    "rows": row.rows,
                    "predicted_peak_allocated_bytes": row.peak_allocated_bytes,
                    "measured_peak_allocated_bytes": measured,
                }
            )
    return answer(TechniquePredictions(recording=recording_row(stored), step=prediction.step, rows=rows))


def _recording(connection: Connection, run: StoredRun) -> StoredArtifact | None:
    """The recording that begins first, and of several the longest: no earlier reservation of the run can be missing in a
    prediction. Of several devices the one with the highest peak."""
    wholes = [stored for stored in list_artifacts(connection, run) if stored.kind == "window" and stored.whole]

    def begins(stored: StoredArtifact) -> tuple[float, float]:
        first, last = (stored.about.get(name) for name in ("first_step", "last_step"))
        return first if isinstance(first, int) else float("inf"), -last if isinstance(last, int) else 0.0

    return min(wholes, key=begins, default=None)


def _steps(opened: OpenRecording) -> tuple[int | None, int | None]:
    """First and last step of a recording; None if it has none."""
    steps = [step for step, _ in opened.moments.steps]
    return (steps[0], steps[-1]) if steps else (None, None)


def _measured(
    connection: Connection,
    run: StoredRun,
    rank: int,
    device: int | None,
    first: int | None,
    last: int | None,
    counter: str,
) -> int | None:
    """Highest value of these steps of a run, by the allocator's own counter; None is unknown."""
    if first is None:
        return None
    try:
        place = find_rank_device(connection, run, rank, device)
    except UnknownRankDevice:
        return None
    columns = load_columns(connection, run, place, "steps", [counter], x="step", first=first, last=last)
    peak = int(columns.columns[counter].max(initial=series.UNKNOWN))
    return None if peak == series.UNKNOWN or columns.damaged else peak
