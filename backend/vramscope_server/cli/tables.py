"""Tables that fit the terminal and are complete in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 10_000
"""Width of output to a file or another program: nothing is folded or cut."""
GAP: Final = 2
FOLDED_WIDTH: Final = 24
"""Minimum width of a folded name, before a column is dropped."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    needed   0: always shown; in a narrow terminal, columns with the highest number are dropped first
    number   right-aligned, never folded
    """

    title: str
    needed: int = 0
    number: bool = False


def console() -> Console:
    """Return standard output, coloured in a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_table(to: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print rows of cells, without empty columns and without the least needed ones if the terminal is narrow."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    shown = [at for at, _ in enumerate(columns) if any(row[at].plain for row in cells)]
    widths = {at: _width(columns[at], [row[at] for row in cells]) for at in shown}
    while sum(widths[at] + GAP for at in shown) - GAP > to.width:
        optional = [at for at in shown if columns[at].needed]
        if not optional:
            break
        shown.remove(max(optional, key=lambda at: columns[at].needed))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
    for at in shown:
        if columns[at].number:
            table.add_column(columns[at].title, justify="right", no_wrap=True)
        else:
            table.add_column(columns[at].title, overflow="fold")
    for row in cells:
        table.add_row(*(row[at] for at in shown))
    put(to, table)


def put(to: Console, table: Table) -> None:
    """Print a table. In a pipe, without trailing blanks."""
    if to.is_terminal:
        to.print(table)
        return
    with to.capture() as captured:
        to.print(table)
    to.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def _width(column: Column, cells: Sequence[Text]) -> int:
    """Return the minimum width of a column: its widest cell, or less if it can be folded."""
    widest = max(len(column.title), *(cell.cell_len for cell in cells))
    return widest if column.number else min(widest, FOLDED_WIDTH)
