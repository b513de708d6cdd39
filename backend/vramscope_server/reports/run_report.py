"""A run as one HTML file that needs no server, to send or to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vramscope_server.analysis.number_format import amount, count, percent
from vramscope_server.analysis.oom.saving import saving_words
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.oom import OomList
from vramscope_server.answers.run_detail import RunAnswer, RunInFull
from vramscope_server.figures.html_file import drawn, escaped, html_file, section, table
from vramscope_server.reports.run_facts import CATEGORY_NAMES, advice_of, facts_of
from vramscope_server.reports.source import WAIT_SECONDS, AnswerSource, explained_error, newest_anatomy

FIGURES: Final = {
    "stack": "Memory at the peak of each step",
    "floor": "Memory after each step",
    "loss": "Loss",
}
HEIGHT: Final = 340
POINTS: Final = 600


def run_report(source: AnswerSource, detail: RunAnswer, most_seconds: float = WAIT_SECONDS) -> str:
    """HTML of a run: what is wrong, the peak, advice, and the charts.

    most_seconds   longest wait for the evidence of a recording that is still open
    """
    leaks: LeakReport = source(f"/runs/{detail['run_id']}/leaks")
    errors: OomList = source(f"/runs/{detail['run_id']}/oom")
    recorded = newest_anatomy(source, detail)
    return html_file(
        f"{detail['name']} ({detail['state']})",
        [
            *_errors(source, detail, errors, most_seconds),
            *_leaks(leaks),
            *_advice(detail, recorded),
            section("Run", table(("", ""), facts_of(detail, leaks))),
            *_peak(detail),
            *_charts(source, detail),
        ],
    )


def _errors(source: AnswerSource, detail: RunInFull, errors: OomList, most_seconds: float) -> Iterator[str]:
    if detail["error_type"]:
        yield f"<p class=say>{escaped(detail['error_type'])}: {escaped(detail['error_line'] or '')}</p>"
    if errors["vanished"] is not None:
        lost = errors["vanished"]
        yield section("Lost", f"<p class=say>{escaped(lost['sentence'])}</p><p>{escaped(lost['first_aid'])}</p>")
    if errors["fatal"] is None:
        return
    error = explained_error(source, errors["fatal"], most_seconds)
    survived = "<p>The run survived it.</p>" if error["survived"] else ""
    rows = [(one["what"], saving_words(one, error), one["cost"]) for one in error["remedies"]]
    yield section(
        "Out of memory",
        f"<p class=say>{escaped(error['sentence'])}</p>{survived}",
        table(("remedy", "saves", "cost"), rows),
    )


def _leaks(leaks: LeakReport) -> Iterator[str]:
    rows = [
        (
            leak["name"],
            ""
            if leak["file"] is None
            else ":".join(str(one) for one in (leak["file"], leak["line"]) if one is not None),
            amount(leak["held_bytes"]),
            amount(leak["growth_bytes_per_step"]),
            leak["advice"],
        )
        for leak in leaks["leaks"]
    ]
    listed = table(("holder", "line", "retains", "growth per step", "fix"), rows) if rows else ""
    yield section("Leaks", f"<p>{escaped(leaks['verdict']['sentence'])}</p>", listed)


def _advice(detail: RunInFull, recorded: AnatomyAnswer | None) -> Iterator[str]:
    sentences = advice_of(detail, recorded)
    if sentences:
        yield section("Advice", f"<ul>{''.join(f'<li>{escaped(one)}</li>' for one in sentences)}</ul>")


def _peak(detail: RunInFull) -> Iterator[str]:
    peak_bytes, parts = detail["peak_allocated_bytes"], detail["peak_categories"]
    if not peak_bytes or not parts:
        return
    known = [(name, value) for name, value in parts.items() if isinstance(value, int)]
    rows = [
        (CATEGORY_NAMES.get(name, name), amount(value), percent(value / peak_bytes))
        for name, value in sorted(known, key=lambda part: -part[1])
    ]
    step = "" if detail["peak_step"] is None else f" in step {count(detail['peak_step'])}"
    yield section(f"Peak of {amount(peak_bytes)}{step}", table(("category", "allocated", "share"), rows))


def _charts(source: AnswerSource, detail: RunInFull) -> Iterator[str]:
    emulated = any(device["emulated"] for rank in detail["ranks"] for device in rank["devices"])
    for name, title in FIGURES.items():
        if name == "loss" and emulated:
            continue  # every computed value is 0
        found: dict[str, Any] = source(f"/runs/{detail['run_id']}/figures/{name}", points=POINTS)
        if any(trace.get("x") is not None or trace.get("y") is not None for trace in found["figure"]["data"]):
            yield section(title, drawn(found["figure"], HEIGHT))
