"""``GET /runs/RUN/series``: columns of a window, thinned to an envelope."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vramscope.protocol import series
from vramscope_server.analysis.series.downsample import envelope, float_envelope, with_holes
from vramscope_server.answers.steps import SeriesAnswer
from vramscope_server.api.problems import InvalidParameter
from vramscope_server.api.requested_range import (
    AxisName,
    DeviceIndex,
    From,
    Points,
    Rank,
    Thinned,
    To,
    axis_seconds,
    checked_range,
    damage_rows,
    load,
    reader,
    require_rank_device,
    require_run,
)
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.store.run_queries import scalars_of_rank
from vramscope_server.store.scalars import SCALARS, numbers, words

router = APIRouter(tags=["runs"])


@router.get("/runs/{run}/series", summary="Columns of a run", responses=answers_with(SeriesAnswer))
def get_series(
    request: Request,
    run: str,
    names: Annotated[
        str,
        Query(
            description="Names of series (docs/wire.md), separated by commas; of scalars the names that the run reports."
        ),
    ],
    stream: Annotated[Literal["samples", "steps", "scalars"], Query(description="Stream.")] = "samples",
    rank: Rank = None,
    device: DeviceIndex = None,
    x: AxisName = "time",
    first: From = None,
    to: To = None,
    points: Points = 800,
) -> Response:
    """Values of a window, or their envelope if there are more rows than ``points``. An envelope retains every peak."""
    wanted = [name for name in dict.fromkeys(part.strip() for part in names.split(",")) if name]
    for name in wanted:
        if stream != SCALARS and name not in series.STREAMS[stream]:
            raise _no_series(stream, name, series.STREAMS[stream])
    if not wanted:
        raise InvalidParameter(
            "No series was requested.", field="names", seen=names[:100], expected="at least one series"
        )
    window = checked_range(x, first, to, points)
    with reader(request) as connection:
        record = require_run(connection, run)
        place = require_rank_device(connection, record, rank, device)
        if stream == SCALARS:
            known = scalars_of_rank(connection, record, place.rank)
            for name in wanted:
                if name not in known:
                    raise _no_series(stream, name, known)
        thinned = load(connection, record, place, stream, wanted, window)
    along = thinned.along if thinned.buckets is None else thinned.buckets.middle
    x_values: list[Any] = axis_seconds(along, place, 0).tolist() if x == "time" else along.tolist()
    return answer(
        {
            "stream": stream,
            "rank": place.rank,
            "device": place.device,
            "x": x,
            "x_values": x_values,
            "rows": thinned.rows,
            "envelope": thinned.buckets is not None,
            "window": {"from": first, "to": to},
            "damaged": damage_rows(thinned.damaged, place),
            "series": {name: (_scalar if stream == SCALARS else _one)(thinned, name) for name in wanted},
        }
    )


def _no_series(stream: str, name: str, known: Iterable[str]) -> InvalidParameter:
    return InvalidParameter(
        f"The stream {stream} has no series {name[:100]!r}.",
        field="names",
        seen=name[:100],
        expected=f"some of {', '.join(known) or 'none: this run reports no numbers'}",
    )


def _scalar(thinned: Thinned, name: str) -> dict[str, list[float | str | None]]:
    """Doubles: all of them, those that JSON does not have as text; or the envelope of the finite ones."""
    values, is_known = numbers(thinned.columns[name])
    if thinned.buckets is None:
        return {
            "value": [
                None if not known else value if math.isfinite(value) else words(value)
                for value, known in zip(values.tolist(), is_known.tolist(), strict=True)
            ]
        }
    three = float_envelope(np.where(is_known, values, np.nan), thinned.buckets.starts)
    return {
        part: [value if math.isfinite(value) else None for value in with_holes(array, thinned.buckets, np.nan).tolist()]
        for part, array in zip(("min", "mean", "max"), three, strict=True)
    }


def _one(thinned: Thinned, name: str) -> dict[str, list[int | None]]:
    values = thinned.columns[name]
    if thinned.buckets is None:
        return {"value": _listed(values)}
    found = envelope(values, thinned.buckets.starts)
    parts = {"min": found.min, "mean": found.mean, "max": found.max}
    return {part: _listed(with_holes(array, thinned.buckets, series.UNKNOWN)) for part, array in parts.items()}


def _listed(values: Any) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    if np.any(values == series.UNKNOWN):
        return [None if value == series.UNKNOWN else value for value in listed]
    return listed
