"""Diagnosis of an out-of-memory error: facts, estimate, cause, and the sentences for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramscope.oom_diagnosis import estimate_prose, first_aid, prose
from vramscope.oom_diagnosis.cause import Cause, CauseKind
from vramscope.oom_diagnosis.demand import estimate_of
from vramscope.oom_diagnosis.estimate import Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.rules import cause_of

OF_THE_ALLOCATOR: Final = ("pytorch", "preemptive", "cudaMallocAsync")
"""Kinds of errors for which the need of the step can be estimated."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why memory ran out, and how much would have been needed."""

    facts: Facts
    estimate: Estimate | None
    cause: Cause

    @property
    def kind(self) -> CauseKind:
        return self.cause.kind

    @property
    def sentence(self) -> str:
        return prose.sentence_of(self.cause, self.facts)

    @property
    def first_aid(self) -> str:
        return first_aid.first_aid_of(self.cause, self.facts)

    @property
    def basis_words(self) -> str | None:
        """Evidence of the estimate."""
        return None if self.estimate is None else estimate_prose.basis_words(self.estimate, self.facts)


def diagnose(facts: Facts) -> Diagnosis:
    """Cause and estimate. Never raises: what is not known is left out."""
    estimate = estimate_of(facts) if facts.kind in OF_THE_ALLOCATOR else None
    return Diagnosis(facts, estimate, cause_of(facts, estimate))
