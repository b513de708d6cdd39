"""``GET /compare/sites``: difference of two recordings by source line, each at its peak."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection
from typing_extensions import TypedDict

from vramscope_server.analysis.diff.by_line import difference
from vramscope_server.analysis.diff.holdings import PeakAllocations, peak_allocations_of
from vramscope_server.analysis.diff.steps import StepLine, step_line
from vramscope_server.answers.compare import ComparedStep, SitesAnswer, TimelinesAnswer
from vramscope_server.api.problems import NotFound
from vramscope_server.api.recording_request import open_recording, readable
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.timeline import curve_in, shown_first_in, sites_in
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.store.artifacts import StoredArtifact, find_artifact, list_artifacts
from vramscope_server.store.run_queries import UnknownRun, find_run
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["compare"])

Which = Annotated[str, Query(description="A recording, or a run: its recording that contains the peak.")]


@router.get("/compare/sites", summary="Compare two recordings by source line", responses=answers_with(SitesAnswer))
def get_sites(request: Request, a: Which, b: Which) -> Response:
    """Each recording is compared at its peak of allocated memory. Lines are matched by file and function. A run without a
    recording is 404.
    """
    (one, in_a), (two, in_b) = (_holdings(request, text, field) for text, field in ((a, "a"), (b, "b")))
    made = difference(in_a, in_b)
    sites: SitesAnswer = {
        "a": {**made["a"], **one},
        "b": {**made["b"], **two},
        "difference_bytes": made["difference_bytes"],
        "categories": made["categories"],
        "rows": made["rows"],
        "left_out": made["left_out"],
    }
    return answer(sites)


@router.get("/compare/timelines", summary="One step of each of two recordings", responses=answers_with(TimelinesAnswer))
def get_timelines(
    request: Request,
    a: Which,
    b: Which,
    place: Annotated[
        int, Query(ge=1, le=1000, description="Position of B among the compared runs, for its colour.")
    ] = 1,
) -> Response:
    """Allocated memory over the step that contains the peak, both steps on one axis."""
    from vramscope_server.figures import step_timelines as figure

    lines = []
    steps: list[ComparedStep] = []
    for text, field, position in ((a, "a", 0), (b, "b", place)):
        run, ident, stored, opened = _opened(request, text, field)
        with readable(stored):
            line = opened.once(("step line",), lambda: _line_of(opened))  # noqa: B023
        lines.append((str(run.name) if run else ident, position, line.share, line.allocated_bytes))
        steps.append({"recording": ident, "step": line.step})
    drawn = figure.draw(lines).to_dict()
    return answer(TimelinesAnswer(figure=drawn, window={"a": steps[0], "b": steps[1]}))


def _line_of(opened: OpenRecording) -> StepLine:
    return step_line(opened.trace, curve_in(opened), shown_first_in(opened))


class _SideFacts(TypedDict):
    """Facts of a compared recording, in addition to its peak."""

    recording: str
    run: str | None
    name: str | None
    run_peak_allocated_bytes: int | None
    stacks: bool


def _holdings(request: Request, text: str, field: str) -> tuple[_SideFacts, PeakAllocations]:
    run, ident, stored, opened = _opened(request, text, field)
    with readable(stored):
        made = opened.once(("holdings",), lambda: peak_allocations_of(opened.trace, curve_in(opened), sites_in(opened)))
        facts: _SideFacts = {
            "recording": ident,
            "run": run.id if run else None,
            "name": run.name if run else None,
            "run_peak_allocated_bytes": run.peak_allocated_bytes if run else None,
            "stacks": len(opened.trace.stacks) > 0,
        }
    return facts, made


def _opened(request: Request, text: str, field: str) -> tuple[StoredRun | None, str, StoredArtifact, OpenRecording]:
    """The run, if one is meant, and its recording, opened. Raises NotFound, Conflict, BadRecording."""
    with reader(request) as connection:
        run, ident, near = _meant(connection, text, field)
    try:
        return run, ident, *open_recording(request, ident)
    except NotFound:
        raise NotFound(
            f"No run, recording or snapshot {text[:200]!r} found.",
            field=field,
            seen=text[:200],
            suggestions=near,
        ) from None


def _meant(connection: Connection, text: str, field: str) -> tuple[StoredRun | None, str, list[str]]:
    """The run, if one is meant; the id to open; and similar names. Raises NotFound."""
    try:
        run = find_run(connection, text)
    except UnknownRun as unknown:
        stored = find_artifact(connection, text)
        return (find_run(connection, stored.run_id) if stored else None), text, unknown.suggestions
    recording = best_recording(connection, run)
    if recording is None:
        raise NotFound(
            f"{run.name} has no recording. Request one on its page Fragmentation while it runs.",
            field=field,
            seen=text[:200],
            suggestions=[],
        )
    return run, recording.id, []


def best_recording(connection: Connection, run: StoredRun) -> StoredArtifact | None:
    """The complete recording that contains the step of the run's peak, else the one with the latest step; None: there is
    none."""
    wholes = [stored for stored in list_artifacts(connection, run) if stored.kind == "window" and stored.whole]

    def worth(stored: StoredArtifact) -> tuple[bool, float]:
        first, last = (stored.about.get(name) for name in ("first_step", "last_step"))
        if not isinstance(first, int) or not isinstance(last, int):
            return False, -1.0
        return run.peak_step is not None and first <= run.peak_step <= last, float(last)

    return max(wholes, key=worth, default=None)
