"""Free pieces put to use: other settings of the allocator, replayed on the recorded window where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope_server.analysis.oom.remedies.remedy import Case, Remedy

EXPANDABLE: Final = "expandable_segments:True"
CONFS: Final = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "max_split_size_mb:32")
"""tried by replay, in this order: the first costs no speed to speak of"""


def of(case: Case) -> Iterator[Remedy]:
    """Of each setting that was replayed; without a replay, of the one that may help. Nothing where the pieces are too little."""
    facts, need, room = case.facts, case.need, case.room_bytes
    idle = facts.idle_bytes or 0
    if idle < case.shortfall_bytes or facts.expandable:
        return
    replayed = case.replay(CONFS)
    for told in replayed or ():
        cost, rank = ("none to speak of", 0) if told.conf == EXPANDABLE else ("cudaMalloc more often", 2)
        sure = need.fits(room) or (told.exact and need.least_bytes <= room)
        yield Remedy(
            what=f"PYTORCH_CUDA_ALLOC_CONF={told.conf}",
            saves_bytes=told.saves_bytes,
            enough=False if not told.survives else True if sure else None,
            source="replayed",
            source_words="the recorded window up to the error, replayed; what would have come after is not in it",
            cost=cost,
            rank=rank,
            conf=told.conf,
            technique="allocator",
        )
    if not replayed:
        yield Remedy(
            what=f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}",
            saves_bytes=idle,
            enough=need.fits(room),
            source="formula",
            source_words="at most what lay free in pieces; "
            + (
                "the window is being replayed"
                if replayed is None
                else "no window was open, so that nothing can be replayed"
            ),
            cost="none to speak of",
            rank=0,
            conf=EXPANDABLE,
            technique="allocator",
        )
