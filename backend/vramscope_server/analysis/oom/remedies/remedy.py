"""One remedy, and what remedies are computed from."""

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
"""Share of the available memory. A remedy that is not certainly enough and saves less is left out."""
Source = Literal["measured", "replayed", "formula", "advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One thing to do."""

    what: str
    saves_bytes: int | None
    enough: bool | None
    """Whether it certainly would have been enough; None: it may be."""
    source: Source
    source_words: str
    cost: str
    rank: int
    """Effort for the user: 0 an environment variable, 9 another device."""
    conf: str | None = None
    """Value of PYTORCH_CUDA_ALLOC_CONF."""
    technique: str | None = None
    """One of series.TECHNIQUES."""
    micro_batches: int | None = None
    card_bytes: int | None = None
    run_id: str | None = None


def advice(what: str, words: str, *, cost: str, rank: int, technique: str | None = None) -> Remedy:
    """A remedy whose effect is not known before it is tried; ``words`` have the reason."""
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
"""Replays the recording up to the error under some settings. Empty: there is none; None: the replay is not done yet."""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run of the same project with the same weights, trained in another way."""

    run_id: str
    name: str
    chips: list[str]
    peak_reserved_bytes: int
    step_ratio: float | None
    """Time of a step there relative to this run, by the medians; None: not known, or another device."""
    did_as_much: bool
    """Whether a step of it used at least as many samples of at least this length; False: that is not known."""


@dataclass(frozen=True, slots=True)
class RemedyContext:
    """One error, as the modules of this package see it."""

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
        """A remedy that saves less is not enough, or not worth a line."""
        return max(self.shortfall_bytes, int(WORTH_SHARE * self.available_bytes))

    @property
    def basis_words(self) -> str:
        """Evidence of the estimate."""
        return basis_words(self.estimate, self.facts)

    @property
    def basis_with_error(self) -> str:
        """The same with the error of the estimate."""
        return f"{self.basis_words} (it may be off by up to {amount(self.estimate.error_bytes)})"
