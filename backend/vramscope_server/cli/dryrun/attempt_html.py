"""The answer of ``vramscope dryrun --try`` as one HTML file: the table, and memory against work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramscope_server.analysis.number_format import amount
from vramscope_server.cli.dryrun.attempt_report import (
    COLUMNS,
    AttemptsAnswer,
    cells,
    headline,
    largest_line,
    marks_of,
    short_names,
    title_of,
)
from vramscope_server.figures.html_file import drawn, escaped, html_file, section, table, wide
from vramscope_server.figures.memory_against_work import Point, draw

HEIGHT: Final = 460
MEASURE: Final = (
    "Work: floating-point operations of one step in matrix products, convolutions and attention of PyTorch's own operators, "
    "counted from the shapes of their operands. Repeated forward passes count. The update of the weights, transfers and "
    "kernels of other libraries do not. Time on an emulated GPU means nothing."
)


def write(path: Path, found: AttemptsAnswer) -> None:
    """Write the file. Raises OSError."""
    title = headline(found)
    path.write_text(html_file(f"{title[:1].upper()}{title[1:]}", _parts(found)), encoding="utf-8")


def _parts(found: AttemptsAnswer) -> Iterator[str]:
    rows = [found["plain"], *found["alone"], *found["together"]]
    names, marks = short_names(rows), marks_of(rows)
    points = [
        Point(name, row["work_ratio"], row["peak_reserved_bytes"], row["answer"] == "fits")
        for row, name in zip(rows, names, strict=True)
        if row["work_ratio"] is not None and row["peak_reserved_bytes"] is not None
    ]
    if points:
        room = found["card_bytes"] - found["context_high_bytes"]
        yield section(
            "Memory against work", drawn(draw(points, room), HEIGHT), f"<p class=muted>{escaped(MEASURE)}</p>"
        )
    else:
        yield section("Memory against work", "<p>The work of a step is unknown.</p>")
    texts = [[str(cell) for cell in cells(row, marks, name)] for row, name in zip(rows, names, strict=True)]
    yield section("Changes", wide(table([column.title.capitalize() for column in COLUMNS], texts)))
    together = [
        f"{name}: {title_of(row)}" for row, name in zip(rows, names, strict=True) if name != title_of(row)
    ]  # sets of changes have a number in the table
    notes = [
        *together,
        *map(largest_line, found["largest"]),
        *(f"[{mark}] assumed: {text}" for text, mark in marks.items()),
    ]
    low, high = amount(found["context_low_bytes"]), amount(found["context_high_bytes"])
    notes.append(f"The CUDA context takes {low} to {high} in addition.")
    yield "".join(f"<p>{escaped(note)}</p>" for note in notes)
    if found["smallest"] is not None:
        lines = "\n".join(found["smallest"]["lines"])
        yield section(f"To write for {title_of(found['smallest'])}", f"<pre>{escaped(lines)}</pre>")
