"""The one change that is most worth trying. It comes from the error, the leaks, or the newest recording, in this order."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from vramscope_server.analysis.advice.recorded_peak import contains_peak
from vramscope_server.analysis.number_format import amount
from vramscope_server.answers.leaks import Leak
from vramscope_server.answers.next_change import ChangeSource, NextChange
from vramscope_server.api.anatomy import advice_on
from vramscope_server.api.oom.errors import errors_of, fatal_of
from vramscope_server.api.oom.routes import explain
from vramscope_server.api.problems import BadRecording, NotFound
from vramscope_server.api.recording_request import readable
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, list_artifacts
from vramscope_server.store.leaks import merge_leaks
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.run_queries import load_scans

router = APIRouter(tags=["runs"])

_TITLES: Final = {
    "checkpointing": "gradient checkpointing",
    "loss_head": "a smaller loss computation",
    "foreach": "foreach=False or fused=True in the optimizer",
    "late_clear": "clearing the gradients earlier",
    "evaluation": "torch.no_grad() in the evaluation",
    "evaluation_batch": "a smaller batch in the evaluation",
    "optimizer_state": "an 8-bit optimizer",
    "weight_copies": "16-bit weights",
    "autocast_cache": "autocast without its cache",
    "kept_copies": "fewer copies of the weights",
    "fragmentation": "the default allocator settings",
}
"""Rules of advice that promise bytes, and their changes in a few words."""

_WAIT_SECONDS: Final = 0.3
"""Wait for the replay of an error's recording. Its remedies are ordered the same way without it."""


@router.get("/runs/{run}/next-change", summary="The change most worth trying", responses=answers_with(NextChange))
def get_next_change(request: Request, run: str) -> Response:
    """The first remedy of the error that ended the run; else the fix of the largest leak; else the change that lowers
    the recorded peak most. The first request for a recording may take seconds, because it is replayed.
    """
    with reader(request) as connection:
        record = require_run(connection, run)
        full = run_in_full(connection, record)
        fatal = fatal_of(errors_of(connection, record, full))
        scans = {rank: found.scan for rank, found in load_scans(connection, record).items()}
        leaks = merge_leaks(scans, record.peak_allocated_bytes)
        windows = [one for one in list_artifacts(connection, record) if one.kind == "window" and one.whole]
    change = (
        (fatal and _of_error(request, record.id, fatal))
        or _of_leaks(record.id, leaks)
        or _of_recording(request, record.id, windows[0] if windows else None, record.peak_allocated_bytes)
    )
    if change["what"] is None and full["findings"]:
        finding = full["findings"][0]
        of_script = _change(
            record.id, finding["advice"].rstrip("."), finding["text"], None, source="finding", page=None
        )
        change = {**of_script, "pending": change["pending"]}
    return answer(change)


def _change(
    run_id: str,
    title: str | None,
    what: str,
    saves_bytes: int | None,
    *,
    source: ChangeSource,
    page: str | None,
    of: str | None = "allocated",
    caution: str | None = None,
) -> NextChange:
    return {
        "run_id": run_id,
        "title": title,
        "what": what,
        "saves_bytes": saves_bytes,
        "of": of if saves_bytes else None,
        "source": source,
        "page": page,
        "caution": caution,
        "reason": None,
        "pending": False,
    }


def _none(run_id: str, reason: str, *, pending: bool = False) -> NextChange:
    return {
        "run_id": run_id,
        "title": None,
        "what": None,
        "saves_bytes": None,
        "of": None,
        "source": None,
        "page": None,
        "caution": None,
        "reason": reason,
        "pending": pending,
    }


def _of_error(request: Request, run_id: str, record: str) -> NextChange | None:
    """The cheapest remedy that is enough, another device aside; else one that may be; else the first aid of the diagnosis.

    None if the error was deleted meanwhile.
    """
    try:
        error = explain(request, record, _WAIT_SECONDS).as_json()
    except NotFound:
        return None
    remedies = error["remedies"]
    best = next((one for one in remedies if one["enough"] and one["card_bytes"] is None), None)
    best = best or next((one for one in remedies if one["enough"] is None), None)
    if best is None and not error["first_aid"]:
        return None
    if best is None:
        return _change(run_id, None, error["first_aid"], None, source="out-of-memory", page="/oom")
    sure = "It is enough" if best["enough"] else "It may be enough"
    what = f"{sure} ({best['source_words']}). Cost: {best['cost']}."
    return _change(run_id, best["what"], what, best["saves_bytes"], source="out-of-memory", page="/oom", of=None)


def _of_leaks(run_id: str, leaks: list[Leak]) -> NextChange | None:
    """The fix of the worst leak, of those that are no mere notes. ``leaks``: worst first."""
    found = [one for one in leaks if not one["note"] and not one["on_host"]]
    if not found:
        return None
    worst = found[0]
    advice = worst["advice"]
    what = f"{advice[:1].upper()}{advice[1:]}." if advice.split(" ")[0].isalpha() else f"{advice}."
    title = f"fix the leak of {worst['name']}"
    return _change(run_id, title, what, worst["peak_effect_bytes"], source="leak", page="/leaks")


def _of_recording(request: Request, run_id: str, window: StoredArtifact | None, peak_bytes: int | None) -> NextChange:
    """The advice of a recording that saves most bytes."""
    if window is None:
        return _none(run_id, "No step was recorded, so no saving can be calculated.")
    services: Services = request.app.state.services
    try:
        with readable(window):
            opened = services.recordings.open(window.id)
        found, pending = advice_on(request, window, opened)
    except (BadRecording, OSError) as bad:  # OSError: it was deleted meanwhile
        return _none(run_id, f"The newest recording cannot be read: {bad}")
    best = next((one for one in found if one.saves_bytes and one.rule in _TITLES), None)  # most bytes first
    if best is None and pending:
        return _none(run_id, "The recording is still being replayed under other allocator settings.", pending=True)
    if best is None:
        return _none(run_id, "No known change would lower the recorded peak by 2 % or more.")
    recorded = window.about.get("peak_allocated_bytes")
    caution = None
    if isinstance(recorded, int) and peak_bytes and not contains_peak(recorded, peak_bytes):
        caution = (
            f"The recording's peak is {amount(recorded)}; the run's peak of {amount(peak_bytes)} was not recorded."
        )
    of_settings = best.rule == "fragmentation"
    page, of = ("/fragmentation", None) if of_settings else ("/anatomy", "allocated")
    title = _TITLES[best.rule]
    if of_settings and best.evidence["conf"]:
        title = f"{best.evidence['variable']}={best.evidence['conf']}"
    change = _change(
        run_id, title, best.sentence, best.saves_bytes, source="recording", page=page, of=of, caution=caution
    )
    return {**change, "pending": pending}
