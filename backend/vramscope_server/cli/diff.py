"""``vramscope diff A B``: memory by source line at the peaks of two runs or snapshot files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text
from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import amount, count
from vramscope_server.answers.compare import CategoryDifference, ComparedSide, SiteDifference, SitesAnswer, SitesRest
from vramscope_server.answers.shared_parts import Moment
from vramscope_server.cli.client import Failure, ask, id_of, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.format import ABSENT, plain
from vramscope_server.cli.progress import Bar
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.cli.trace_source import is_file, of_file, of_run

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

SHOWN: Final = 25
_COLUMNS: Final = (
    Column("LINE"),
    Column("FUNCTION", needed=2),
    Column("MODULE", needed=3),
    Column("FOR", needed=1),
    Column("A", number=True),
    Column("B", number=True),
    Column("DIFFERENCE", number=True),
)


class _LocalSide(Moment):
    """A snapshot file or a fetched recording at its peak."""

    allocated_bytes: int
    peak_bytes: int
    name: str
    stacks: bool


class _LocalAnswer(TypedDict):
    """Answer of ``GET /compare/sites``, as far as it is known without a server."""

    a: _LocalSide
    b: _LocalSide
    difference_bytes: int
    categories: list[CategoryDifference]
    rows: list[SiteDifference]
    left_out: SitesRest


def show(server: str, as_json: bool, a: str, b: str) -> None:
    """Print source lines by difference, or the answer of GET /compare/sites as JSON. Raises client.Failure."""
    answer: SitesAnswer | _LocalAnswer
    if is_file(a) or is_file(b):
        answer = _locally(server, a, b)
    else:
        words = [id_of(server, run) if not run.strip() else run for run in (a, b)]
        answer = ask(server, "/compare/sites", a=words[0], b=words[1])
    if as_json:
        print_json(answer)
        return
    out = console()
    for label, one, name in (("A", answer["a"], a), ("B", answer["b"], b)):
        out.print(Text(f"{label}: {plain(one.get('name') or name)}, {amount(one['allocated_bytes'])} {_moment(one)}"))
    out.print(Text(f"B has {_more(answer['difference_bytes'])}.", style="bold"))
    rows = [row for row in answer["rows"] if row["difference_bytes"]][:SHOWN]
    if not rows:
        out.print("No difference by source line.")
        return
    print_table(out, _COLUMNS, [_cells(row) for row in rows])
    sites = len(answer["rows"]) + answer["left_out"]["sites"]
    rest = answer["difference_bytes"] - sum(row["difference_bytes"] for row in rows)
    if sites > len(rows):
        out.print(Text(f"{count(sites - len(rows))} other source lines: {_signed(rest)}.", style="dim"))
    for one in (answer["a"], answer["b"]):
        if not one["stacks"]:
            out.print(Text("One of them has no stacks: its rows are phases.", style="yellow"))
            break


def _locally(server: str, a: str, b: str) -> _LocalAnswer:
    """Compare snapshot files and fetched recordings locally. Nothing is uploaded."""
    from vramscope_server.analysis.diff.by_line import ComparedPeak, difference
    from vramscope_server.analysis.diff.holdings import peak_allocations_of

    made = []
    for target in (a, b):
        trace = _fullest(of_file(Path(target)), target) if is_file(target) else of_run(server, target)
        try:
            with Bar("computing allocations at the peak"):
                made.append((trace, peak_allocations_of(trace)))
        except (ArithmeticError, LookupError, ValueError) as fault:  # events that contradict each other
            words = f"inconsistent events ({type(fault).__name__})"
            raise Failure(f"{plain(target)}: {words}", BAD_ARGUMENTS) from None
    changes = difference(made[0][1], made[1][1])

    def side(peak: ComparedPeak, trace: Trace, target: str) -> _LocalSide:
        name = Path(target).name if is_file(target) else target
        return {**peak, "name": name, "stacks": len(trace.stacks) > 0}

    return {
        "a": side(changes["a"], made[0][0], a),
        "b": side(changes["b"], made[1][0], b),
        "difference_bytes": changes["difference_bytes"],
        "categories": changes["categories"],
        "rows": changes["rows"],
        "left_out": changes["left_out"],
    }


def _fullest(traces: list[Trace], target: str) -> Trace:
    """Return the trace of the device with the highest allocated memory."""
    from vramscope_server.analysis.timeline.curve import allocation_curve

    if not traces:
        raise Failure(f"{plain(target)} has no device.", BAD_ARGUMENTS)
    if len(traces) == 1:
        return traces[0]
    fullest = max(traces, key=lambda trace: int(allocation_curve(trace).allocated.max()))
    print(f"vramscope: {plain(target)}: using device {fullest.device}, the fullest of {len(traces)}.", file=sys.stderr)
    return fullest


def _moment(one: ComparedSide | _LocalSide) -> str:
    words = [f"step {count(one['step'])}" if one["step"] is not None else "", one["phase"] or "", one["module"] or ""]
    where = ", ".join(plain(part) for part in words if part)
    kind = (
        "at its peak"
        if one["allocated_bytes"] == one["peak_bytes"]
        else f"near its peak of {amount(one['peak_bytes'])}"
    )
    return f"{kind} ({where})" if where else kind


def _more(difference: int) -> str:
    if not difference:
        return "as much as A"
    return f"{amount(abs(difference))} {'more' if difference > 0 else 'less'} than A"


def _signed(difference: int) -> str:
    return f"{'+' if difference > 0 else '-' if difference < 0 else ''}{amount(abs(difference))}"


def _cells(row: SiteDifference) -> list[str | Text]:
    line = row["without_stack"] or row["file"]
    if row["file"]:
        numbers = [str(number) for number in (row["a_line"], row["b_line"]) if number is not None]
        line = f"{row['file']}:{' -> '.join(dict.fromkeys(numbers))}"
    style = "red" if row["difference_bytes"] > 0 else "green"
    return [
        plain(line or ""),
        plain(row["function"] or ""),
        plain(row["module"] or ""),
        row["category_words"] or "",
        amount(row["a_bytes"]) if row["a_allocations"] else ABSENT,
        amount(row["b_bytes"]) if row["b_allocations"] else ABSENT,
        Text(_signed(row["difference_bytes"]), style=style),
    ]
