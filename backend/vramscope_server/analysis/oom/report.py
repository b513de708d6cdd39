"""One out-of-memory error explained: the record, what came later of it, and what else is known of the run, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramscope.oom_diagnosis.cause import Verdict, judge
from vramscope.oom_diagnosis.demand import Need, need_of
from vramscope.oom_diagnosis.evidence import facts_of_box
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.growth import growing
from vramscope.oom_diagnosis.message import Message, parse
from vramscope.protocol.oom_record import BlackBox
from vramscope_server.analysis.oom import holders, losses
from vramscope_server.analysis.oom.counters import before_and_at
from vramscope_server.analysis.oom.remedies.ranking import remedies
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Remedy, Replay


@dataclass(frozen=True, slots=True)
class PostMortem:
    """Everything that is told of one error."""

    verdict: Verdict
    facts: Facts
    message: Message | None
    need: Need | None
    remedies: list[Remedy]


def post_mortem(
    box: BlackBox,
    *,
    text: str | None = None,
    growth_bytes: int | None = None,
    replay: Replay = lambda confs: [],
    others: Sequence[OtherRun] = (),
) -> PostMortem:
    """``text``: the error's own words, where they came; ``growth_bytes``: by how much the floor has risen, where it rises."""
    words = text if text is not None else box.error_text
    message = None if words is None else parse(words, box.error_type or "")
    facts = facts_of_box(box, message, growth_bytes=growth_bytes)
    verdict = judge(facts)
    need = need_of(facts) if facts.kind in ("pytorch", "preemptive", "cudaMallocAsync") else None
    found = remedies(facts, box, need, verdict.cause, replay=replay, others=others)
    return PostMortem(verdict, facts, message, need, found)


def told(post: PostMortem, box: BlackBox, *, by_site: list[dict[str, Any]] | None) -> dict[str, Any]:
    """As the API and ``vramscope oom --json`` tell it (docs/http.md). ``by_site``: from the window, where one was open."""
    facts = post.facts
    file, line = culprit(post, box)
    exact = {
        "asked_bytes": box.asked_bytes,
        "device": box.device,
        "total_bytes": box.total_bytes,
        "free_bytes": box.free_bytes,
        "limit_bytes": box.limit_bytes,
        "allocated_bytes": facts.used_bytes,
        "reserved_bytes": facts.reserved_bytes,
        "unallocated_bytes": facts.idle_bytes,
    }
    # The record knows to the byte what the words round to two decimals.
    message: dict[str, Any] = {"text": None} if post.message is None else post.message.as_dict()
    message |= {name: value for name, value in exact.items() if value is not None or name not in message}
    return {
        "cause": post.verdict.cause or None,
        "sentence": post.verdict.sentence,
        "first_aid": post.verdict.first_aid,
        "culprit": {"file": file, "line": line, "module": box.module},
        "rank": box.rank,
        "step": box.step,
        "phase": box.phase,
        "node": box.node,
        "message": message,
        "remedies": [dataclasses.asdict(remedy) for remedy in post.remedies],
        "room_bytes": facts.room_bytes,
        "shortfall_bytes": facts.shortfall_bytes,
        "needed_bytes": None if post.need is None else post.need.at(),
        "needed_least_bytes": None if post.need is None else post.need.least_bytes,
        "need_words": None if post.need is None else post.need.words,
        "pieces": holders.pieces(box),
        "by_category": holders.by_category(facts, box),
        "by_module": holders.by_module(box),
        "by_site": by_site,
        "stack": [{"file": f.file, "line": f.line, "function": f.function, "own": f.own} for f in box.stack],
        "counters": before_and_at(box),
        "now": _now(facts, box),
        "last_step": _last_step(box),
        "loss": losses.told(box),
        "neighbours": None
        if box.neighbours is None
        else [{"pid": other.pid, "used_bytes": other.used_bytes} for other in box.neighbours],
        "settings": box.settings,
        "techniques": [one.chip for one in box.techniques],
        "leaks": [
            {"name": one.name, "file": one.file, "line": one.line, "held_bytes": one.held_bytes}
            for one in (*box.leaks, *box.last_look)
        ],
        "seconds": box.seconds,
        "notes": box.notes,
    }


def culprit(post: PostMortem, box: BlackBox) -> tuple[str | None, int | None]:
    """The line to change: of a leak the one that keeps it, else the user's own that asked. None: nobody knows it."""
    if post.verdict.cause == "leak":
        leak = next(iter(growing(box)), None)
        return (None, None) if leak is None else (leak.file, leak.line)
    own = next((frame for frame in box.stack if frame.own), None)
    return (None, None) if own is None else (own.file, own.line)


def _now(facts: Facts, box: BlackBox) -> dict[str, int | None]:
    return {
        "allocated_bytes": box.counters.get("allocated_bytes.all.current"),
        "reserved_bytes": facts.reserved_bytes,
        "peak_allocated_bytes": box.peak_allocated_bytes,
        "requested_bytes": box.counters.get("requested_bytes.all.current"),
        "retries": box.counters.get("num_alloc_retries"),
        "process_rss_bytes": box.process_rss_bytes,
    }


def _last_step(box: BlackBox) -> dict[str, int] | None:
    names = (
        "step",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "end_allocated_bytes",
        "end_reserved_bytes",
        "micro_steps",
    )
    known = {name: box.last_step[name] for name in names if box.last_step.get(name, -1) >= 0}
    return known or None
