"""Which out-of-memory errors a run had, which of them ended it, how its other ranks stood then; or whether it just fell silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope.protocol.oom_record import MESSAGE_EVENT, OWNERS, SURVIVED_EVENT
from vramscope_server.analysis.oom.lost_run import vanished
from vramscope_server.api.run_window import floats
from vramscope_server.store.artifacts import Stored, list_artifacts
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.series_reader import Run, UnknownPlace, find_place, load_columns

BYSTANDER_SECONDS: Final = 900.0
"""after the error: so long a collective may wait in vain before it fails (NCCL's watchdog: 600)"""
EARLY_SECONDS: Final = 1.0
"""before it: clocks of two hosts"""
TOLD: Final = (
    "asked_bytes", "step", "phase", "module", "file", "line", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes",
    *(f"{owner.replace(' ', '_')}_bytes" for owner in OWNERS),
)  # fmt: skip
"""of a rank, as its artifact tells it"""


def errors_of(connection: Connection, run: Run, full: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By time. What is said of an error in the run's list."""
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
                "run_id": run["id"],
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


_LATER: Final = (MESSAGE_EVENT, SURVIVED_EVENT)


def fatal_of(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """The first that nobody survived: of several ranks the one that pulled the others down."""
    deadly = [row for row in errors if row["survived"] is False and row["whole"]]
    whole = [row for row in errors if row["whole"]]
    return str(deadly[0]["record"]) if deadly else str(whole[-1]["record"]) if whole else None


def ranks_then(
    connection: Connection, run: Run, full: Mapping[str, Any], error: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """How every rank of the run stood when one ran out: ``error`` is a row of :func:`errors_of`. Empty: there is one rank alone.

    A rank's own error of that time stands before what it wrote as a bystander. Of a rank that wrote nothing there is what its
    newest sample before the error told, and ``as_of_seconds`` says when that was (below 0: before the error); of one that was not
    heard of all is None.
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
        if near and (known is None or _tells_more(row, known, error)):
            found[stored.rank] = row
    silent = [rank for rank in range(min(many, MOST_RANKS)) if rank not in found]
    for number, rank in enumerate(silent):
        sampled = _last_sample(connection, run, rank, begins) if number < MOST_SAMPLED else {}
        found[rank] = {
            "rank": rank,
            **dict.fromkeys(_OF_A_RECORD),
            **dict.fromkeys(("as_of_seconds", *TOLD)),
            **sampled,
        }
    return [found[rank] for rank in sorted(found)]


MOST_RANKS: Final = 1024
MOST_SAMPLED: Final = 64
"""ranks of which no record came, whose samples are looked up: 2 ms each"""
SAMPLED_SECONDS: Final = 60.0
"""what was longer ago says nothing of that moment"""
_OF_A_RECORD: Final = ("record", "ran_out", "asked_by", "after_seconds")
_SAMPLED: Final = ("step", "phase", "allocated_bytes", "reserved_bytes", "device_used_bytes")


def _last_sample(connection: Connection, run: Run, rank: int, begins: float) -> dict[str, Any]:
    """How a rank stood when it was heard last before an error, on its first device; empty: it was not, in that minute."""
    try:
        place = find_place(connection, run, rank, None)
    except UnknownPlace:
        return {}
    at_ns = int(begins * 1e9) + place.skew_ns
    first_ns = max(at_ns - int(SAMPLED_SECONDS * 1e9), place.started_ns or 0)
    columns = load_columns(connection, run, place, "samples", _SAMPLED, first=first_ns, last=at_ns).columns
    if not columns["time_ns"].size:
        return {}
    newest = {name: int(column[-1]) for name, column in columns.items()}
    told: dict[str, Any] = {name: None if value == series.UNKNOWN else value for name, value in newest.items()}
    used, total = told.pop("device_used_bytes"), place.capacity_bytes
    return told | {
        "phase": None if told["phase"] is None else series.phase_name(told["phase"]),
        "total_bytes": total,
        "free_bytes": None if used is None or total is None else max(0, total - used),
        "as_of_seconds": (told.pop("time_ns") - at_ns) / 1e9,
    }


def _rank_row(stored: Stored, skews: Mapping[int, int], begins: float) -> dict[str, Any]:
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
        **{name: about.get(name) for name in TOLD},
    }


def _tells_more(row: Mapping[str, Any], known: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    """The error that is asked for, then a rank's own one, then what is nearest to it."""

    def place(one: Mapping[str, Any]) -> tuple[bool, bool, float]:
        return one["record"] != error["record"], not one["ran_out"], abs(one["after_seconds"])

    return place(row) < place(known)


def _skews(full: Mapping[str, Any]) -> dict[int, int]:
    """(Of ranks on several hosts the clocks differ, and the first to die is the one that is asked for.)"""
    return {one["rank"]: display_skew_ns(int((one["clock_skew_seconds"] or 0) * 1e9)) for one in full["ranks"]}


def vanished_of(connection: Connection, run: Run, full: Mapping[str, Any]) -> dict[str, Any] | None:
    """A run that fell silent: was it the host's memory?"""
    if run["state"] != "lost":
        return None
    many = len(full["ranks"])
    for rank in full["ranks"]:
        who = "The process" if many == 1 else f"The process of rank {rank['rank']} of {many}"
        total = rank.get("host_total_bytes")
        for device in rank["devices"] or [{"index": series.CPU}]:
            try:
                place = find_place(connection, run, rank["rank"], device["index"])
                names = ["process_rss_bytes", "host_used_bytes"]
                told = load_columns(connection, run, place, "samples", names, x="time", since_ns=place.started_ns)
            except UnknownPlace:
                continue
            rss, used = (floats(told.columns[name]) for name in names)
            verdict = vanished(told.columns["time_ns"] / 1e9, rss, used, total, who)
            if verdict is not None:
                return {
                    "rank": rank["rank"],
                    "cause": verdict.cause,
                    "sentence": verdict.sentence,
                    "first_aid": verdict.first_aid,
                }
    return None
