"""What people see: tables that fit the terminal, and that lose nothing when they go into a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 10_000
"""Nothing is folded or cut on its way into a file or another program."""
GAP: Final = 2
FOLDED_WIDTH: Final = 24
"""A long name is folded to no less than this before a column has to go."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    needed   0: always shown; else columns with the highest numbers go first where the terminal is too narrow
    number   right-aligned, never folded
    """

    title: str
    needed: int = 0
    number: bool = False


def console() -> Console:
    """Standard output: with colours at a terminal, without them elsewhere."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_table(to: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print rows of cells. Columns without any content are left out, and so are the least needed until the rest fits."""
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
    """Print it; in a pipe without the blanks that make each line as long as the longest."""
    if to.is_terminal:
        to.print(table)
        return
    with to.capture() as captured:
        to.print(table)
    to.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def _width(column: Column, cells: Sequence[Text]) -> int:
    """What a column needs at least: its widest cell, or a part of that if it may be folded."""
    widest = max(len(column.title), *(cell.cell_len for cell in cells))
    return widest if column.number else min(widest, FOLDED_WIDTH)
