"""``vramscope report --job ID``: all runs of a cluster's job in one table, on the terminal or as an HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from vramscope_server.analysis.number_format import amount, count, percent
from vramscope_server.analysis.peak_bound import at_least, peak_bound
from vramscope_server.answers.jobs import ClusterJob
from vramscope_server.answers.oom import OomList
from vramscope_server.answers.runs import ListedRun
from vramscope_server.cli.client import Failure, ask
from vramscope_server.cli.exit_codes import NOT_FOUND
from vramscope_server.cli.format import ABSENT, STATE_STYLE, plain
from vramscope_server.cli.ls import runs_of
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.figures.html_file import escaped, html_file, section, table, wide

COLUMNS: Final = (
    Column("RUN"),
    Column("STATE"),
    Column("TASK", needed=3),
    Column("DEVICE", needed=4),
    Column("RANKS", needed=6, number=True),
    Column("STEPS", needed=5, number=True),
    Column("PEAK ALLOCATED", needed=2, number=True),
    Column("PEAK RESERVED", number=True),
    Column("OF THE DEVICE", number=True),
    Column("LEAKS", needed=1, number=True),
)


@dataclass(frozen=True)
class JobRun:
    """A run of the job."""

    row: ListedRun
    cause: str | None
    """What its last out-of-memory error says; None: it had none."""

    @property
    def cells(self) -> list[str]:
        """Texts in the order of COLUMNS."""
        row = self.row
        reserved, capacity = peak_bound(row, "peak_reserved"), row["capacity_bytes"]
        share = percent(reserved.bytes / capacity) if reserved.bytes is not None and capacity else ABSENT
        return [
            plain(row["name"]),
            row["state"],
            plain(next((job["array"] for job in row["jobs"] if job["array"]), "")),
            plain(row["device"] or ABSENT),
            count(row["world_size"], ABSENT),
            count(row["steps"], ABSENT),
            peak_bound(row, "peak_allocated").cell(ABSENT),
            reserved.cell(ABSENT),
            share if share == ABSENT else at_least(share, reserved.is_lower),
            count(row["leaks"], ABSENT),
        ]

    @property
    def problems(self) -> list[str]:
        """What went wrong in it, in sentences."""
        row = self.row
        name, found = plain(row["name"]), []
        if self.cause is not None:
            found.append(f"{name} ran out of memory: {plain(self.cause)}")
        elif row["error_type"]:
            found.append(f"{name} failed: {plain(row['error_type'])}: {plain(row['error_line'] or '')}")
        if row["leaks"]:
            found.append(
                f"{name} leaks: {amount(row['leaked_bytes'])} are retained. See: vramscope leaks {row['run_id']}"
            )
        return found


def job_report(server: str, job: str) -> str:
    """HTML of the job. Raises client.Failure."""
    runs = _runs(server, job)
    problems = "".join(f"<li>{escaped(problem)}</li>" for run in runs for problem in run.problems)
    titles = [column.title.capitalize() for column in COLUMNS]
    facts = [(name, value) for name, value in _facts(runs[0].row["jobs"], job)]
    return html_file(
        headline(job, runs),
        [
            section("Problems", f"<ul>{problems}</ul>") if problems else "",
            section("Runs", wide(table(titles, [run.cells for run in runs]))),
            section("Job", table(("", ""), facts)) if facts else "",
        ],
    )


def show(server: str, job: str) -> None:
    """Print the job. Raises client.Failure."""
    runs = _runs(server, job)
    out = console()
    out.print(Text(headline(job, runs), style="bold"))
    rows: list[list[str | Text]] = [[*run.cells] for run in runs]
    for row, run in zip(rows, runs, strict=True):
        row[1] = Text(run.row["state"], style=STATE_STYLE.get(run.row["state"], "default"))
    print_table(out, COLUMNS, rows)
    for run in runs:
        for problem in run.problems:
            out.print(Text(problem, style="red"))


def headline(job: str, runs: Sequence[JobRun]) -> str:
    """``Job 4242: 3 runs, 2 finished, 1 failed``."""
    states = Counter(run.row["state"] for run in runs)
    number = f"{count(len(runs))} run{'s' if len(runs) > 1 else ''}"
    return ", ".join([f"Job {plain(job)}: {number}", *(f"{count(n)} {state}" for state, n in states.most_common())])


def _runs(server: str, job: str) -> list[JobRun]:
    """Runs of the job in the order of their start. Raises Failure: 3 there is none."""
    rows, _ = runs_of(server, 0, job=job)
    if not rows:
        raise Failure(f"no run belongs to job {plain(job)!r}.", NOT_FOUND)
    rows.sort(key=lambda row: row["started_seconds"] or 0)
    return [JobRun(row, _cause(server, row)) for row in rows]


def _cause(server: str, row: ListedRun) -> str | None:
    if not row["oom_records"] and not row["out_of_memory"]:
        return None
    errors: OomList = ask(server, f"/runs/{row['run_id']}/oom")
    return None if errors["fatal"] is None else str(ask(server, f"/oom/{errors['fatal']}", wait_seconds=0)["sentence"])


def _facts(jobs: Sequence[ClusterJob], job: str) -> list[tuple[str, str]]:
    """What the manager says of the job. Node and task are those of one process, and left out."""
    found = next((one for one in jobs if job in (one["id"], one["pod"]) or (one["array"] or "").startswith(job)), None)
    if found is None:
        return []
    named = [
        ("manager", found["manager"]),
        ("name", found["name"]),
        ("partition", found["partition"]),
        ("namespace", found["namespace"]),
        ("nodes", found["nodes"]),
        ("host memory limit", None if found["memory_limit_bytes"] is None else amount(found["memory_limit_bytes"])),
    ]
    return [(name, plain(value)) for name, value in named if value]
