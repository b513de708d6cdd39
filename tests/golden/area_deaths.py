"""Verdicts on staged out-of-memory deaths (tests/oom): cause, culprit, numbers of the message, and remedies."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "oom"))

from deaths import DEATHS, Death
from files import MASK, Result, differences, masked, split
from outcomes import Outcomes
from staged import Outcome

AREA = "deaths"
IN_SUITE = [death for death in DEATHS if death.in_suite]
VARIES = (
    *("record", "run_id", "window", "time_seconds", "seconds", "before_seconds", "pid", "before"),
    *("process_rss_bytes", "host_used_bytes", "rss_bytes"),
)
"""Identifiers, times, and readings of a sampler that runs beside the training."""
NOT_KEPT = ("stack", "counters", "loss", "run", "text", "ranks", "neighbours_words")
"""Frames and lines of PyTorch; readings that depend on time; what the message's numbers say already."""
WORDS = (
    "sentence",
    "first_aid",
    "what",
    "cost",
    "source_words",
    "need_words",
    "kind_words",
    "by_site_words",
    "wording",
    "notes",
)
TRIES = 3


def of_death(death: Death, outcomes: Outcomes) -> Result:
    return result_of(death, outcomes.of(death))


def result_of(death: Death, outcome: Outcome) -> Result:
    """Facts and sentences of one outcome; its script is called ``train.py``."""
    reported: Any = None
    if outcome.report is not None:
        reported = {key: value for key, value in outcome.report.items() if key not in NOT_KEPT}
        reported["message"] = {key: value for key, value in reported["message"].items() if key != "text"}
        reported["retries"] = (outcome.report["now"] or {}).get("retries")
        # On a busy machine a process may die before its sampler has read NVML. Then no neighbours are known.
        reported["neighbours"] = [
            {"pid": one["pid"], "used_bytes": one["used_bytes"]} for one in reported.get("neighbours") or []
        ]  # the rest depends on the machine and on the sampler
        reported = masked(_renamed(reported), VARIES)
    facts, sentences = split(reported, words=WORDS, names=("file",))
    tried = None if outcome.report is None or outcome.tried is None else outcome.report["remedies"].index(outcome.tried)
    return Result(
        {death.name: {"verdict": facts, "wrong": outcome.wrong, "tried_remedy": tried}},
        {death.name: sentences} if sentences else {},
    )


def _renamed(value: Any) -> Any:
    """Without folders, identifiers of runs and of processes in texts."""
    if isinstance(value, dict):
        return {key: _renamed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if isinstance(value, str):
        value = value.replace("unknown owner, not PyTorch", "this process outside PyTorch")
        value = re.sub(r"\b[0-9a-f]{16}\.py", "train.py", value)
        value = re.sub(r"(?:/[^\s/:,]+)+/(?=[^\s/:,]+\.py\b)", "", value)
        return re.sub(r"\b(pid|process|Process) \d+", rf"\1 {MASK}", value)
    return value


def compared(death: Death, outcomes: Outcomes, area: str = AREA) -> Result:
    """Result of a death. One that differs from the golden result is staged again, as samples depend on time."""
    for _ in range(TRIES - 1):
        result = of_death(death, outcomes)
        if not differences(area, result, entries=[death.name]):
            return result
        outcomes.forget(death)
    return of_death(death, outcomes)


def compute() -> dict[str, Result]:
    """A minute."""
    return {AREA: of_deaths(IN_SUITE)}


def check() -> dict[str, Result]:
    return {AREA: of_deaths(IN_SUITE, again=AREA)}


def of_deaths(deaths: list[Death], *, again: str | None = None) -> Result:
    """All of them. ``again``: the area whose golden results they are compared with, as in ``compared``."""
    whole, outcomes = Result(), Outcomes()
    for death in deaths:
        one = of_death(death, outcomes) if again is None else compared(death, outcomes, again)
        whole.facts |= one.facts
        whole.sentences |= one.sentences
    outcomes.close()
    return whole
