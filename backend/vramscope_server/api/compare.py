"""``GET /compare``: runs beside a baseline, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope_server.analysis.comparison.aggregate import groups_by, with_groups, with_repeats
from vramscope_server.analysis.comparison.export import as_csv, as_text
from vramscope_server.analysis.comparison.rows import Row, chip_of, compared
from vramscope_server.answers.compare import CompareAnswer, CompareRow, CompareRowTogether, Setting
from vramscope_server.answers.run_detail import RunInFull
from vramscope_server.api.problems import InvalidParameter, NotFound
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.run_queries import UnknownRun, find_run
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["compare"])

MAX_RUNS = 50

Runs = Annotated[str, Query(description="Runs, separated by commas.")]
Base = Annotated[str | None, Query(description="Baseline; by default the first run.")]
GroupBy = Annotated[
    str | None,
    Query(
        description="Setting whose values form the groups, as `tags` or `config.lr`; by default repeats of one configuration "
        "are a group."
    ),
]
_MEDIA = {"markdown": "text/markdown", "csv": "text/csv", "latex": "application/x-latex"}


def compared_runs(connection: Connection, runs: str, base: str | None) -> list[StoredRun]:
    """Runs of a request, baseline first, each once. Raises NotFound, InvalidParameter."""
    texts = list(dict.fromkeys(text.strip() for text in runs.split(",") if text.strip()))
    first = [_baseline(connection, base.strip())] if base and base.strip() else []
    named = [require_run(connection, text) for text in texts[: MAX_RUNS + 1]]
    found = {record.id: record for record in first + named}
    if not found or len(found) > MAX_RUNS:
        seen = max(len(found), len(texts))
        raise InvalidParameter(
            f"{seen} runs were requested.", field="runs", seen=seen, expected=f"1 to {MAX_RUNS} runs"
        )
    return list(found.values())


def _baseline(connection: Connection, text: str) -> StoredRun:
    try:
        return find_run(connection, text)
    except UnknownRun as unknown:
        raise NotFound(
            f"Baseline {text[:200]!r} not found: it was deleted, or never existed here. Choose another one.",
            field="base",
            seen=text[:200],
            suggestions=unknown.suggestions,
        ) from None


@router.get("/compare", summary="Compare runs with a baseline", responses=answers_with(CompareAnswer))
def get_compare(request: Request, runs: Runs, base: Base = None, group: GroupBy = None) -> Response:
    """The baseline comes first, then the others in the order of ``runs``. Each row names the reasons why it is not fully
    comparable.
    """
    full = _in_full(request, runs, base)
    settings = _settings(full)
    rows, together = _grouped(full, settings, group)
    return answer(
        CompareAnswer(
            rows=cast("list[CompareRow]", rows),
            together=cast("list[CompareRowTogether]", together),
            warnings=[f"{row['name']}: {reason['text']}." for row in rows for reason in row["reasons"]],
            differences=[one for one in settings if any(value != one["values"][0] for value in one["values"])],
            settings=settings,
        )
    )


@router.get(
    "/compare/table",
    summary="Comparison as text",
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in _MEDIA.values()}, "description": "the table"}},
)
def get_table(
    request: Request,
    runs: Runs,
    base: Base = None,
    form: Annotated[
        Literal["markdown", "csv", "latex"], Query(alias="format", description="Format of the text.")
    ] = "markdown",
    repeats: Annotated[
        Literal["together", "each"], Query(description="Repeats of one configuration in one row, or each in its own.")
    ] = "together",
    group: GroupBy = None,
) -> Response:
    """Markdown and LaTeX contain MiB and notes. CSV contains bytes, seconds and fractions, always with a line for each run."""
    full = _in_full(request, runs, base)
    rows, together = _grouped(full, _settings(full), group)
    text = as_csv(rows, together) if form == "csv" else as_text(rows if repeats == "each" else together, form)
    return Response(text, headers={"Cache-Control": "no-store"}, media_type=f"{_MEDIA[form]}; charset=utf-8")


def _grouped(full: Sequence[RunInFull], settings: Sequence[Setting], group: str | None) -> tuple[list[Row], list[Row]]:
    """Rows of the runs and rows of their groups. Raises InvalidParameter for a setting that no run has."""
    rows = compared(full)
    if not group:
        return with_repeats(full, rows)
    values = next((setting["values"] for setting in settings if setting["name"] == group), None)
    if values is None:
        raise InvalidParameter(
            "No run has this setting.",
            field="group",
            seen=group[:200],
            expected=", ".join(setting["name"] for setting in settings)[:400],
        )
    return with_groups(rows, groups_by([_as_text(value) for value in values]))


def _as_text(value: Any) -> str:
    """Value of a setting as text; equal values have equal texts."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_full(request: Request, runs: str, base: str | None) -> list[RunInFull]:
    with reader(request) as connection:
        return [run_in_full(connection, record) for record in compared_runs(connection, runs, base)]


def _facts(run: RunInFull) -> dict[str, Any]:
    first: Mapping[str, Any] = run["ranks"][0] if run["ranks"] else {}
    return {
        "project": run["project"],
        "tags": sorted(run["tags"]),
        "techniques": None if run["techniques"] is None else sorted(chip_of(one) for one in run["techniques"]),
        "device": run["device"],
        "capacity_bytes": run["capacity_bytes"],
        "world_size": run["world_size"],
        "host": first.get("host"),
        "framework": run["framework"],
        "torch": first.get("torch"),
        "cuda": first.get("cuda"),
        "driver": first.get("driver"),
        "python": first.get("python"),
        "agent_version": first.get("agent_version"),
        "allocator_settings": run["allocator_settings"],
        "git_commit": run["git_commit"],
        "command": " ".join(run["command"]) or None,
    } | {f"config.{name}": value for name, value in run["config"].items()}


def _settings(runs: Sequence[RunInFull]) -> list[Setting]:
    """Name of each setting, and its value in each run."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for fact in facts for name in fact)
    return [Setting(name=name, values=[fact.get(name) for fact in facts]) for name in names]
