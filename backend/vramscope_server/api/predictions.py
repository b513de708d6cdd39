"""What runs really needed, beside a recording of the baseline to predict it from: ``GET /compare/predictions`` of other allocator
settings, ``GET /compare/techniques`` of other techniques."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope import wire
from vramscope_server.analysis.prediction.between import way_between
from vramscope_server.analysis.prediction.predicted import predict
from vramscope_server.house import House
from vramscope_server.store.artifacts import Stored, list_artifacts
from vramscope_server.store.places import Run, UnknownPlace, find_place, load_columns

from .anatomy import facts_of, known_run
from .answers import answer
from .compare import compared_runs
from .opened import readable
from .recordings import recording_row
from .windows import reader

router = APIRouter(tags=["compare"])


@router.get("/compare/predictions", summary="What to predict from a recording of the baseline, and what was measured")
def get_predictions(
    request: Request,
    runs: Annotated[str, Query(description="runs, separated by commas")],
    base: Annotated[str | None, Query(description="whose recording it is; the first run when not given")] = None,
) -> Response:
    """``{recording, steps, rows}``: ask the recording's ``whatif`` for the settings of the rows; see docs/http.md."""
    house: House = request.app.state.house
    with reader(house) as connection:
        found = compared_runs(connection, runs, base)
        stored = _recording(connection, found[0])
    first = last = device = None
    if stored is not None:
        with readable(stored):
            opened = house.shelf.open(stored.id)
            steps = [step for step, _ in opened.moments.steps]
            device = opened.trace.device
        if steps:
            first, last = steps[0], steps[-1]
    rows = []
    with reader(house) as connection:
        for run in found:
            measured = None
            if stored is not None and first is not None:
                measured = _measured(connection, run, stored.rank, device, first, last, "peak_reserved_bytes")
            rows.append(
                {
                    "run": run["id"],
                    "name": run["name"],
                    "conf": run["allocator_settings"],
                    "measured_peak_reserved_bytes": measured,
                }
            )
    return answer(
        {
            "recording": None if stored is None else recording_row(stored),
            "steps": None if first is None else {"first": first, "last": last},
            "rows": rows,
        }
    )


@router.get("/compare/techniques", summary="What was predicted of other techniques, and what was measured")
def get_techniques(
    request: Request,
    runs: Annotated[str, Query(description="runs, separated by commas")],
    base: Annotated[str | None, Query(description="whose recording it is; the first run when not given")] = None,
) -> Response:
    """``{recording, step, rows}``: runs that differ from the baseline in techniques which a recording predicts."""
    house: House = request.app.state.house
    with reader(house) as connection:
        found = compared_runs(connection, runs, base)
        ways = [way_between(found[0]["techniques"], run["techniques"]) for run in found]
        stored = _recording(connection, found[0])
    compared = [(run, way) for run, way in zip(found, ways, strict=True) if way is not None]
    if stored is None or not compared:
        return answer({"recording": None, "step": None, "rows": []})
    with readable(stored):
        opened = house.shelf.open(stored.id)
        facts = facts_of(opened, known_run(house, stored.run_id, stored.rank))
        asked = [way for _, way in compared]
        told = opened.once(("prediction", str(facts.techniques), *asked), lambda: predict(facts, asked))
        steps = [step for step, _ in opened.moments.steps]
        device = opened.trace.device
    rows = []
    with reader(house) as connection:
        for (run, way), row in zip(compared, told.rows[1:], strict=False):
            measured = None
            if steps:
                measured = _measured(connection, run, stored.rank, device, steps[0], steps[-1], "peak_allocated_bytes")
            rows.append(
                {
                    "run": run["id"],
                    "name": run["name"],
                    "techniques": way._asdict(),
                    "rows": row.rows,
                    "predicted_peak_allocated_bytes": row.peak_allocated_bytes,
                    "measured_peak_allocated_bytes": measured,
                }
            )
    return answer({"recording": recording_row(stored), "step": told.step, "rows": rows})


def _recording(connection: Connection, run: Run) -> Stored | None:
    """The one that begins first: nothing that the run had reserved before it could be missing in a prediction."""
    wholes = [stored for stored in list_artifacts(connection, run) if stored.kind == "window" and stored.whole]

    def begins(stored: Stored) -> tuple[float, int]:
        first = stored.about.get("first_step")
        return (first if isinstance(first, int) else float("inf"), stored.received_ns)

    return min(wholes, key=begins, default=None)


def _measured(
    connection: Connection, run: Run, rank: int, device: int | None, first: int, last: int | None, counter: str
) -> int | None:
    """The highest of these steps of a run, by the allocator's own counter; None where that is not known."""
    try:
        place = find_place(connection, run, rank, device)
    except UnknownPlace:
        return None
    told = load_columns(connection, run, place, "steps", [counter], x="step", first=first, last=last)
    peak = int(told.columns[counter].max(initial=wire.UNKNOWN))
    return None if peak == wire.UNKNOWN or told.damaged else peak
