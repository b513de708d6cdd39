"""``vramscope report``: a run, a comparison, or the runs of a job as one HTML file that needs no server, to send or to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from vramscope_server.analysis.number_format import amount, count, percent
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.oom import OomList
from vramscope_server.answers.run_detail import RunAnswer, RunInFull
from vramscope_server.cli import job_report
from vramscope_server.cli.client import Failure, Source, ask, path_of
from vramscope_server.cli.comparison_report import comparison_report
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.oom import explained
from vramscope_server.cli.show import CATEGORY_NAMES, advice_of, facts_of, recorded_of
from vramscope_server.figures.html_file import drawn, escaped, html_file, section, table

FIGURES: Final = {
    "stack": "Memory at the peak of each step",
    "floor": "Memory after each step",
    "loss": "Loss",
}
HEIGHT: Final = 340
POINTS: Final = 600


def run_command(server: str, runs: Sequence[str], job: str, out: str | None) -> None:
    """The command: of runs, or of a job. Raises client.Failure, and typer.BadParameter."""
    from typer import BadParameter

    if bool(runs) == bool(job):
        raise BadParameter("give either runs or --job")
    if job and out is None:
        job_report.show(server, job)
    else:
        write(server, runs, out, job)


def write(server: str, runs: Sequence[str], out: str | None, job: str = "") -> None:
    """Write the file and print its name. Several runs are compared with the first one. Raises client.Failure."""
    if job:
        text, name = job_report.job_report(server, job), _file_name(f"job-{job}")
    elif len(runs) > 1:
        text, name = comparison_report(server, runs), "comparison"
    else:
        detail: RunAnswer = ask(server, f"/runs/{path_of(server, runs[0])}")
        text, name = report(server, detail), _file_name(detail["name"])
    path = Path(out or f"{name}.html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise Failure(f"--out {path}: {fault.strerror}", BAD_ARGUMENTS) from fault
    print(f"{path} ({amount(path.stat().st_size)})")


def report(server: Source, detail: RunAnswer) -> str:
    """HTML of a run: what is wrong, the peak, advice, and the charts. Raises client.Failure."""
    leaks: LeakReport = ask(server, f"/runs/{detail['run_id']}/leaks")
    errors: OomList = ask(server, f"/runs/{detail['run_id']}/oom")
    recorded = recorded_of(server, detail)
    return html_file(
        f"{detail['name']} ({detail['state']})",
        [
            *_errors(server, detail, errors),
            *_leaks(leaks),
            *_advice(detail, recorded),
            section("Run", table(("", ""), facts_of(detail, leaks))),
            *_peak(detail),
            *_charts(server, detail),
        ],
    )


def _errors(server: Source, detail: RunInFull, errors: OomList) -> Iterator[str]:
    if detail["error_type"]:
        yield f"<p class=say>{escaped(detail['error_type'])}: {escaped(detail['error_line'] or '')}</p>"
    if errors["vanished"] is not None:
        lost = errors["vanished"]
        yield section("Lost", f"<p class=say>{escaped(lost['sentence'])}</p><p>{escaped(lost['first_aid'])}</p>")
    if errors["fatal"] is None:
        return
    error = explained(server, errors["fatal"])
    survived = "<p>The run survived it.</p>" if error["survived"] else ""
    rows = [(one["what"], amount(one["saves_bytes"]), one["cost"]) for one in error["remedies"]]
    yield section(
        "Out of memory",
        f"<p class=say>{escaped(error['sentence'])}</p>{survived}",
        table(("remedy", "saves", "cost"), rows),
    )


def _leaks(leaks: LeakReport) -> Iterator[str]:
    rows = [
        (
            leak["name"],
            ""
            if leak["file"] is None
            else ":".join(str(one) for one in (leak["file"], leak["line"]) if one is not None),
            amount(leak["held_bytes"]),
            amount(leak["growth_bytes_per_step"]),
            leak["advice"],
        )
        for leak in leaks["leaks"]
    ]
    listed = table(("holder", "line", "retains", "growth per step", "fix"), rows) if rows else ""
    yield section("Leaks", f"<p>{escaped(leaks['verdict']['sentence'])}</p>", listed)


def _advice(detail: RunInFull, recorded: AnatomyAnswer | None) -> Iterator[str]:
    sentences = advice_of(detail, recorded)
    if sentences:
        yield section("Advice", f"<ul>{''.join(f'<li>{escaped(one)}</li>' for one in sentences)}</ul>")


def _peak(detail: RunInFull) -> Iterator[str]:
    peak_bytes, parts = detail["peak_allocated_bytes"], detail["peak_categories"]
    if not peak_bytes or not parts:
        return
    known = [(name, value) for name, value in parts.items() if isinstance(value, int)]
    rows = [
        (CATEGORY_NAMES.get(name, name), amount(value), percent(value / peak_bytes))
        for name, value in sorted(known, key=lambda part: -part[1])
    ]
    step = "" if detail["peak_step"] is None else f" in step {count(detail['peak_step'])}"
    yield section(f"Peak of {amount(peak_bytes)}{step}", table(("category", "allocated", "share"), rows))


def _charts(server: Source, detail: RunInFull) -> Iterator[str]:
    for name, title in FIGURES.items():
        found: dict[str, Any] = ask(server, f"/runs/{detail['run_id']}/figures/{name}", points=POINTS)
        if any(trace.get("x") is not None or trace.get("y") is not None for trace in found["figure"]["data"]):
            yield section(title, drawn(found["figure"], HEIGHT))


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.") or "run"
