"""Out-of-memory errors of a run, which of them ended it, and the state of its other ranks; or a run without a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.engine import Connection
from typing_extensions import TypedDict

from vramscope.protocol import series
from vramscope.protocol.oom_record import MESSAGE_EVENT, SURVIVED_EVENT
from vramscope_server.analysis.oom.lost_run import lost_run
from vramscope_server.answers.oom import OomError, OomRank, Vanished
from vramscope_server.answers.run_detail import RunInFull
from vramscope_server.store.artifacts import StoredArtifact, list_artifacts
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.series_reader import UnknownRankDevice, find_rank_device, floats, load_columns
from vramscope_server.store.stored_rows import StoredRun

BYSTANDER_SECONDS: Final = 900.0
"""Time after the error in which a bystander belongs to it: a collective may wait so long (NCCL's watchdog: 600 s)."""
EARLY_SECONDS: Final = 1.0
"""The same before the error, for different clocks of two hosts."""
MOST_RANKS: Final = 1024
MOST_SAMPLED: Final = 64
"""Ranks without a record whose samples are read; 2 ms each."""
SAMPLED_SECONDS: Final = 60.0
"""Age up to which a sample describes a rank."""
_SAMPLED: Final = ("step", "phase", "allocated_bytes", "reserved_bytes", "device_used_bytes")
_LATER: Final = (MESSAGE_EVENT, SURVIVED_EVENT)


def errors_of(connection: Connection, run: StoredRun, full: RunInFull) -> list[OomError]:
    """Rows of the run's list of errors, by time."""
    later = {kind: {e["data"].get("record"): e for e in full["events"] if e["kind"] == kind} for kind in _LATER}
    skews = _skews(full)
    rows: list[OomError] = []
    for stored in list_artifacts(connection, run):
        if stored.kind != "oom":
            continue
        about: Mapping[str, Any] = stored.about
        message = later[MESSAGE_EVENT].get(stored.id)
        survived: bool | None = True if stored.id in later[SURVIVED_EVENT] else None
        if survived is None and (
            message is not None or full["state"] in ("failed", "lost") or about.get("seen_by") == "exception"
        ):
            survived = False
        elif survived is None and full["state"] == "finished":
            survived = True
        time_ns = about.get("time_ns")
        rows.append(
            {
                "record": stored.id,
                "run_id": run.id,
                "rank": stored.rank,
                "whole": stored.whole,
                "time_seconds": (time_ns - skews.get(stored.rank, 0)) / 1e9 if isinstance(time_ns, int) else None,
                "device": about.get("device"),
                "step": about.get("step"),
                "phase": about.get("phase"),
                "asked_bytes": about.get("asked_bytes"),
                "file": about.get("file"),
                "line": about.get("line"),
                "survived": survived,
                "error_type": None if message is None else message["data"].get("error_type"),
                "text": None if message is None else message["data"].get("text"),
            }
        )
    return sorted(rows, key=lambda row: row["time_seconds"] or 0)


def fatal_of(errors: Sequence[OomError]) -> str | None:
    """First error that was not survived. Of several ranks, that one ended the others."""
    deadly = [row for row in errors if row["survived"] is False and row["whole"]]
    whole = [row for row in errors if row["whole"]]
    return deadly[0]["record"] if deadly else whole[-1]["record"] if whole else None


def ranks_at(connection: Connection, run: StoredRun, full: RunInFull, error: OomError) -> list[OomRank]:
    """State of every rank when one ran out; empty for one rank alone. ``error`` is a row of :func:`errors_of`.

    A rank's own error of that time comes before its record as a bystander. For a rank without a record there is its
    newest sample before the error, and ``as_of_seconds`` is its time relative to the error. For a rank without samples
    all is None.
    """
    many = full["world_size"] or 1
    if many == 1:
        return []
    skews = _skews(full)
    begins = error["time_seconds"] or 0.0
    found: dict[int, OomRank] = {}
    for stored in reversed(list_artifacts(connection, run)):
        if stored.kind not in ("oom", "bystander") or not stored.whole:
            continue
        row = _rank_row(stored, skews, begins)
        known = found.get(stored.rank)
        near = stored.id == error["record"] or -EARLY_SECONDS <= (row["after_seconds"] or 0.0) < BYSTANDER_SECONDS
        if near and (known is None or _is_better(row, known, error)):
            found[stored.rank] = row
    silent = [rank for rank in range(min(many, MOST_RANKS)) if rank not in found]
    for number, rank in enumerate(silent):
        found[rank] = _silent_row(
            rank, _last_sample(connection, run, rank, begins) if number < MOST_SAMPLED else _NO_SAMPLE
        )
    return [found[rank] for rank in sorted(found)]


class _LastSample(TypedDict):
    """Newest sample of a rank before an error; None is unknown."""

    step: int | None
    phase: str | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    as_of_seconds: float | None


_NO_SAMPLE: Final[_LastSample] = {
    "step": None,
    "phase": None,
    "allocated_bytes": None,
    "reserved_bytes": None,
    "total_bytes": None,
    "free_bytes": None,
    "as_of_seconds": None,
}


def _last_sample(connection: Connection, run: StoredRun, rank: int, begins: float) -> _LastSample:
    """Newest sample of a rank's first device in the minute before an error, if there is one."""
    try:
        place = find_rank_device(connection, run, rank, None)
    except UnknownRankDevice:
        return _NO_SAMPLE
    at_ns = int(begins * 1e9) + place.skew_ns
    first_ns = max(at_ns - int(SAMPLED_SECONDS * 1e9), place.started_ns or 0)
    columns = load_columns(connection, run, place, "samples", _SAMPLED, first=first_ns, last=at_ns).columns
    if not columns["time_ns"].size:
        return _NO_SAMPLE
    newest = {name: int(column[-1]) for name, column in columns.items()}
    sample = {name: None if value == series.UNKNOWN else value for name, value in newest.items()}
    phase, used, total = sample["phase"], sample["device_used_bytes"], place.capacity_bytes
    return {
        "step": sample["step"],
        "phase": None if phase is None else series.phase_name(phase),
        "allocated_bytes": sample["allocated_bytes"],
        "reserved_bytes": sample["reserved_bytes"],
        "total_bytes": total,
        "free_bytes": None if used is None or total is None else max(0, total - used),
        "as_of_seconds": (newest["time_ns"] - at_ns) / 1e9,
    }


def _silent_row(rank: int, sample: _LastSample) -> OomRank:
    """Row of a rank without a record."""
    return {
        "rank": rank,
        "record": None,
        "ran_out": None,
        "asked_by": None,
        "after_seconds": None,
        "as_of_seconds": sample["as_of_seconds"],
        "asked_bytes": None,
        "step": sample["step"],
        "phase": sample["phase"],
        "module": None,
        "file": None,
        "line": None,
        "total_bytes": sample["total_bytes"],
        "free_bytes": sample["free_bytes"],
        "allocated_bytes": sample["allocated_bytes"],
        "reserved_bytes": sample["reserved_bytes"],
        "parameters_bytes": None,
        "gradients_bytes": None,
        "optimizer_bytes": None,
        "buffers_bytes": None,
        "other_models_bytes": None,
    }


def _rank_row(stored: StoredArtifact, skews: Mapping[int, int], begins: float) -> OomRank:
    about: Mapping[str, Any] = stored.about
    time_ns = about.get("time_ns")
    at = (time_ns - skews.get(stored.rank, 0)) / 1e9 if isinstance(time_ns, int) else begins
    return {
        "rank": stored.rank,
        "record": stored.id,
        "ran_out": stored.kind == "oom",
        "asked_by": about.get("asked_by") or None,
        "after_seconds": at - begins,
        "as_of_seconds": at - begins,
        "asked_bytes": about.get("asked_bytes"),
        "step": about.get("step"),
        "phase": about.get("phase"),
        "module": about.get("module"),
        "file": about.get("file"),
        "line": about.get("line"),
        "total_bytes": about.get("total_bytes"),
        "free_bytes": about.get("free_bytes"),
        "allocated_bytes": about.get("allocated_bytes"),
        "reserved_bytes": about.get("reserved_bytes"),
        "parameters_bytes": about.get("parameters_bytes"),
        "gradients_bytes": about.get("gradients_bytes"),
        "optimizer_bytes": about.get("optimizer_bytes"),
        "buffers_bytes": about.get("buffers_bytes"),
        "other_models_bytes": about.get("other_models_bytes"),
    }


def _is_better(row: OomRank, known: OomRank, error: OomError) -> bool:
    """Order: the error itself, then a rank's own error, then the nearest record."""

    def order(one: OomRank) -> tuple[bool, bool, float]:
        return one["record"] != error["record"], not one["ran_out"], abs(one["after_seconds"] or 0.0)

    return order(row) < order(known)


def _skews(full: RunInFull) -> dict[int, int]:
    """Clock skew by rank. Clocks of several hosts differ, and the first rank to run out is the one that matters."""
    return {one["rank"]: display_skew_ns(int((one["clock_skew_seconds"] or 0) * 1e9)) for one in full["ranks"]}


def lost_run_of(connection: Connection, run: StoredRun, full: RunInFull) -> Vanished | None:
    """Verdict on a run without a signal whose host's memory ran out; None: nothing points to that."""
    if run.state != "lost":
        return None
    many = len(full["ranks"])
    for rank in full["ranks"]:
        who = "The process" if many == 1 else f"The process of rank {rank['rank']} of {many}"
        total = rank.get("host_total_bytes")
        for device in [one["index"] for one in rank["devices"]] or [series.CPU]:
            try:
                place = find_rank_device(connection, run, rank["rank"], device)
                names = ["process_rss_bytes", "host_used_bytes"]
                loaded = load_columns(connection, run, place, "samples", names, x="time", since_ns=place.started_ns)
            except UnknownRankDevice:
                continue
            rss, used = (floats(loaded.columns[name]) for name in names)
            verdict = lost_run(loaded.columns["time_ns"] / 1e9, rss, used, total, who)
            if verdict is not None:
                return {
                    "rank": rank["rank"],
                    "cause": verdict.kind.value,
                    "sentence": verdict.sentence,
                    "first_aid": verdict.first_aid,
                }
    return None
