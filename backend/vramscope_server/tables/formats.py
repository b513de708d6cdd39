"""Writes a table as CSV, JSON or Parquet, in pieces, so that a long table takes little memory."""

from __future__ import annotations

import csv
import enum
import importlib.util
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Final

from vramscope_server.analysis.spreadsheet_text import csv_cell
from vramscope_server.tables.columns import Kind
from vramscope_server.tables.table import Row, Table

Pieces = Iterable[Sequence[Row]]


class TableFile(str, enum.Enum):
    """Formats of a table."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


MEDIA: Final = {
    TableFile.csv: "text/csv",
    TableFile.json: "application/json",
    TableFile.parquet: "application/vnd.apache.parquet",
}


def write(table: Table, form: TableFile, pieces: Pieces, file: IO[bytes]) -> None:
    """Write a table. Raises ImportError for Parquet if pyarrow is not installed."""
    _WRITERS[form](table, pieces, file)


def can_write_parquet() -> bool:
    """Whether pyarrow is installed. Does not import it."""
    return importlib.util.find_spec("pyarrow") is not None


def _write_csv(table: Table, pieces: Pieces, file: IO[bytes]) -> None:
    """A line of column names, then the rows. Unknown is empty; lists are joined by ``; ``."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(column.name for column in table.columns)
    for piece in pieces:
        cells = table.cells(piece)
        writer.writerows(zip(*([_csv_cell(value) for value in values] for values in cells.values()), strict=True))
    text.detach()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return csv_cell("; ".join(map(str, value)) if isinstance(value, list) else value)


def _write_json(table: Table, pieces: Pieces, file: IO[bytes]) -> None:
    """An array of objects, a line for each."""
    names = [column.name for column in table.columns]
    between = b"[\n"
    for piece in pieces:
        for row in zip(*table.cells(piece).values(), strict=True):
            file.write(between + json.dumps(dict(zip(names, row, strict=True))).encode())
            between = b",\n"
    file.write(b"[]\n" if between == b"[\n" else b"\n]\n")


def _write_parquet(table: Table, pieces: Pieces, file: IO[bytes]) -> None:
    """Unknown is null. A table without rows has its columns all the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        Kind.integer: pa.int64(),
        Kind.number: pa.float64(),
        Kind.text: pa.string(),
        Kind.json: pa.string(),
        Kind.boolean: pa.bool_(),
        Kind.texts: pa.list_(pa.string()),
        Kind.integers: pa.list_(pa.int64()),
    }
    schema = pa.schema([(column.name, types[column.kind]) for column in table.columns])
    with pq.ParquetWriter(file, schema) as writer:
        for piece in pieces:
            writer.write_table(pa.table(table.cells(piece), schema=schema))


_WRITERS: Final[dict[TableFile, Callable[[Table, Pieces, IO[bytes]], None]]] = {
    TableFile.csv: _write_csv,
    TableFile.json: _write_json,
    TableFile.parquet: _write_parquet,
}
