"""Out-of-memory errors of a run: which there were, why, and what would have been enough."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.engine import Connection

from vramscope import wire
from vramscope.black_box import MESSAGE_EVENT, SURVIVED_EVENT, BadBlackBox, BlackBox, unpack
from vramscope_server.analysis.comparison.batch import Batch, batch_of
from vramscope_server.analysis.floor import trend
from vramscope_server.analysis.oom.post_mortem import PostMortem, post_mortem, told
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Replay
from vramscope_server.analysis.oom.vanished import vanished
from vramscope_server.house import House
from vramscope_server.store.artifacts import Stored, find_artifact, list_artifacts, read_artifact
from vramscope_server.store.places import Run, UnknownPlace, find_place, load_columns
from vramscope_server.store.queries import list_runs, run_in_full
from vramscope_server.store.states import display_skew_ns
from vramscope_server.sweeps import Progress, TooMany, Work

from .answers import answer
from .problems import BadRecording, NotFound
from .windows import floats, reader, the_run

if TYPE_CHECKING:
    from vramscope_server.analysis.oom.window import Seen

router = APIRouter(tags=["out of memory"])

WAIT_SECONDS: Final = 0.3
"""for what the window adds: an answer is there at once, and says that more is to come"""
MOST_WAIT_SECONDS: Final = 20.0
_PART_HAS_STACKS: Final = (
    "a window records stacks in a part of its steps alone (of the first three in the third): of what was made outside of it no "
    "line is known"
)
WINDOW_COMES_NS: Final = 60_000_000_000
"""after the record a window that has not come by then has been lost, or lies in a spool folder"""
MOST_OTHERS: Final = 3
SAME_WEIGHTS: Final = 0.01
"""two runs whose parameters differ by less are taken to train the same model"""


Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for what the window adds")]


@router.get("/runs/{run}/oom", summary="Out-of-memory errors of a run")
def get_errors(request: Request, run: str) -> Response:
    """``{run_id, name, state, errors, fatal, vanished}``: the errors by time, and which of them ended the run."""
    with reader(request.app.state.house) as connection:
        record = the_run(connection, run)
        full = run_in_full(connection, record)
        errors = _errors(connection, record, full)
        gone = None if errors else _vanished(connection, record, full)
    return answer(
        {
            "run_id": record["id"],
            "name": record["name"],
            "state": record["state"],
            "errors": errors,
            "fatal": _fatal(errors),
            "vanished": gone,
        }
    )


@router.get("/oom/{record}", summary="One out-of-memory error, explained")
def get_error(request: Request, record: str, wait_seconds: Wait = WAIT_SECONDS) -> Response:
    """Cause, culprit, message, what held the memory, and remedies; see docs/http.md. With ``pending`` ask again: by then it
    may say what the open window adds."""
    explained = explain(request.app.state.house, record, wait_seconds)
    return answer(explained.told())


@router.get("/oom/{record}/figure", summary="The last minute before the error")
def get_figure(request: Request, record: str) -> Response:
    """``{figure}``."""
    with reader(request.app.state.house) as connection:
        box = _box(connection, the_error(connection, record))
    return answer({"figure": _draw(box).to_dict()})


@router.get(
    "/oom/{record}/export",
    summary="The error as one HTML file",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "needs nothing from elsewhere"}},
)
def get_export(request: Request, record: str) -> Response:
    """To send to a colleague."""
    from vramscope_server.figures.oom_report import report

    explained = explain(request.app.state.house, record, MOST_WAIT_SECONDS)
    page = report(explained.told(), _draw(explained.box))
    name = f"oom-{explained.box.record}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(page, headers=headers, media_type="text/html")


@dataclass(frozen=True, slots=True)
class Explained:
    """One error: its row in the list, the record, why it happened, and what the window adds, where that is known by now."""

    row: dict[str, Any]
    box: BlackBox
    post: PostMortem
    seen: Seen | None
    pending: bool
    """the window is on its way to the server, or being looked at"""

    def told(self) -> dict[str, Any]:
        """As the API tells it."""
        sites = None if self.seen is None else self.seen.by_site
        words = None if _has_all_lines(sites) else self._why_no_lines(sites)
        return self.row | told(self.post, self.box, by_site=sites) | {"pending": self.pending, "by_site_words": words}

    def _why_no_lines(self, sites: list[dict[str, Any]] | None) -> str:
        if sites:
            return _PART_HAS_STACKS
        if self.box.window is None:
            return "no window of allocator history was open then: lines of code are known only where one is recorded"
        if self.pending:
            return "the window that was open is on its way, or being looked at"
        if self.row["window"] is None:
            return "a window was open then and has not come: it was lost, or vramscope sync on its machine sends it"
        if self.seen is None:
            return "the window that was open could not be read"
        return "the window that was open holds no allocation that was alive then"


def _has_all_lines(sites: list[dict[str, Any]] | None) -> bool:
    """(The row of all further places has no category.)"""
    return bool(sites) and all(row["file"] for row in sites or () if row["category"])


def explain(house: House, record: str, wait_seconds: float) -> Explained:
    """``wait_seconds``: for the window; without it the verdict is the same. Raises NotFound."""
    with reader(house) as connection:
        stored = the_error(connection, record)
        run = the_run(connection, stored.run_id)
        full = run_in_full(connection, run)
        box = _box(connection, stored)
        rows = _errors(connection, run, full)
        others = _others(connection, run, full, box)
        growth = _growth(connection, run, box)
        window = None if box.window is None else find_artifact(connection, box.window)
    row = next(row for row in rows if row["record"] == stored.id)
    whole = window is not None and window.whole and window.kind == "window"
    row |= {"run": run["name"], "window": box.window if whole else None}
    wanted: list[str] = []

    def explained(replay: Replay) -> PostMortem:
        return post_mortem(box, text=row["text"], growth_bytes=growth, replay=replay, others=others)

    def replay_later(confs: Sequence[str]) -> None:
        wanted.extend(confs)

    if not whole:
        coming = box.window is not None and time.time_ns() - stored.received_ns < WINDOW_COMES_NS
        return Explained(row, box, explained(replay_later if coming else lambda confs: []), None, coming)
    post = explained(replay_later)
    try:
        job = house.sweeps.ask(["oom", box.window, wanted], _work(house, str(box.window), wanted))
    except TooMany:
        return Explained(row, box, post, None, True)
    job.finished.wait(wait_seconds)
    seen: Seen | None = job.result
    if seen is None and not job.finished.is_set():
        return Explained(row, box, post, None, True)
    return Explained(row, box, explained(lambda confs: [] if seen is None else seen.replayed), seen, False)


def _work(house: House, window: str, confs: Sequence[str]) -> Work:
    def work(progress: Progress) -> Seen:
        from vramscope_server.analysis.oom.window import look

        return look(house.shelf.open(window).trace, confs, progress)

    return work


def the_error(connection: Connection, text: str) -> Stored:
    """The record meant. Raises NotFound."""
    stored = find_artifact(connection, text)
    if stored is None or stored.kind != "oom" or not stored.whole:
        raise NotFound(
            f"There is no out-of-memory record {text[:60]!r} (any more, or not whole yet).",
            field="record",
            seen=text[:60],
            expected="a record from /runs/RUN/oom",
            suggestions=[],
        )
    return stored


# -- what is known


def _errors(connection: Connection, run: Run, full: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By time. What is said of an error in the run's list."""
    later = {kind: {e["data"].get("record"): e for e in full["events"] if e["kind"] == kind} for kind in _LATER}
    # (Of ranks on several hosts the clocks differ, and the first to die is the one that is asked for.)
    skews = {one["rank"]: display_skew_ns(int((one["clock_skew_seconds"] or 0) * 1e9)) for one in full["ranks"]}
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


def _fatal(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """The first that nobody survived: of several ranks the one that pulled the others down."""
    deadly = [row for row in errors if row["survived"] is False and row["whole"]]
    whole = [row for row in errors if row["whole"]]
    return str(deadly[0]["record"]) if deadly else str(whole[-1]["record"]) if whole else None


def _box(connection: Connection, stored: Stored) -> BlackBox:
    try:
        return unpack(read_artifact(connection, stored.id))
    except BadBlackBox as bad:
        raise BadRecording(f"Its bytes are no out-of-memory record: {bad}.", field="record", seen=stored.id) from None


def _growth(connection: Connection, run: Run, box: BlackBox) -> int | None:
    """By how much the floor has risen up to the error, where it rises for sure."""
    if box.device is None:
        return None
    try:
        place = find_place(connection, run, box.rank, box.device)
        told = load_columns(
            connection, run, place, "steps", ["floor_bytes"], x="step", last=box.step, since_ns=place.started_ns
        )
    except UnknownPlace:
        return None
    fit = trend(told.columns["step"].astype(np.float64), floats(told.columns["floor_bytes"]))
    if fit is None or not fit.growing:
        return None
    return int(fit.slope * (fit.last - fit.begin))


def _others(connection: Connection, run: Run, full: Mapping[str, Any], box: BlackBox) -> list[OtherRun]:
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
        if _script(other) != _script(run):
            continue
        theirs = (other["peak_categories"] or {}).get("parameters")
        if not theirs or abs(theirs - parameters) > SAME_WEIGHTS * parameters:
            continue
        as_much = _did_as_much(batch_of(run_in_full(connection, other)), batch_of(full), box.batch_size)
        if as_much is not False:
            peak, ratio = row["peak_reserved_bytes"], _step_ratio(row, full)
            found.append(OtherRun(row["run_id"], row["name"], row["techniques"], peak, ratio, bool(as_much)))
    return sorted(found, key=lambda other: other.peak_reserved_bytes)[:MOST_OTHERS]


def _step_ratio(other: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """How many times as long a step took there, by the medians. None: one has no step, or they had not the same card."""
    theirs, ours = other["step_seconds_median"], own["step_seconds_median"]
    return theirs / ours if theirs and ours and other["device"] == own["device"] else None


def _did_as_much(other: Batch, own: Batch, rows: int | None) -> bool | None:
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


def _script(run: Run) -> str | None:
    """The file that was run, without its folder and its words: another model may have as many parameters."""
    command = run["command"] or ()
    named = next((word for word in command if str(word).endswith((".py", ".ipynb"))), None)
    told = str(named or (command[0] if command else ""))
    return told.replace("\\", "/").rpartition("/")[2] or None


def _vanished(connection: Connection, run: Run, full: Mapping[str, Any]) -> dict[str, Any] | None:
    """A run that fell silent: was it the host's memory?"""
    if run["state"] != "lost":
        return None
    many = len(full["ranks"])
    for rank in full["ranks"]:
        who = "The process" if many == 1 else f"The process of rank {rank['rank']} of {many}"
        total = rank.get("host_total_bytes")
        for device in rank["devices"] or [{"index": wire.CPU}]:
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


def _draw(box: BlackBox) -> Any:
    from vramscope_server.figures import last_minute

    return last_minute.draw(
        box.samples,
        box.time_ns,
        at_error={
            "allocated_bytes": box.counters.get("allocated_bytes.all.current"),
            "reserved_bytes": box.counters.get("reserved_bytes.all.current"),
            "device_used_bytes": box.total_bytes - box.free_bytes
            if box.total_bytes is not None and box.free_bytes is not None
            else None,
        },
        asked_bytes=box.asked_bytes,
        capacity_bytes=box.total_bytes,
    )
