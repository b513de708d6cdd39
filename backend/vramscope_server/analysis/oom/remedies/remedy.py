"""One remedy, and what else is known of the run from which remedies are reckoned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vramscope.oom_diagnosis.demand import Need
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.oom_record import BlackBox

Source = Literal["measured", "replayed", "formula", "advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One thing to do."""

    what: str
    saves_bytes: int | None
    enough: bool | None
    source: Source
    source_words: str
    cost: str
    rank: int
    """by how much it asks of the user: 0 a word in the environment, 9 another card"""
    conf: str | None = None
    """a value of PYTORCH_CUDA_ALLOC_CONF"""
    technique: str | None = None
    """of series.TECHNIQUES"""
    micro_batches: int | None = None
    card_bytes: int | None = None
    run_id: str | None = None


def advice(what: str, words: str, *, cost: str, rank: int, technique: str | None = None) -> Remedy:
    """What helps, by how much nobody knows before it is tried; ``words`` say why."""
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
    """What replaying the recorded window under a setting gave."""

    conf: str
    survives: bool
    saves_bytes: int
    exact: bool


Replay = Callable[[Sequence[str]], list[Replayed] | None]
"""the window up to the error under these settings; nothing where there is none, None where that is still being made"""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run of the same project with the same weights, trained in another way."""

    run_id: str
    name: str
    chips: list[str]
    peak_reserved_bytes: int
    step_ratio: float | None
    """how many times as long a step took there as here, by the medians; None: not known, or another card's"""
    did_as_much: bool
    """a step of its learned from at least as many samples, as long ones; False: that is not known"""


@dataclass(frozen=True, slots=True)
class Case:
    """One error, as the files of this room look at it."""

    facts: Facts
    box: BlackBox
    need: Need
    cause: str
    room_bytes: int
    shortfall_bytes: int
    replay: Replay
    others: Sequence[OtherRun]
