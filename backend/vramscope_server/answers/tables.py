"""Tables that can be downloaded."""

from __future__ import annotations

from typing_extensions import TypedDict


class TableColumn(TypedDict):
    """A column of a table."""

    name: str
    """Name of the column; its end is the unit."""
    kind: str
    """`integer`, `number`, `text`, `boolean`, `texts`, `integers`, or `json` for text that is JSON."""
    unit: str | None
    """Unit of the number; null if it is counted, or no number."""
    about: str
    """Description."""


class NamedTable(TypedDict):
    """A table that can be downloaded."""

    name: str
    """Name of the table."""
    title: str
    """Content of the table."""
    scope: str
    """Parameters that a request needs: `all` none, `run` the run, `compare` the runs, `profile` and `recording` the run or one of
    its profiles or recordings, `whatif` the recording and the job."""
    columns: list[TableColumn]
    """Columns in their order."""
