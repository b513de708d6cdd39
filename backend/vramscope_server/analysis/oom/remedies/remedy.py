"""Types of remedies: a remedy, and the data from which remedies are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.estimate import Estimate
from vramscope.oom_diagnosis.estimate_prose import basis_words
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.number_format import amount
from vramscope.protocol.oom_record import OomRecord

WORTH_SHARE: Final = 0.01
"""Minimum saving as a share of the available memory, for remedies that are not certainly enough."""
Source = Literal["measured", "replayed", "formula", "advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that lowers the needed memory, or raises the available memory."""

    what: str
    saves_bytes: int | None
    enough: bool | None
    """True if it would certainly have been enough, False if not; None if unknown."""
    source: Source
    source_words: str
    cost: str
    rank: int
    """Effort for the user, from 0 (an environment variable) to 9 (another device)."""
    variable: str | None = None
    """Environment variable of the allocator's settings, of which ``conf`` is the value."""
    conf: str | None = None
    technique: str | None = None
    """One of series.TECHNIQUES."""
    micro_batches: int | None = None
    card_bytes: int | None = None
    run_id: str | None = None


def advice(what: str, words: str, *, cost: str, rank: int, technique: str | None = None) -> Remedy:
    """Return a remedy with an unknown effect. ``words``: the reason why it is unknown."""
    return Remedy(
        what=what,
        saves_bytes=None,
        enough=None,
        source="advice",
        source_words=words,
        cost=cost,
        rank=rank,
        technique=technique,
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of replaying the recording under a setting."""

    conf: str
    survives: bool
    saves_bytes: int
    exact: bool


ReplayFn = Callable[[Sequence[str]], list[Replayed] | None]
"""Function that replays the recording up to the error under some settings. Its result is empty without a recording, and None
if the replay is not finished."""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run of the same project with the same weights, trained in another way."""

    run_id: str
    name: str
    chips: list[str]
    peak_reserved_bytes: int
    step_ratio: float | None
    """Median step time of that run divided by this run's; None if unknown, or on another device."""
    did_as_much: bool
    """True if a step of that run had at least as many samples, of at least the same length; False if not, or unknown."""


@dataclass(frozen=True, slots=True)
class RemedyContext:
    """Data of one error, from which the modules of this package compute remedies."""

    facts: Facts
    record: OomRecord
    estimate: Estimate
    kind: CauseKind
    replay: ReplayFn
    others: Sequence[OtherRun]

    @property
    def available_bytes(self) -> int:
        return self.facts.available_bytes or 0

    @property
    def shortfall_bytes(self) -> int:
        return self.facts.shortfall_bytes or 0

    @property
    def least_bytes(self) -> int:
        """Minimum saving: a remedy that saves less is not enough, or not worth mentioning."""
        return max(self.shortfall_bytes, int(WORTH_SHARE * self.available_bytes))

    @property
    def basis_words(self) -> str:
        """Evidence of the estimate."""
        return basis_words(self.estimate, self.facts)

    @property
    def basis_with_error(self) -> str:
        """Evidence of the estimate, with its error."""
        return f"{self.basis_words}; error at most {amount(self.estimate.error_bytes)}"
