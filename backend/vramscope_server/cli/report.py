"""``vramscope report``: a run, a comparison, or the runs of a job as one HTML file that needs no server, to send or to keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramscope_server.analysis.number_format import amount
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.cli import job_report
from vramscope_server.cli.client import Failure, ask, path_of, source_of
from vramscope_server.cli.compare import joined
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.oom import MOST_WAIT_SECONDS
from vramscope_server.reports.comparison_report import comparison_report
from vramscope_server.reports.run_report import run_report


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
        text, name = job_report.job_report(server, job), file_name(f"job-{job}")
    elif len(runs) > 1:
        text, name = comparison_report(source_of(server), joined(server, runs)), "comparison"
    else:
        detail: RunAnswer = ask(server, f"/runs/{path_of(server, runs[0])}")
        text, name = run_report(source_of(server), detail, MOST_WAIT_SECONDS), file_name(detail["name"])
    path = Path(out or f"{name}.html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise Failure(f"--out {path}: {fault.strerror}", BAD_ARGUMENTS) from fault
    print(f"{path} ({amount(path.stat().st_size)})")


def file_name(name: str) -> str:
    """Return a run's name as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.") or "run"
