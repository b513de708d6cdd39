"""``GET /runs/RUN/series``: columns of a window, thinned to an envelope."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vramscope import wire
from vramscope_server.analysis.downsample import envelope, with_holes

from .answers import answer
from .problems import InvalidParameter
from .windows import (
    AxisName,
    DeviceIndex,
    From,
    Points,
    Rank,
    Thinned,
    To,
    axis_seconds,
    load,
    reader,
    the_place,
    the_run,
    the_window,
    told_damage,
)

router = APIRouter(tags=["runs"])


@router.get("/runs/{run}/series", summary="Columns of a window, thinned to an envelope")
def get_series(
    request: Request,
    run: str,
    names: Annotated[str, Query(description="names of series (docs/wire.md), separated by commas")],
    stream: Annotated[Literal["samples", "steps"], Query()] = "samples",
    rank: Rank = None,
    device: DeviceIndex = None,
    x: AxisName = "time",
    first: From = None,
    to: To = None,
    points: Points = 800,
) -> Response:
    """With no more rows than points the values come as they are; else min, mean and max of each bucket, no peak lost."""
    wanted = [name for name in dict.fromkeys(part.strip() for part in names.split(",")) if name]
    for name in wanted:
        if name not in wire.STREAMS[stream]:
            known = ", ".join(wire.STREAMS[stream])
            raise InvalidParameter(
                f"The stream {stream} has no series {name[:100]!r}.",
                field="names",
                seen=name[:100],
                expected=f"some of {known}",
            )
    if not wanted:
        raise InvalidParameter("No series was named.", field="names", seen=names[:100], expected="at least one series")
    window = the_window(x, first, to, points)
    with reader(request.app.state.house) as connection:
        record = the_run(connection, run)
        place = the_place(connection, record, rank, device)
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
            "damaged": told_damage(thinned.damaged, place),
            "series": {name: _one(thinned, name) for name in wanted},
        }
    )


def _one(thinned: Thinned, name: str) -> dict[str, list[int | None]]:
    values = thinned.columns[name]
    if thinned.buckets is None:
        return {"value": _listed(values)}
    found = envelope(values, thinned.buckets.starts)
    parts = {"min": found.min, "mean": found.mean, "max": found.max}
    return {part: _listed(with_holes(array, thinned.buckets, wire.UNKNOWN)) for part, array in parts.items()}


def _listed(values: Any) -> list[int | None]:
    listed: list[int | None] = values.tolist()
    if np.any(values == wire.UNKNOWN):
        return [None if value == wire.UNKNOWN else value for value in listed]
    return listed
