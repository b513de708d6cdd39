"""Explains one out-of-memory error from its record, its message, and other data of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.diagnosis import Diagnosis, diagnose
from vramscope.oom_diagnosis.evidence import facts_of_record
from vramscope.oom_diagnosis.growth import growing
from vramscope.oom_diagnosis.message import Message
from vramscope.oom_diagnosis.parse_message import parse
from vramscope.protocol.oom_record import OomRecord
from vramscope_server.analysis.oom.remedies.ranking import remedies
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Remedy, ReplayFn


@dataclass(frozen=True, slots=True)
class OomReport:
    """All results for one error."""

    record: OomRecord
    diagnosis: Diagnosis
    message: Message | None
    remedies: list[Remedy]

    @property
    def culprit(self) -> tuple[str | None, int | None]:
        """File and line to change: for a leak the line that retains it, else the user's line of the request; None if unknown."""
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
    """Return the report of a record.

    text           text of the error, if known
    growth_bytes   growth of the memory after each step, if it grows
    """
    words = text if text is not None else record.error_text
    message = None if words is None else parse(words, record.error_type or "")
    diagnosis = diagnose(facts_of_record(record, message, growth_bytes=growth_bytes))
    return OomReport(record, diagnosis, message, remedies(diagnosis, record, replay=replay, others=others))
