"""One run of a server: its facts, and its columns, leaks, errors and figures on request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from vramscope.client.answers import (
    ErrorList,
    FigureAnswer,
    LeakReport,
    NextChange,
    OutOfMemoryError,
    RunFacts,
    SeriesPage,
)
from vramscope.client.connection import Connection
from vramscope.client.series import Series
from vramscope.client.table import Table, read_table

if TYPE_CHECKING:
    import plotly.graph_objects  # type: ignore[import-untyped, import-not-found, unused-ignore]

MOST_POINTS: Final = 4_000
"""Maximum number of rows that the server answers at once."""
SINCE_1970: Final = 1e8
"""A time from it on counts from 1970, as the server has it, one below from the run's start."""

Axis = Literal["step", "time"]
Stream = Literal["steps", "samples", "scalars"]


class Run:
    """A run. ``run.facts`` is what the list of runs says; each method asks the server."""

    def __init__(self, connection: Connection, facts: RunFacts) -> None:
        self._connection = connection
        self.facts = facts

    @property
    def id(self) -> str:
        """Identifier of the run."""
        return self.facts.run_id

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.facts.name

    @property
    def url(self) -> str:
        """Address of the run's page."""
        return f"{self._connection.server}/runs/{self.id}"

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.facts.state}, {self.url})"

    def refresh(self) -> RunFacts:
        """Ask for the facts again, and return them."""
        self.facts = self._connection.get(f"/runs/{self.id}", RunFacts)
        return self.facts

    def series(
        self,
        names: Sequence[str],
        *,
        stream: Stream = "steps",
        axis: Axis = "step",
        rank: int | None = None,
        device: int | None = None,
        first: float | None = None,
        last: float | None = None,
    ) -> Series:
        """Return every row of these columns. Names are those of docs/wire.md; of ``scalars`` those that the run reported.

        rank, device   by default the lowest rank and its first device
        first, last    limits on the axis, both included; times are seconds since 1970, or since the run's start

        The server answers 4,000 rows at once: a longer window takes several requests. Where more rows lie at one place of the
        axis, the highest value of each part of them stands for it.
        """
        names = list(dict.fromkeys(names))
        fixed = {"names": ",".join(names), "stream": stream, "x": axis, "rank": rank, "device": device}
        x_values: list[float] = []
        columns: dict[str, list[Any]] = {name: [] for name in names}
        windows = [(first, last)]
        while windows:
            low, high = windows.pop()
            query = {**fixed, "from": low, "to": high, "points": MOST_POINTS}
            page = self._connection.get(f"/runs/{self.id}/series", SeriesPage, query)
            low, high = self._absolute(low, axis), self._absolute(high, axis)
            if page.envelope and (halves := _halves(page.x_values, low, high, axis)):
                windows.extend(halves)
                continue
            rows = [page.series[name]["max" if page.envelope else "value"] for name in names]
            kept = [
                at for at in range(len(page.x_values)) if not page.envelope or any(row[at] is not None for row in rows)
            ]
            x_values.extend(page.x_values[at] for at in kept)
            for column, row in zip(columns.values(), rows, strict=True):
                column.extend(row[at] for at in kept)
        return Series(axis, x_values, columns)

    def _absolute(self, limit: float | None, axis: Axis) -> float | None:
        """Return a limit as the axis has it: times in seconds since 1970."""
        if limit is None or axis == "step" or limit >= SINCE_1970:
            return limit
        return limit + (self.facts.started_seconds or 0.0)

    def leaks(self, *, rank: int | None = None, device: int | None = None) -> LeakReport:
        """Return the leaks, worst first, and the verdict."""
        return self._connection.get(f"/runs/{self.id}/leaks", LeakReport, {"rank": rank, "device": device})

    def table(
        self,
        name: str,
        *,
        rank: int | None = None,
        device: int | None = None,
        first: int | None = None,
        last: int | None = None,
        recording: str | None = None,
        profile: str | None = None,
    ) -> Table:
        """Return every row of a table of this run, such as ``steps``, ``pitfalls`` or ``peak``; docs/export.md lists them.

        rank, device         of the tables of steps; by default all
        first, last          limits of these steps, both included
        recording, profile   by default the run's newest
        """
        parts = {"rank": rank, "device": device, "from": first, "to": last, "recording": recording, "profile": profile}
        return read_table(self._connection, name, {**parts, "run": self.id})

    def next_change(self) -> NextChange:
        """Return the one change that is most worth trying. The first request for a recording may take seconds."""
        return self._connection.get(f"/runs/{self.id}/next-change", NextChange)

    def out_of_memory_errors(self) -> list[OutOfMemoryError]:
        """Return the out-of-memory errors by time, each with its cause and remedies; survived ones too."""
        rows = self._connection.get(f"/runs/{self.id}/oom", ErrorList).errors
        return [
            self._connection.get(f"/oom/{quote(row.record, safe='')}", OutOfMemoryError) for row in rows if row.whole
        ]

    def figure(
        self, name: str, *, axis: Axis = "time", rank: int | None = None, device: int | None = None
    ) -> plotly.graph_objects.Figure:
        """Return one of the page's figures, such as ``stack`` or ``phases`` (docs/http.md), for Plotly."""
        import plotly.graph_objects  # type: ignore[import-untyped, import-not-found, unused-ignore]

        query = {"x": axis, "rank": rank, "device": device, "points": MOST_POINTS}
        answer = self._connection.get(f"/runs/{self.id}/figures/{quote(name, safe='')}", FigureAnswer, query)
        return plotly.graph_objects.Figure(answer.figure)


def _halves(
    x_values: Sequence[float], low: float | None, high: float | None, axis: Axis
) -> list[tuple[float | None, float | None]]:
    """Return two windows in place of one with too many rows, the later one first; none if all rows lie at one place."""
    middle = x_values[len(x_values) // 2]
    if axis == "step":
        middle = math.floor(middle)
        after = middle + 1.0
    else:
        after = math.nextafter(middle, math.inf)
    if x_values[0] >= x_values[-1] or (low is not None and middle < low) or (high is not None and after > high):
        return []
    return [(after, high), (low, middle)]
