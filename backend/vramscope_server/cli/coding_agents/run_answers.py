"""Short answers about a run: what a coding agent needs to change the program, with the address of the page that shows more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.peak_bound import peak_bound
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.oom import OomList
from vramscope_server.answers.other_processes import OtherProcessAtError
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.answers.runs import RunList
from vramscope_server.cli.client import address, ask, path_of
from vramscope_server.cli.coding_agents.quoted import NOTICE, quoted, said
from vramscope_server.cli.format import process_name
from vramscope_server.cli.oom import MOST_OTHERS, explained
from vramscope_server.cli.trace_source import newest_recording

MOST_LEAKS: Final = 8
MOST_ROWS: Final = 10
"""Lines and modules in an answer, the largest first."""
MOST_FRAMES: Final = 6


class Place(TypedDict):
    """A source line of the training program."""

    file: str | None
    line: int | None
    function: str | None


class NamedMemory(TypedDict):
    """Memory with a name."""

    name: str | None
    bytes: int
    in_words: str


class ListedRun(TypedDict):
    """A run in the list."""

    run_id: str
    state: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peaks_are_lower_bounds: bool
    device_bytes: int | None
    steps: int | None
    leaks: int | None
    out_of_memory_errors: int | None
    from_run: dict[str, str | None]
    page: str


class Runs(TypedDict):
    """The newest runs."""

    notice: str
    total: int
    runs: list[ListedRun]


class Summary(TypedDict):
    """A run, its peak and what it is made of."""

    notice: str
    run_id: str
    state: str
    steps: int | None
    device_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peaks_are_lower_bounds: bool
    peak_in_words: str
    peak_step: int | None
    peak_parts: list[NamedMemory]
    leak_verdict: str
    out_of_memory_errors: int
    pitfalls: list[dict[str, Any]]
    from_run: dict[str, Any]
    page: str


class Finding(TypedDict):
    """A leak: what retains memory, where, and the change."""

    kind: str
    retained_bytes: int
    growth_bytes_per_step: float | None
    peak_effect_bytes: int | None
    change: str
    only_a_note: bool
    from_run: dict[str, Any]


class Leaks(TypedDict):
    """Leaks of a run, the worst first."""

    notice: str
    run_id: str
    level: str
    verdict: str
    not_scanned: list[str]
    findings: list[Finding]
    page: str


class Remedy(TypedDict):
    """A change that avoids an error."""

    change: str
    saves_bytes: int | None
    enough: bool | None
    shown_by: str
    cost: str


class OutOfMemory(TypedDict):
    """Why a run ran out of memory, the line to change, and changes."""

    notice: str
    run_id: str
    cause: str | None
    explanation: str
    first_aid: str
    survived: bool | None
    step: int | None
    phase: str | None
    requested_bytes: int | None
    missing_bytes: int | None
    remedies: list[Remedy]
    memory: list[NamedMemory]
    from_run: dict[str, Any]
    page: str


class Anatomy(TypedDict):
    """What a recorded step's memory is made of at its peak."""

    notice: str
    run_id: str
    step: int | None
    phase: str | None
    allocated_bytes: int
    categories: list[NamedMemory]
    advice: list[dict[str, Any]]
    pending: bool
    """True while allocator settings are replayed: advice on them may follow."""
    from_run: dict[str, list[NamedMemory]]
    page: str


def runs(server: str, query: str, limit: int) -> Runs:
    """Return the newest runs that match. Raises client.Failure."""
    listed: RunList = ask(server, "/runs", query=query[:500], limit=limit)
    rows = [
        ListedRun(
            run_id=row["run_id"],
            state=row["state"],
            peak_allocated_bytes=peak_bound(row, "peak_allocated").bytes,
            peak_reserved_bytes=peak_bound(row, "peak_reserved").bytes,
            peaks_are_lower_bounds=peak_bound(row, "peak_allocated").is_lower,
            device_bytes=row["capacity_bytes"],
            steps=row["steps"],
            leaks=row["leaks"],
            out_of_memory_errors=row["out_of_memory"],
            from_run={
                "name": quoted(row["name"]),
                "project": quoted(row["project"]),
                "error": quoted(row["error_line"]),
            },
            page=f"{address(server)}/runs/{row['run_id']}",
        )
        for row in listed["runs"]
    ]
    return Runs(notice=NOTICE, total=listed["total"], runs=rows)


def summary(server: str, run: str) -> Summary:
    """Return a run's peak and its parts. Raises client.Failure."""
    path = path_of(server, run)
    detail: RunAnswer = ask(server, f"/runs/{path}")
    leaks: LeakReport = ask(server, f"/runs/{path}/leaks")
    errors: OomList = ask(server, f"/runs/{path}/oom")
    peak, device = peak_bound(detail, "peak_allocated"), detail["capacity_bytes"]
    categories: Mapping[str, object] = {}
    if detail["peak_categories"] is not None:
        categories = detail["peak_categories"]
    return Summary(
        notice=NOTICE,
        run_id=detail["run_id"],
        state=detail["state"],
        steps=detail["steps"],
        device_bytes=device,
        peak_allocated_bytes=peak.bytes,
        peak_reserved_bytes=peak_bound(detail, "peak_reserved").bytes,
        peaks_are_lower_bounds=peak.is_lower,
        peak_in_words=f"{peak.words} of {amount(device, 'unknown')}",
        peak_step=detail["peak_step"],
        peak_parts=sorted(
            (_named(name, size) for name, size in categories.items() if isinstance(size, int) and size),
            key=lambda part: -part["bytes"],
        ),
        leak_verdict=said(leaks["verdict"]["sentence"]),
        out_of_memory_errors=len(errors["errors"]),
        pitfalls=[
            {
                "what": said(one["text"]),
                "change": said(one["advice"]),
                "from_run": _place(one["file"], one["line"], None),
            }
            for one in detail["findings"] or []
        ],
        from_run={
            "name": quoted(detail["name"]),
            "project": quoted(detail["project"]),
            "error_type": quoted(detail["error_type"]),
            "error": quoted(detail["error_line"]),
        },
        page=f"{address(server)}/runs/{detail['run_id']}",
    )


def leaks(server: str, run: str) -> Leaks:
    """Return the verdict about leaks, and findings with lines and changes. Raises client.Failure."""
    report: LeakReport = ask(server, f"/runs/{path_of(server, run)}/leaks")
    return Leaks(
        notice=NOTICE,
        run_id=report["run_id"],
        level=report["verdict"]["level"],
        verdict=said(report["verdict"]["sentence"]),
        not_scanned=[said(scan["not_scanned"]) for scan in report["scans"] if scan["not_scanned"]],
        findings=[
            Finding(
                kind=leak["kind_words"],
                retained_bytes=leak["held_bytes"],
                growth_bytes_per_step=leak["growth_bytes_per_step"],
                peak_effect_bytes=leak["peak_effect_bytes"],
                change=said(leak["advice"]),
                only_a_note=leak["note"],
                from_run={
                    "holder": quoted(leak["name"]),
                    "chain": [quoted(link, 200) for link in leak["chain"]],
                    **_place(leak["file"], leak["line"], leak["function"]),
                    "source_line": quoted(leak["source"]),
                    "changed_lines": [quoted(line) for line in leak["fixed"]],
                },
            )
            for leak in report["leaks"][:MOST_LEAKS]
        ],
        page=f"{address(server)}/runs/{report['run_id']}/leaks",
    )


def out_of_memory(server: str, run: str) -> OutOfMemory | None:
    """Explain the error that ended a run, or its newest one; None where it had none. Raises client.Failure."""
    listed: OomList = ask(server, f"/runs/{path_of(server, run)}/oom")
    if listed["fatal"] is None:
        return None
    error = explained(server, listed["fatal"])
    culprit = error["culprit"]
    own = [frame for frame in error["stack"] if frame["own"]]
    return OutOfMemory(
        notice=NOTICE,
        run_id=error["run_id"],
        cause=error["cause"],
        explanation=said(error["sentence"]),
        first_aid=said(error["first_aid"]),
        survived=error["survived"],
        step=None if error["step"] is None else error["step"] + 1,
        phase=error["phase"],
        requested_bytes=error["asked_bytes"],
        missing_bytes=error["shortfall_bytes"],
        remedies=[
            Remedy(
                change=said(row["what"]),
                saves_bytes=row["saves_bytes"],
                enough=row["enough"],
                shown_by=f"{row['source']}: {said(row['source_words'])}",
                cost=said(row["cost"]),
            )
            for row in error["remedies"]
        ],
        memory=[_named(part["name"], part["bytes"]) for part in error["by_category"]],
        from_run={
            "line_to_change": {**_place(culprit["file"], culprit["line"], None), "module": quoted(culprit["module"])},
            "stack": [_place(frame["file"], frame["line"], frame["function"]) for frame in own[:MOST_FRAMES]],
            "leaks": [_named_leak(leak) for leak in error["leaks"][:MOST_LEAKS]],
            "other_processes": [_other_process(row) for row in (error["neighbours"] or [])[:MOST_OTHERS]],
            "message": quoted(error["text"], 1_200),
        },
        page=f"{address(server)}/runs/{error['run_id']}/oom",
    )


def _other_process(row: OtherProcessAtError) -> dict[str, Any]:
    """Another process on the device. Its name comes from its command line."""
    return {
        "name": quoted(process_name(row)),
        "bytes": row["used_bytes"],
        "bytes_before": row["before_bytes"],
        "seconds_before": row["before_seconds"],
    }


def anatomy(server: str, run: str) -> Anatomy:
    """Return what the newest recorded step's memory is made of at its peak. Raises client.Failure."""
    newest = newest_recording(server, run, "read")
    answer: AnatomyAnswer = ask(server, f"/recordings/{newest}/anatomy")
    detail: RunAnswer = ask(server, f"/runs/{path_of(server, run)}")
    return Anatomy(
        notice=NOTICE,
        run_id=detail["run_id"],
        step=answer["step"],
        phase=answer["phase"],
        allocated_bytes=answer["allocated_bytes"],
        categories=[_named(part["category"], part["bytes"]) for part in answer["categories"]],
        advice=[
            {
                "change": said(row["sentence"]),
                "saves_bytes": row["saves_bytes"],
                "shown_by": said(row["source"]),
                "from_run": _place(row["file"], row["line"], None),
            }
            for row in answer["advice"][:MOST_ROWS]
        ],
        pending=answer.get("pending", False),  # an older server has no such field
        from_run={"modules": [_named(quoted(part["module"]), part["bytes"]) for part in answer["modules"][:MOST_ROWS]]},
        page=f"{address(server)}/runs/{detail['run_id']}/anatomy",
    )


def _named(name: str | None, size: int) -> NamedMemory:
    return NamedMemory(name=name, bytes=size, in_words=amount(size))


def _named_leak(leak: Any) -> dict[str, Any]:
    return {
        "holder": quoted(leak["name"]),
        "retained_bytes": leak["held_bytes"],
        **_place(leak["file"], leak["line"], None),
    }


def _place(file: str | None, line: int | None, function: str | None) -> Place:
    return Place(file=quoted(file), line=line, function=quoted(function))
