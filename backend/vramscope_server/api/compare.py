"""``GET /compare``: runs in a table, each against the baseline, and the settings and surroundings of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope_server.analysis.comparison.aggregate import with_repeats
from vramscope_server.analysis.comparison.export import as_csv, as_text
from vramscope_server.analysis.comparison.rows import compared
from vramscope_server.answers.compare import CompareAnswer
from vramscope_server.api.problems import InvalidParameter, NotFound
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader, the_run
from vramscope_server.api.schemas import answers_with
from vramscope_server.store.run_queries import UnknownRun, find_run, run_in_full
from vramscope_server.store.series_reader import Run

router = APIRouter(tags=["compare"])

MAX_RUNS = 50

Runs = Annotated[str, Query(description="runs, separated by commas")]
Base = Annotated[str | None, Query(description="the one to compare with; the first when not given")]
_MEDIA = {"markdown": "text/markdown", "csv": "text/csv", "latex": "application/x-latex"}


def compared_runs(connection: Connection, runs: str, base: str | None) -> list[Run]:
    """The runs named, baseline first, each once. Raises NotFound, InvalidParameter."""
    texts = list(dict.fromkeys(text.strip() for text in runs.split(",") if text.strip()))
    first = [_baseline(connection, base.strip())] if base and base.strip() else []
    named = [the_run(connection, text) for text in texts[: MAX_RUNS + 1]]
    found = {record["id"]: record for record in first + named}
    if not found or len(found) > MAX_RUNS:
        seen = max(len(found), len(texts))
        raise InvalidParameter(f"{seen} runs were named.", field="runs", seen=seen, expected=f"1 to {MAX_RUNS} runs")
    return list(found.values())


def _baseline(connection: Connection, text: str) -> Run:
    try:
        return find_run(connection, text)
    except UnknownRun as unknown:
        raise NotFound(
            f"There is no run {text[:200]!r} to be the baseline: it was deleted, or never was here. Choose another one.",
            field="base",
            seen=text[:200],
            suggestions=unknown.suggestions,
        ) from None


@router.get("/compare", summary="Runs against a baseline", responses=answers_with(CompareAnswer))
def get_compare(request: Request, runs: Runs, base: Base = None) -> Response:
    """``rows`` in the given order, baseline first, each with the ``reasons`` why it is not quite comparable.

    ``together``: the same with repeats of one configuration as one row: their number, means, and between what these lie.
    ``settings``: everything known of configuration, allocator and surroundings, one value for each run, null where it has
    none; ``differences``: those of them in which the runs differ.
    """
    full = _in_full(request, runs, base)
    rows, together = with_repeats(full, compared(full))
    settings = _settings(full)
    return answer(
        {
            "rows": rows,
            "together": together,
            "warnings": [f"{row['name']}: {reason['text']}." for row in rows for reason in row["reasons"]],
            "differences": [one for one in settings if any(value != one["values"][0] for value in one["values"])],
            "settings": settings,
        }
    )


@router.get(
    "/compare/table",
    summary="The same as text to take along",
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in _MEDIA.values()}, "description": "the table"}},
)
def get_table(
    request: Request,
    runs: Runs,
    base: Base = None,
    form: Annotated[
        Literal["markdown", "csv", "latex"], Query(alias="format", description="what it is written in")
    ] = "markdown",
    repeats: Annotated[
        Literal["together", "each"], Query(description="repeats of one configuration: in one row, or each in its own")
    ] = "together",
) -> Response:
    """Markdown and LaTeX for people, with notes below; CSV for programs: bytes, seconds, fractions, and always a line a run."""
    full = _in_full(request, runs, base)
    rows, together = with_repeats(full, compared(full))
    text = as_csv(rows, together) if form == "csv" else as_text(rows if repeats == "each" else together, form)
    return Response(text, headers={"Cache-Control": "no-store"}, media_type=f"{_MEDIA[form]}; charset=utf-8")


def _in_full(request: Request, runs: str, base: str | None) -> list[dict[str, Any]]:
    with reader(request.app.state.house) as connection:
        return [run_in_full(connection, record) for record in compared_runs(connection, runs, base)]


def _facts(run: dict[str, Any]) -> dict[str, Any]:
    first = run["ranks"][0] if run["ranks"] else {}
    return {
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


def _settings(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name and one value for each run."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for fact in facts for name in fact)
    return [{"name": name, "values": [fact.get(name) for fact in facts]} for name in names]
