"""Finished runs of the same script: their settings are measured remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.engine import Connection

from vramscope.protocol.oom_record import OomRecord
from vramscope_server.analysis.comparison.batch_size import BatchSize, batch_of
from vramscope_server.analysis.oom.remedies.remedy import OtherRun
from vramscope_server.api.requested_range import require_run
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.run_queries import list_runs
from vramscope_server.store.stored_rows import StoredRun

MOST_OTHERS: Final = 3
SAME_WEIGHTS: Final = 0.01
"""Two runs whose parameters differ by less are assumed to train the same model."""


def other_runs(connection: Connection, run: StoredRun, full: Mapping[str, Any], record: OomRecord) -> list[OtherRun]:
    """Finished runs of the project: same script, same weights, not less work, other techniques. The leanest comes first."""
    parameters = record.owned_bytes.get("parameters")
    if not parameters or not run.project:
        return []
    rows, _, _, _ = list_runs(connection, project=run.project, state="finished", limit=200)
    found = []
    for row in rows:
        if row["run_id"] == run.id or not row["peak_reserved_bytes"] or row["techniques"] is None:
            continue
        other = require_run(connection, row["run_id"])
        if script_of(other) != script_of(run):
            continue
        theirs = None if other.peak_categories is None else other.peak_categories.get("parameters")
        if not theirs or abs(theirs - parameters) > SAME_WEIGHTS * parameters:
            continue
        theirs_in_full = run_in_full(connection, other)
        as_much = did_as_much(batch_of(theirs_in_full), batch_of(full), record.batch_size)
        if as_much is not False and differs(theirs_in_full, full):
            peak, ratio = row["peak_reserved_bytes"], _step_ratio(row, full)
            found.append(OtherRun(row["run_id"], row["name"], row["techniques"], peak, ratio, bool(as_much)))
    return sorted(found, key=lambda other: other.peak_reserved_bytes)[:MOST_OTHERS]


def differs(other: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether the other run was trained in another way. If not, to train as it did is no remedy."""
    ways = [(sorted(one["chip"] for one in run["techniques"] or []), run["allocator_settings"]) for run in (other, own)]
    return ways[0] != ways[1]


def _step_ratio(other: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """Time of a step there relative to this run, by the medians. None: one has no step, or the devices differ."""
    theirs, ours = other["step_seconds_median"], own["step_seconds_median"]
    return theirs / ours if theirs and ours and other["device"] == own["device"] else None


def did_as_much(other: BatchSize, own: BatchSize, rows: int | None) -> bool | None:
    """Whether a step of the other run used as many samples of the same length. None: not known.

    rows   rows of the batch at the error
    """
    # The batch at the error may be larger than any in the steps before.
    needed = max(filter(None, (own.effective or own.samples, rows)), default=None)
    if needed is not None and other.effective is not None and other.effective < needed:
        return False
    if own.length is not None and other.length is not None and other.length < own.length:
        return False
    unknown = needed is None or other.effective is None or (own.length is None) != (other.length is None)
    return None if unknown else True


def script_of(run: StoredRun) -> str | None:
    """Name of the script without folder and arguments. Another script's model may have as many parameters."""
    command = run.command or ()
    named = next((word for word in command if str(word).endswith((".py", ".ipynb"))), None)
    script = str(named or (command[0] if command else ""))
    return script.replace("\\", "/").rpartition("/")[2] or None
