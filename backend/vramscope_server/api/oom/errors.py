"""Out-of-memory errors of a run, which of them ended it, and the state of its other ranks; or a run without a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope.protocol.oom_record import MESSAGE_EVENT, OWNERS, SURVIVED_EVENT
from vramscope_server.analysis.oom.lost_run import lost_run
from vramscope_server.api.requested_range import floats
from vramscope_server.store.artifacts import StoredArtifact, list_artifacts
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.series_reader import UnknownRankDevice, find_rank_device, load_columns
from vramscope_server.store.stored_rows import StoredRun

BYSTANDER_SECONDS: Final = 900.0
"""Time after the error in which a bystander belongs to it: a collective may wait so long (NCCL's watchdog: 600 s)."""
EARLY_SECONDS: Final = 1.0
"""The same before the error, for different clocks of two hosts."""
IN_ABOUT: Final = (
    "asked_bytes", "step", "phase", "module", "file", "line", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes",
    *(f"{owner.replace(' ', '_')}_bytes" for owner in OWNERS),
)  # fmt: skip
"""Fields of a rank, from the summary of its artifact."""
MOST_RANKS: Final = 1024
MOST_SAMPLED: Final = 64
"""Ranks without a record whose samples are read; 2 ms each."""
SAMPLED_SECONDS: Final = 60.0
"""Age up to which a sample describes a rank."""
_OF_A_RECORD: Final = ("record", "ran_out", "asked_by", "after_seconds")
_SAMPLED: Final = ("step", "phase", "allocated_bytes", "reserved_bytes", "device_used_bytes")
_LATER: Final = (MESSAGE_EVENT, SURVIVED_EVENT)


def errors_of(connection: Connection, run: StoredRun, full: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the run's list of errors, by time."""
    later = {kind: {e["data"].get("record"): e for e in full["events"] if e["kind"] == kind} for kind in _LATER}
    skews = _skews(full)
    rows = []
    for stored in list_artifacts(connection, run):
        if stored.kind != "oom":
            continue
        about, message = stored.about, later[MESSAGE_EVENT].get(stored.id)
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
                **{name: about.get(name) for name in ("device", "step", "phase", "asked_bytes", "file", "line")},
                "survived": survived,
                "error_type": None if message is None else message["data"].get("error_type"),
                "text": None if message is None else message["data"].get("text"),
            }
        )
    return sorted(rows, key=lambda row: row["time_seconds"] or 0)


def fatal_of(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """First error that was not survived. Of several ranks, that one ended the others."""
    deadly = [row for row in errors if row["survived"] is False and row["whole"]]
    whole = [row for row in errors if row["whole"]]
    return str(deadly[0]["record"]) if deadly else str(whole[-1]["record"]) if whole else None


def ranks_at(
    connection: Connection, run: StoredRun, full: Mapping[str, Any], error: Mapping[str, Any]
) -> list[dict[str, Any]]:
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
    found: dict[int, dict[str, Any]] = {}
    for stored in reversed(list_artifacts(connection, run)):
        if stored.kind not in ("oom", "bystander") or not stored.whole:
            continue
        row = _rank_row(stored, skews, begins)
        known = found.get(stored.rank)
        near = stored.id == error["record"] or -EARLY_SECONDS <= row["after_seconds"] < BYSTANDER_SECONDS
        if near and (known is None or _is_better(row, known, error)):
            found[stored.rank] = row
    silent = [rank for rank in range(min(many, MOST_RANKS)) if rank not in found]
    for number, rank in enumerate(silent):
        sampled = _last_sample(connection, run, rank, begins) if number < MOST_SAMPLED else {}
        found[rank] = {
            "rank": rank,
            **dict.fromkeys(_OF_A_RECORD),
            **dict.fromkeys(("as_of_seconds", *IN_ABOUT)),
            **sampled,
        }
    return [found[rank] for rank in sorted(found)]


def _last_sample(connection: Connection, run: StoredRun, rank: int, begins: float) -> dict[str, Any]:
    """Newest sample of a rank's first device in the minute before an error; empty: there is none."""
    try:
        place = find_rank_device(connection, run, rank, None)
    except UnknownRankDevice:
        return {}
    at_ns = int(begins * 1e9) + place.skew_ns
    first_ns = max(at_ns - int(SAMPLED_SECONDS * 1e9), place.started_ns or 0)
    columns = load_columns(connection, run, place, "samples", _SAMPLED, first=first_ns, last=at_ns).columns
    if not columns["time_ns"].size:
        return {}
    newest = {name: int(column[-1]) for name, column in columns.items()}
    sample: dict[str, Any] = {name: None if value == series.UNKNOWN else value for name, value in newest.items()}
    used, total = sample.pop("device_used_bytes"), place.capacity_bytes
    return sample | {
        "phase": None if sample["phase"] is None else series.phase_name(sample["phase"]),
        "total_bytes": total,
        "free_bytes": None if used is None or total is None else max(0, total - used),
        "as_of_seconds": (sample.pop("time_ns") - at_ns) / 1e9,
    }


def _rank_row(stored: StoredArtifact, skews: Mapping[int, int], begins: float) -> dict[str, Any]:
    about = stored.about
    time_ns = about.get("time_ns")
    at = (time_ns - skews.get(stored.rank, 0)) / 1e9 if isinstance(time_ns, int) else begins
    return {
        "rank": stored.rank,
        "record": stored.id,
        "ran_out": stored.kind == "oom",
        "asked_by": about.get("asked_by") or None,
        "after_seconds": at - begins,
        "as_of_seconds": at - begins,
        **{name: about.get(name) for name in IN_ABOUT},
    }


def _is_better(row: Mapping[str, Any], known: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    """Order: the error itself, then a rank's own error, then the nearest record."""

    def order(one: Mapping[str, Any]) -> tuple[bool, bool, float]:
        return one["record"] != error["record"], not one["ran_out"], abs(one["after_seconds"])

    return order(row) < order(known)


def _skews(full: Mapping[str, Any]) -> dict[int, int]:
    """Clock skew by rank. Clocks of several hosts differ, and the first rank to run out is the one that matters."""
    return {one["rank"]: display_skew_ns(int((one["clock_skew_seconds"] or 0) * 1e9)) for one in full["ranks"]}


def lost_run_of(connection: Connection, run: StoredRun, full: Mapping[str, Any]) -> dict[str, Any] | None:
    """Verdict on a run without a signal whose host's memory ran out; None: nothing points to that."""
    if run.state != "lost":
        return None
    many = len(full["ranks"])
    for rank in full["ranks"]:
        who = "The process" if many == 1 else f"The process of rank {rank['rank']} of {many}"
        total = rank.get("host_total_bytes")
        for device in rank["devices"] or [{"index": series.CPU}]:
            try:
                place = find_rank_device(connection, run, rank["rank"], device["index"])
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
