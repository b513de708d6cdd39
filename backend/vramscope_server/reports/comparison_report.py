"""A comparison as one HTML file that needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vramscope_server.analysis.comparison.export import BOUNDS, EMULATED, REPEATS, has_repeats
from vramscope_server.answers.compare import CompareAnswer
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.figures.html_file import drawn, escaped, html_file, section, table, wide
from vramscope_server.reports.comparison_table import COLUMNS, cells, setting_text
from vramscope_server.reports.plain_text import ABSENT
from vramscope_server.reports.source import AnswerSource

FIGURES: Final = {
    "peaks_side_by_side": "Peaks by category",
    "peaks_over_steps": "Peaks of the steps",
    "memory_against_time": "Memory against step time",
    "loss_over_steps": "Loss",
}
HEIGHT: Final = 360
POINTS: Final = 600


def comparison_report(source: AnswerSource, named: str) -> str:
    """HTML of a comparison: the table, what differs, and the charts.

    ``named`` is the parameter ``runs`` of ``GET /compare``: ids or names, the baseline first.
    """
    comparison: CompareAnswer = source("/compare", runs=named)
    baseline, *others = [row["name"] for row in comparison["rows"]]
    return html_file(
        f"{baseline} and {others[0]}" if len(others) == 1 else f"{baseline} and {len(others)} other runs",
        [*_table(comparison), *_notes(source, comparison), *_differences(comparison), *_charts(source, named)],
    )


def _table(comparison: CompareAnswer) -> Iterator[str]:
    rows = comparison["together"]
    repeated = has_repeats(rows)
    texts = [cells(row, is_baseline=not at, repeated=repeated) for at, row in enumerate(rows)]
    is_known = [any(row[at] not in ("", ABSENT) for row in texts) for at in range(len(COLUMNS))]
    kept = [at for at, column in enumerate(COLUMNS) if is_known[at] and column.title != "ID"]
    titles = [COLUMNS[at].title.capitalize() for at in kept]
    notes = [f"<p>Not fully comparable: {escaped(warning)}</p>" for warning in comparison["warnings"]]
    if any(row["lower_bounds"] for row in comparison["rows"]):
        notes.append(f"<p class=muted>{escaped(BOUNDS)}</p>")
    if repeated:
        notes.append(f"<p class=muted>{escaped(REPEATS)}</p>")
    if any(row["emulated"] for row in comparison["rows"]):
        notes.append(f"<p class=muted>{escaped(EMULATED)}</p>")
    notes.append("<p class=muted>Change: difference to the baseline. Negative is less memory.</p>")
    yield section("Comparison", wide(table(titles, [[row[at] for at in kept] for row in texts])), *notes)


def _notes(source: AnswerSource, comparison: CompareAnswer) -> Iterator[str]:
    runs: list[RunAnswer] = [source(f"/runs/{row['run']}") for row in comparison["rows"]]
    rows = [(run["name"], run["note"]) for run in runs if run["note"]]
    if rows:
        yield section("Notes", table(("run", "note"), rows))


def _differences(comparison: CompareAnswer) -> Iterator[str]:
    names = [row["name"] for row in comparison["rows"]]
    rows = [(one["name"], *(setting_text(value) for value in one["values"])) for one in comparison["differences"]]
    if rows:
        yield section("Settings that differ", wide(table(("setting", *names), rows)))


def _charts(source: AnswerSource, named: str) -> Iterator[str]:
    for name, title in FIGURES.items():
        found: dict[str, Any] = source(f"/compare/figures/{name}", runs=named, points=POINTS)
        if any(trace.get("x") is not None or trace.get("y") is not None for trace in found["figure"]["data"]):
            yield section(title, drawn(found["figure"], HEIGHT))
