"""One out-of-memory error as the API answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from vramscope.oom_diagnosis.other_processes import words_of
from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.other_process import OtherProcess
from vramscope_server.analysis.oom import holders, losses
from vramscope_server.analysis.oom.counters import before_and_at
from vramscope_server.analysis.oom.holders import SiteBytes
from vramscope_server.analysis.oom.remedies.remedy import Remedy
from vramscope_server.analysis.oom.report import OomReport
from vramscope_server.answers.oom import OomError, OomExplained, OomRank
from vramscope_server.answers.oom_record import OomLastStep, OomMessage, OomModule, RemedyRow
from vramscope_server.answers.other_processes import OtherProcessAtError

if TYPE_CHECKING:
    from vramscope_server.analysis.oom.recording_evidence import WindowEvidence

_PART_HAS_STACKS: Final = (
    "Allocations from before the recording, and from its steps without stacks, have no source line."
)
_LAST_STEP: Final[
    tuple[
        Literal[
            "step",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "end_allocated_bytes",
            "end_reserved_bytes",
            "micro_steps",
        ],
        ...,
    ]
] = (
    "step",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "end_allocated_bytes",
    "end_reserved_bytes",
    "micro_steps",
)


class ErrorOfRun(OomError):
    """An error as in the list, with the name of its run and its recording."""

    run: str
    window: str | None


@dataclass(frozen=True, slots=True)
class Explained:
    """One error: its row in the list, its report, and the evidence of the recording, as far as it is known."""

    row: ErrorOfRun
    report: OomReport
    evidence: WindowEvidence | None
    pending: bool
    """The recording is on its way to the server, or being read."""
    ranks: list[OomRank]

    def as_json(self) -> OomExplained:
        """Fields of the API and of ``vramscope oom --json`` (docs/http.md)."""
        sites = None if self.evidence is None else self.evidence.by_site
        row, record, diagnosis = self.row, self.report.record, self.report.diagnosis
        facts, estimate = diagnosis.facts, diagnosis.estimate
        file, line = self.report.culprit
        return {
            "record": row["record"],
            "run_id": row["run_id"],
            "rank": record.rank,
            "whole": row["whole"],
            "time_seconds": row["time_seconds"],
            "device": row["device"],
            "step": record.step,
            "phase": record.phase,
            "asked_bytes": row["asked_bytes"],
            "file": row["file"],
            "line": row["line"],
            "survived": row["survived"],
            "error_type": row["error_type"],
            "text": row["text"],
            "run": row["run"],
            "window": row["window"],
            "cause": diagnosis.kind.value or None,
            "sentence": diagnosis.sentence,
            "first_aid": diagnosis.first_aid,
            "culprit": {"file": file, "line": line, "module": record.module},
            "node": record.node,
            "message": _message(self.report),
            "remedies": [_remedy(one) for one in self.report.remedies],
            "room_bytes": facts.available_bytes,
            "shortfall_bytes": facts.shortfall_bytes,
            "needed_bytes": None if estimate is None else estimate.high_bytes,
            "needed_least_bytes": None if estimate is None else estimate.low_bytes,
            "need_words": diagnosis.basis_words,
            "pieces": holders.free_blocks(record),
            "by_category": holders.by_category(facts, record),
            "by_module": cast("list[OomModule]", holders.by_module(record)),  # a newer agent may know more categories
            "by_site": sites,
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
            "loss": losses.newest_loss(record),
            "neighbours": None if record.neighbours is None else [_other(one) for one in record.neighbours],
            "neighbours_words": words_of(record.neighbours or ()) or None,
            "settings": record.settings,
            "techniques": [one.chip for one in record.techniques],
            "leaks": [
                {"name": one.name, "file": one.file, "line": one.line, "held_bytes": one.held_bytes}
                for one in (*record.leaks, *record.last_look)
            ],
            "seconds": record.seconds,
            "notes": record.notes,
            "pending": self.pending,
            "by_site_words": None if _has_all_lines(sites) else self._why_no_lines(sites),
            "ranks": self.ranks,
        }

    def _why_no_lines(self, sites: list[SiteBytes] | None) -> str:
        if sites:
            return _PART_HAS_STACKS
        if self.report.record.window is None:
            return "No recording was open at the error, so source lines are not known."
        if self.pending:
            return "The recording is on its way, or being read."
        if self.row["window"] is None:
            return "The recording has not arrived. If it is not lost, send it with `vramscope sync` on its machine."
        if self.evidence is None:
            return "The recording could not be read."
        return "The recording has no allocation that was alive at the error."


def _other(one: OtherProcess) -> OtherProcessAtError:
    return {
        "pid": one.pid,
        "used_bytes": one.used_bytes,
        "before_bytes": one.before_bytes,
        "before_seconds": one.before_seconds,
        "command": one.command,
        "user": one.user,
        "container": one.container,
        "manager": one.manager,
        "job": one.job,
        "job_name": one.job_name,
        "pod": one.pod,
    }


def _has_all_lines(sites: list[SiteBytes] | None) -> bool:
    """Whether each row has a source line. (The row of all further lines has no category.)"""
    return bool(sites) and all(row["file"] for row in sites or () if row["category"])


def _message(report: OomReport) -> OomMessage:
    """Numbers of the message. Those of the record are exact, while the text has two decimals."""
    record, facts, message = report.record, report.diagnosis.facts, report.message
    if message is None:
        return {
            "text": None,
            "asked_bytes": record.asked_bytes,
            "device": record.device,
            "total_bytes": record.total_bytes,
            "free_bytes": record.free_bytes,
            "limit_bytes": record.limit_bytes,
            "allocated_bytes": facts.used_bytes,
            "reserved_bytes": facts.reserved_bytes,
            "unallocated_bytes": facts.idle_bytes,
        }
    said = message.as_dict()
    return {
        "kind": said["kind"],
        "text": said["text"],
        "certain": said["certain"],
        "device": _first_known(record.device, said["device"]),
        "asked_bytes": _first_known(record.asked_bytes, said["asked_bytes"]),
        "total_bytes": _first_known(record.total_bytes, said["total_bytes"]),
        "free_bytes": _first_known(record.free_bytes, said["free_bytes"]),
        "limit_bytes": _first_known(record.limit_bytes, said["limit_bytes"]),
        "process_bytes": said["process_bytes"],
        "allocated_bytes": _first_known(facts.used_bytes, said["allocated_bytes"]),
        "private_pools_bytes": said["private_pools_bytes"],
        "reserved_bytes": _first_known(facts.reserved_bytes, said["reserved_bytes"]),
        "unallocated_bytes": _first_known(facts.idle_bytes, said["unallocated_bytes"]),
        "worker": said["worker"],
        "wording": said["wording"],
        "shortened": said["shortened"],
        "errors": said["errors"],
        "processes": [{"pid": p.pid, "used_bytes": p.used_bytes, "mine": p.mine} for p in message.processes],
        "rounding_bytes": said["rounding_bytes"],
        "kind_words": said["kind_words"],
    }


def _first_known(exact: int | None, said: int | None) -> int | None:
    return said if exact is None else exact


def _remedy(remedy: Remedy) -> RemedyRow:
    return {
        "what": remedy.what,
        "saves_bytes": remedy.saves_bytes,
        "enough": remedy.enough,
        "source": remedy.source,
        "source_words": remedy.source_words,
        "cost": remedy.cost,
        "rank": remedy.rank,
        "variable": remedy.variable,
        "conf": remedy.conf,
        "technique": remedy.technique,
        "micro_batches": remedy.micro_batches,
        "card_bytes": remedy.card_bytes,
        "run_id": remedy.run_id,
    }


def _last_step(record: OomRecord) -> OomLastStep | None:
    known: OomLastStep = {}
    for name in _LAST_STEP:
        if record.last_step.get(name, -1) >= 0:
            known[name] = record.last_step[name]
    return known or None
