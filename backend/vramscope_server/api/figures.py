"""Figures of runs as Plotly JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter, Query, Request, Response

from vramscope_server.analysis.series.chart_data import LossWindow, RunWindow, StreamWindow
from vramscope_server.answers.steps import ComparedWindow, CompareFigure, CompareWindow, FigureWindow, RunFigure
from vramscope_server.api.compare import compared_runs
from vramscope_server.api.problems import NotFound
from vramscope_server.api.requested_range import (
    Axis,
    AxisName,
    DeviceIndex,
    From,
    Points,
    Rank,
    To,
    checked_range,
    reader,
    require_rank_device,
    require_run,
    run_window,
)
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with

if TYPE_CHECKING:
    from vramscope_server.figures.registry import Figure

Shown = TypeVar("Shown")
router = APIRouter(tags=["figures"])


@router.get("/runs/{run}/figures/{name}", summary="Figure of a run", responses=answers_with(RunFigure))
def get_figure(
    request: Request,
    run: str,
    name: str,
    rank: Rank = None,
    device: DeviceIndex = None,
    x: AxisName = "time",
    first: From = None,
    to: To = None,
    points: Points = 800,
) -> Response:
    """Names: `stack`, `fragmentation`, `phases`, `utilization`, `processes`, `host`, `floor`, `loss`, `metrics`."""
    from vramscope_server.figures.registry import RUN_FIGURES

    drawn = _known(RUN_FIGURES, name)
    window = checked_range(x, first, to, points)
    with reader(request) as connection:
        record = require_run(connection, run)
        place = require_rank_device(connection, record, rank, device)
        shown = run_window(connection, record, place, drawn, window)
    return answer(RunFigure(figure=drawn.draw(shown).to_dict(), window=_as_answer(shown, first, to)))


@router.get("/compare/figures/{name}", summary="Figure of several runs", responses=answers_with(CompareFigure))
def get_compare_figure(
    request: Request,
    name: str,
    runs: Annotated[str, Query(description="Runs, separated by commas.")],
    base: Annotated[str | None, Query(description="Baseline; by default the first run.")] = None,
    x: AxisName = "step",
    first: From = None,
    to: To = None,
    points: Points = 800,
) -> Response:
    """Names: `peaks_over_steps`, `peaks_side_by_side`, `memory_against_time`, `loss_over_steps`."""
    from vramscope_server.figures.registry import COMPARE_FIGURES

    drawn = _known(COMPARE_FIGURES, name)
    window = checked_range(x, first, to, points)
    shown = []
    with reader(request) as connection:
        for record in compared_runs(connection, runs, base):
            place = require_rank_device(connection, record, None, None)
            shown.append(run_window(connection, record, place, drawn, window))
    windows: list[ComparedWindow] = [{**_as_answer(one, first, to), "run": one.run["run_id"]} for one in shown]
    compared: CompareWindow = {"from": first, "to": to, "x": x, "runs": windows}
    return answer(CompareFigure(figure=drawn.draw(shown).to_dict(), window=compared))


def _known(figures: Mapping[str, Figure[Shown]], name: str) -> Figure[Shown]:
    if name not in figures:
        expected = ", ".join(figures)
        raise NotFound(
            f"Figure {name[:100]!r} not found.",
            field="name",
            seen=name[:100],
            expected=expected,
            suggestions=list(figures),
        )
    return figures[name]


def _as_answer(shown: RunWindow, first: float | None, to: float | None) -> FigureWindow:
    x: Axis = shown.x
    parts: dict[str, StreamWindow | LossWindow] = {**shown.streams}
    if shown.loss is not None:
        parts["scalars"] = shown.loss
    return {
        "rank": shown.rank,
        "device": shown.device,
        "x": x,
        "from": first,
        "to": to,
        "rows": {stream: part.rows for stream, part in parts.items()},
        "envelope": {stream: part.envelope for stream, part in parts.items()},
        "damaged": {stream: part.damaged for stream, part in parts.items()},
    }
