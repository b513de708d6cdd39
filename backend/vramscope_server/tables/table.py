"""A table: its columns, what a request must name for it, and its rows."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vramscope_server.answers.steps import Step
from vramscope_server.tables.columns import Column


class Scope(str, enum.Enum):
    """What a request for a table names."""

    all = "all"
    """Nothing: the table covers all runs, or those of a filter."""
    run = "run"
    """A run."""
    compare = "compare"
    """Several runs."""
    profile = "profile"
    """A run, and a profile of it; by default its newest complete one."""
    recording = "recording"
    """A run, and a recording of it; by default its newest complete one."""
    whatif = "whatif"
    """A recording, and a what-if job on it."""


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Parameters of a request for a table. Empty or None: not given."""

    run: str = ""
    runs: str = ""
    base: str | None = None
    rank: int | None = None
    device: int | None = None
    first: int | None = None
    to: int | None = None
    profile: str = ""
    recording: str = ""
    job: str = ""
    query: str = ""
    project: str = ""
    state: str = ""
    tag: str = ""
    device_name: str = ""
    cluster_job: str = ""


@dataclass(frozen=True, slots=True)
class StepOf:
    """A step with its rank and device."""

    rank: int
    device: int
    step: Step


class TableSource(Protocol):
    """Answers of the API, and the steps of a run."""

    def __call__(self, path: str, **parameters: Any) -> Any:
        """Return the answer of a GET route, decoded."""

    def steps(
        self, run: str, rank: int | None, device: int | None, first: int | None, to: int | None
    ) -> Iterator[Sequence[StepOf]]:
        """Yield the steps of all ranks and devices, or of one, in pieces."""


class MissingPart(ValueError):
    """The run has no complete profile or recording, so that there is no table of it."""


Row = Mapping[str, Any]
Rows = Callable[[TableSource, TableQuery], Iterator[Sequence[Row]]]
"""Function that yields the rows of a table in pieces."""


@dataclass(frozen=True, slots=True)
class Table:
    """A named table."""

    name: str
    title: str
    scope: Scope
    columns: tuple[Column, ...]
    rows: Rows

    def cells(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        """Return the cells of some rows by column."""
        return {column.name: [column.value_in(row) for row in rows] for column in self.columns}
