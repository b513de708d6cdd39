"""``GET /compare``: runs in a table, each against the baseline, and the settings and surroundings of each."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope_server.store.places import Run
from vramscope_server.store.queries import run_in_full
from vramscope_server.store.rows import seconds

from .answers import answer
from .problems import InvalidParameter
from .windows import reader, the_run

router = APIRouter(tags=["compare"])

MAX_RUNS = 20
FEW_STEPS = 10


def compared_runs(connection: Connection, runs: str, base: str | None) -> list[Run]:
    """The runs named, baseline first, each once. Raises NotFound, InvalidParameter."""
    texts = [text.strip() for text in runs.split(",") if text.strip()]
    if base:
        texts.insert(0, base)
    found = {record["id"]: record for record in (the_run(connection, text) for text in texts[: MAX_RUNS + 2])}
    if not found or len(found) > MAX_RUNS:
        raise InvalidParameter(
            f"{len(found)} runs were named.", field="runs", seen=len(found), expected=f"1 to {MAX_RUNS} runs"
        )
    return list(found.values())


@router.get("/compare", summary="Runs against a baseline")
def get_compare(
    request: Request,
    runs: Annotated[str, Query(description="runs, separated by commas")],
    base: Annotated[str | None, Query(description="the one to compare with; the first when not given")] = None,
) -> Response:
    """``rows`` in the given order, baseline first; ``warnings`` where they are not quite comparable.

    ``settings``: everything known of configuration, allocator and surroundings, one value for each run, null where it has
    none; ``differences``: those of them in which the runs differ.
    """
    with reader(request.app.state.house) as connection:
        full = [(record, run_in_full(connection, record)) for record in compared_runs(connection, runs, base)]
    baseline = full[0][0]
    settings = _settings([told for _, told in full])
    return answer(
        {
            "rows": [_row(record, baseline) for record, _ in full],
            "warnings": _warnings([told for _, told in full]),
            "differences": [one for one in settings if any(value != one["values"][0] for value in one["values"])],
            "settings": settings,
        }
    )


def _row(run: Run, baseline: Run) -> dict[str, Any]:
    saved = ratio = None
    if run["peak_allocated_bytes"] is not None and baseline["peak_allocated_bytes"]:
        saved = 1 - run["peak_allocated_bytes"] / baseline["peak_allocated_bytes"]
    if run["step_median_ns"] and baseline["step_median_ns"]:
        ratio = run["step_median_ns"] / baseline["step_median_ns"]
    return {
        "run": run["id"],
        "name": run["name"],
        "techniques": None,
        "peak_allocated_bytes": run["peak_allocated_bytes"],
        "peak_reserved_bytes": run["peak_reserved_bytes"],
        "saved_fraction": saved,
        "step_time_ratio": ratio,
        "step_seconds_median": seconds(run["step_median_ns"]),
        "fragmentation_fraction": run["fragmentation_fraction"],
        **{name: run[name] for name in ("leaks", "leaked_bytes", "worst_leak", "graphs_alive")},
        "steps": run["steps"],
        "state": run["state"],
    }


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


def _warnings(runs: list[dict[str, Any]]) -> list[str]:
    said = []
    facts = [_facts(run) for run in runs]
    for name, words in (
        ("device", "different devices"),
        ("world_size", "different numbers of ranks"),
        ("torch", "different versions of PyTorch"),
    ):
        values = dict.fromkeys(str(fact[name]) for fact in facts if fact[name] is not None)
        if len(values) > 1:
            said.append(f"They ran on {words}: {', '.join(values)}.")
    batch = {name for fact in facts for name in fact if name.startswith("config.") and "batch" in name.lower()}
    for name in sorted(batch):
        values = dict.fromkeys(str(fact.get(name)) for fact in facts)
        if len(values) > 1:
            said.append(f"{name.removeprefix('config.')} differs: {', '.join(values)}.")
    for run in runs:
        if run["state"] == "running":
            said.append(f"{run['name']} still runs: its peak may rise.")
        elif run["state"] in ("failed", "lost"):
            said.append(f"{run['name']} is {run['state']}: its peak may not be what a whole run would have had.")
        if (run["steps"] or 0) < FEW_STEPS:
            said.append(f"{run['name']} has only {run['steps'] or 0} steps: its median step time says little.")
        if any(event["kind"] == "foreign_reset" for event in run["events"]):
            said.append(f"In {run['name']} somebody else reset the peak counters: see its events.")
    return said
