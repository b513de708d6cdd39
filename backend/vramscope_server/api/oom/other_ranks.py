"""Runs of the same script that came through: what they took is a remedy that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.engine import Connection

from vramscope.protocol.oom_record import BlackBox
from vramscope_server.analysis.comparison.batch_size import BatchSize, batch_of
from vramscope_server.analysis.oom.remedies.remedy import OtherRun
from vramscope_server.api.run_window import the_run
from vramscope_server.store.run_queries import list_runs, run_in_full
from vramscope_server.store.series_reader import Run

MOST_OTHERS: Final = 3
SAME_WEIGHTS: Final = 0.01
"""two runs whose parameters differ by less are taken to train the same model"""


def other_runs(connection: Connection, run: Run, full: Mapping[str, Any], box: BlackBox) -> list[OtherRun]:
    """Runs of the project's, of the same script with the same weights, that came through with as much to do; the leanest first."""
    parameters = box.owned_bytes.get("parameters")
    if not parameters or not run["project"]:
        return []
    rows, _, _, _ = list_runs(connection, project=run["project"], state="finished", limit=200)
    found = []
    for row in rows:
        if row["run_id"] == run["id"] or not row["peak_reserved_bytes"] or row["techniques"] is None:
            continue
        other = the_run(connection, row["run_id"])
        if script_of(other) != script_of(run):
            continue
        theirs = (other["peak_categories"] or {}).get("parameters")
        if not theirs or abs(theirs - parameters) > SAME_WEIGHTS * parameters:
            continue
        as_much = did_as_much(batch_of(run_in_full(connection, other)), batch_of(full), box.batch_size)
        if as_much is not False:
            peak, ratio = row["peak_reserved_bytes"], _step_ratio(row, full)
            found.append(OtherRun(row["run_id"], row["name"], row["techniques"], peak, ratio, bool(as_much)))
    return sorted(found, key=lambda other: other.peak_reserved_bytes)[:MOST_OTHERS]


def _step_ratio(other: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """How many times as long a step took there, by the medians. None: one has no step, or they had not the same card."""
    theirs, ours = other["step_seconds_median"], own["step_seconds_median"]
    return theirs / ours if theirs and ours and other["device"] == own["device"] else None


def did_as_much(other: BatchSize, own: BatchSize, rows: int | None) -> bool | None:
    """Whether a step of the other run learned from as many samples, as long ones. None: it is not known.

    rows   of the batch that ran when memory ran out
    """
    # (What ran out may be a batch larger than any that the agent had seen in steps before.)
    needed = max(filter(None, (own.effective or own.samples, rows)), default=None)
    if needed is not None and other.effective is not None and other.effective < needed:
        return False
    if own.length is not None and other.length is not None and other.length < own.length:
        return False
    unknown = needed is None or other.effective is None or (own.length is None) != (other.length is None)
    return None if unknown else True


def script_of(run: Run) -> str | None:
    """The file that was run, without its folder and its words: another model may have as many parameters."""
    command = run["command"] or ()
    named = next((word for word in command if str(word).endswith((".py", ".ipynb"))), None)
    told = str(named or (command[0] if command else ""))
    return told.replace("\\", "/").rpartition("/")[2] or None
