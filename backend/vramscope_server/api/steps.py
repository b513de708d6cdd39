"""``GET /runs/RUN/steps``: exact peaks of each optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.answers.run_detail import CategoryMemory
from vramscope_server.answers.steps import Step, StepPhase
from vramscope_server.api.requested_range import (
    DeviceIndex,
    Rank,
    checked_range,
    reader,
    require_rank_device,
    require_run,
)
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.store.series_reader import Damage, RankDevice, load_columns
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["runs"])

DAMAGED = "Vramscope-Damaged-Steps"
"""Header that names the steps that cannot be read."""
_PIECE_STEPS: Final = 5_000


@router.get("/runs/{run}/steps", summary="Steps of a run", responses=answers_with(list[Step]))
def get_steps(
    request: Request,
    run: str,
    rank: Rank = None,
    device: DeviceIndex = None,
    first: Annotated[int | None, Query(alias="from", description="First step.")] = None,
    to: Annotated[int | None, Query(description="Last step, included.")] = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Maximum number of steps.")] = 10_000,
) -> Response:
    """In rising order, the newest ``limit`` steps."""
    checked_range("step", first, to, 10)
    first, to = _stored(first), _stored(to)
    names = list(series.STEPS)
    with reader(request) as connection:
        record = require_run(connection, run)
        place = require_rank_device(connection, record, rank, device)
        found = load_columns(connection, record, place, "steps", names, x="step", first=first, last=to)
    response = answer(_steps({name: values[-limit:] for name, values in found.columns.items()}, place))
    if found.damaged:
        # An array has no field for it, but readers must be able to notice missing steps.
        response.headers[DAMAGED] = damaged_words(found.damaged)
    return response


def damaged_words(damaged: Sequence[Damage]) -> str:
    """Value of the header DAMAGED."""
    return ", ".join(f"{part.first_step}-{part.last_step}" for part in damaged)


def each_step(
    connection: Connection,
    record: StoredRun,
    place: RankDevice,
    first: int | None,
    to: int | None,
    damaged: list[Damage],
) -> Iterator[list[Step]]:
    """Yield all steps of a window in rising order, in pieces. Rows that cannot be read are added to ``damaged``."""

    def load(names: list[str], low: int | None, high: int | None) -> Mapping[str, IntArray]:
        found = load_columns(connection, record, place, "steps", names, x="step", first=low, last=high)
        damaged.extend(part for part in found.damaged if part not in damaged)
        return found.columns

    numbers = np.unique(load(["step"], _stored(first), _stored(to))["step"])
    for at in range(0, numbers.size, _PIECE_STEPS):
        low, high = int(numbers[at]), int(numbers[min(at + _PIECE_STEPS, numbers.size) - 1])
        yield _steps(load(list(series.STEPS), low, high), place)


def _steps(columns: Mapping[str, IntArray], place: RankDevice) -> list[Step]:
    listed = {name: _known(values.tolist()) for name, values in columns.items()}
    rows = (dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True))
    return [_step(row, place.skew_ns) for row in rows]


def _stored(step: int | None) -> int | None:
    """A bound within the range of the database."""
    return None if step is None else min(max(step, -1), series.MAX_VALUE + 1)


def _known(values: list[int]) -> list[int | None]:
    return [None if value == series.UNKNOWN else value for value in values]


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e9


def _by_category(row: dict[str, int | None], moment: Literal["peak", "end"]) -> CategoryMemory:
    return {
        "parameters": row[f"{moment}_parameters_bytes"],
        "gradients": row[f"{moment}_gradients_bytes"],
        "optimizer": row[f"{moment}_optimizer_bytes"],
        "buffers": row[f"{moment}_buffers_bytes"],
        "activations": row[f"{moment}_activations_bytes"],
        "workspaces": row[f"{moment}_workspaces_bytes"],
        "other": row[f"{moment}_other_bytes"],
    }


def _step(row: dict[str, int | None], skew_ns: int) -> Step:
    phases: dict[str, StepPhase] = {}
    for phase in series.PHASES:
        fields: StepPhase = {
            "peak_allocated_bytes": row[f"{phase}_peak_allocated_bytes"],
            "peak_reserved_bytes": row[f"{phase}_peak_reserved_bytes"],
            "seconds": _seconds(row[f"{phase}_ns"]),
        }
        if any(value is not None for value in fields.values()):
            phases[phase] = fields
    peak_phase = row["peak_phase"]
    time_ns = row["time_ns"]
    return {
        "step": row["step"],
        "first_step": row["step"] if row["first_step"] is None else row["first_step"],
        "time_seconds": None if time_ns is None else (time_ns - skew_ns) / 1e9,
        "seconds": _seconds(row["duration_ns"]),
        "peak_allocated_bytes": row["peak_allocated_bytes"],
        "peak_reserved_bytes": row["peak_reserved_bytes"],
        "peak_phase": None if peak_phase is None else series.phase_name(peak_phase),
        "peak_categories": _by_category(row, "peak"),
        "end_allocated_bytes": row["end_allocated_bytes"],
        "end_reserved_bytes": row["end_reserved_bytes"],
        "end_categories": _by_category(row, "end"),
        "phases": phases,
        "micro_steps": row["micro_steps"],
        "watched": None if row["watched"] is None else bool(row["watched"]),
        "agent_seconds": _seconds(row["agent_ns"]),
        "foreign_reset": row["foreign_reset"],
    }
