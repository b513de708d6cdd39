"""Tables of the server: all rows, with the values as JSON has them, or as a table of pandas or polars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from vramscope.client.answers import NamedTable
from vramscope.client.connection import Connection

DAMAGED: Final = "Vramscope-Damaged-Steps"
"""Header of an answer without the steps that the server could not read."""


class Table:
    """Rows of a table. ``table[0]["peak_allocated_bytes"]`` is a value; None is unknown."""

    def __init__(self, name: str, columns: Sequence[str], rows: list[dict[str, Any]], missing: str = "") -> None:
        self.name = name
        self.columns = tuple(columns)
        """Names of the columns. The end of a name is the unit."""
        self.rows = rows
        """Each row as a dict of all columns."""
        self.missing = missing
        """Steps that are missing because the server cannot read them; empty if the table is complete."""

    def column(self, name: str) -> list[Any]:
        """Return the values of one column. Raises KeyError for a name that the table lacks."""
        if name not in self.columns:
            raise KeyError(name)
        return [row[name] for row in self.rows]

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self.rows):,} rows of {len(self.columns)} columns)"

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``. A column of whole numbers with unknown ones has the nullable type ``Int64``."""
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

        columns = {name: self.column(name) for name in self.columns}
        return pandas.DataFrame(
            {name: pandas.Series(values, dtype=_pandas_type(values)) for name, values in columns.items()}
        )

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame``."""
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.DataFrame({name: self.column(name) for name in self.columns}, strict=False)


def read_table(connection: Connection, name: str, parameters: Mapping[str, Any]) -> Table:
    """Ask for all rows of a table."""
    rows, headers = connection.get_rows(f"/tables/{quote(name, safe='')}", {**parameters, "format": "json"})
    if rows:
        columns = list(rows[0])
    else:
        columns = next(
            [column.name for column in table.columns]
            for table in connection.get("/tables", list[NamedTable])
            if table.name == name
        )
    return Table(name, columns, rows, headers.get(DAMAGED, ""))


def _pandas_type(values: Sequence[Any]) -> str | None:
    known = {type(value) for value in values if value is not None}
    return "Int64" if known == {int} and None in values else None
