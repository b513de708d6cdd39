"""Explanation of one out-of-memory error: the record, its message, and what else is known of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.diagnosis import Diagnosis, diagnose
from vramscope.oom_diagnosis.evidence import facts_of_record
from vramscope.oom_diagnosis.growth import growing
from vramscope.oom_diagnosis.parse_message import Message, parse
from vramscope.protocol.oom_record import OomRecord
from vramscope_server.analysis.oom import holders, losses
from vramscope_server.analysis.oom.counters import before_and_at
from vramscope_server.analysis.oom.remedies.ranking import remedies
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Remedy, ReplayFn


@dataclass(frozen=True, slots=True)
class OomReport:
    """Everything that is reported of one error."""

    record: OomRecord
    diagnosis: Diagnosis
    message: Message | None
    remedies: list[Remedy]

    @property
    def culprit(self) -> tuple[str | None, int | None]:
        """File and line to change: of a leak the line that retains it, else the user's line of the request; None: not known."""
        if self.diagnosis.kind is CauseKind.LEAK:
            leak = next(iter(growing(self.record)), None)
            return (None, None) if leak is None else (leak.file, leak.line)
        own = self.record.own_frame
        return (None, None) if own is None else (own.file, own.line)


def report_of(
    record: OomRecord,
    *,
    text: str | None = None,
    growth_bytes: int | None = None,
    replay: ReplayFn = lambda confs: [],
    others: Sequence[OtherRun] = (),
) -> OomReport:
    """Report of a record.

    text           text of the error, if it came
    growth_bytes   growth of the memory after each step, if it grows
    """
    words = text if text is not None else record.error_text
    message = None if words is None else parse(words, record.error_type or "")
    diagnosis = diagnose(facts_of_record(record, message, growth_bytes=growth_bytes))
    return OomReport(record, diagnosis, message, remedies(diagnosis, record, replay=replay, others=others))


def as_json(report: OomReport, *, by_site: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Fields of the API and of ``vramscope oom --json`` (docs/http.md).

    by_site   from the recording, where one was open
    """
    record, diagnosis = report.record, report.diagnosis
    facts, estimate = diagnosis.facts, diagnosis.estimate
    file, line = report.culprit
    return {
        "cause": diagnosis.kind.value or None,
        "sentence": diagnosis.sentence,
        "first_aid": diagnosis.first_aid,
        "culprit": {"file": file, "line": line, "module": record.module},
        "rank": record.rank,
        "step": record.step,
        "phase": record.phase,
        "node": record.node,
        "message": _message(report),
        "remedies": [dataclasses.asdict(remedy) for remedy in report.remedies],
        "room_bytes": facts.available_bytes,
        "shortfall_bytes": facts.shortfall_bytes,
        "needed_bytes": None if estimate is None else estimate.high_bytes,
        "needed_least_bytes": None if estimate is None else estimate.low_bytes,
        "need_words": diagnosis.basis_words,
        "pieces": holders.free_blocks(record),
        "by_category": holders.by_category(facts, record),
        "by_module": holders.by_module(record),
        "by_site": by_site,
        "stack": [{"file": f.file, "line": f.line, "function": f.function, "own": f.own} for f in record.stack],
        "counters": before_and_at(record),
        "now": {
            "allocated_bytes": record.counters.get("allocated_bytes.all.current"),
            "reserved_bytes": facts.reserved_bytes,
            "peak_allocated_bytes": record.peak_allocated_bytes,
            "requested_bytes": record.counters.get("requested_bytes.all.current"),
            "retries": record.counters.get("num_alloc_retries"),
            "process_rss_bytes": record.process_rss_bytes,
        },
        "last_step": _last_step(record),
        "loss": losses.as_json(record),
        "neighbours": None
        if record.neighbours is None
        else [{"pid": other.pid, "used_bytes": other.used_bytes} for other in record.neighbours],
        "settings": record.settings,
        "techniques": [one.chip for one in record.techniques],
        "leaks": [
            {"name": one.name, "file": one.file, "line": one.line, "held_bytes": one.held_bytes}
            for one in (*record.leaks, *record.last_look)
        ],
        "seconds": record.seconds,
        "notes": record.notes,
    }


def _message(report: OomReport) -> dict[str, Any]:
    """Numbers of the message. Those of the record are exact, while the text has two decimals."""
    record, facts = report.record, report.diagnosis.facts
    exact = {
        "asked_bytes": record.asked_bytes,
        "device": record.device,
        "total_bytes": record.total_bytes,
        "free_bytes": record.free_bytes,
        "limit_bytes": record.limit_bytes,
        "allocated_bytes": facts.used_bytes,
        "reserved_bytes": facts.reserved_bytes,
        "unallocated_bytes": facts.idle_bytes,
    }
    message: dict[str, Any] = {"text": None} if report.message is None else report.message.as_dict()
    return message | {name: value for name, value in exact.items() if value is not None or name not in message}


def _last_step(record: OomRecord) -> dict[str, int] | None:
    names = (
        "step",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "end_allocated_bytes",
        "end_reserved_bytes",
        "micro_steps",
    )
    known = {name: record.last_step[name] for name in names if record.last_step.get(name, -1) >= 0}
    return known or None
