"""Remedies: allocator settings that make free blocks usable. Their effect is a replay of the recording, if there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN
from vramscope.protocol.gpu_backend import allocator_variable, software
from vramscope.protocol.window import STATES, Layout
from vramscope_server.analysis.oom.remedies.remedy import Remedy, RemedyContext

EXPANDABLE: Final = "expandable_segments:True"
CONFS: Final = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "max_split_size_mb:32")
"""Settings to replay, in this order, each beside the run's own. The first has almost no cost."""
PAGE_BYTES: Final = (2 << 20, 20 << 20)
"""Sizes in which an expandable segment is mapped and unmapped: of the small pool, and of the large one."""
_COMMA: Final = re.compile(r",(?![^\[]*\])")
"""A comma outside of a list in brackets."""


def beside(own: str, conf: str) -> str:
    """Return the run's own settings with the one of ``conf`` added or changed."""
    key = conf.partition(":")[0]
    parts = [part for part in _COMMA.split("".join(own.split())) if part and part.partition(":")[0] != key]
    return ",".join((*parts, conf))


def remedies_for(context: RemedyContext) -> Iterator[Remedy]:
    """Yield each replayed setting, or without a replay the most likely one. None if all free blocks together are too small."""
    facts, estimate, available = context.facts, context.estimate, context.available_bytes
    idle = facts.idle_bytes or 0
    if idle < context.shortfall_bytes or facts.expandable:
        return
    record = context.record
    variable = allocator_variable(record.torch, record.hip)
    calls = f"more calls of {software(record.torch, record.hip).lower()}Malloc"
    grows = context.kind is CauseKind.LEAK  # it would fill the room of the free blocks, too
    own = _COMMA.split("".join(record.settings.split()))
    candidates = {beside(record.settings, conf): conf for conf in CONFS if conf not in own}
    replayed = context.replay(tuple(candidates))
    for result in replayed or ():
        cost, rank = ("almost none", 0) if candidates.get(result.conf) == EXPANDABLE else (calls, 2)
        sure = not grows and (estimate.fits(available) or (result.exact and _step_fits(context)))
        # Against fragmentation, a setting that survives is worth a line even if the rest of the step is not known.
        may_help = context.kind is CauseKind.FRAGMENTATION and result.survives and not sure and not grows
        yield Remedy(
            what=f"{variable}={result.conf}",
            saves_bytes=result.saves_bytes or (None if may_help else 0),
            enough=False if not result.survives else True if sure else None,
            source="replayed",
            source_words="replay of the recording up to the error; what would have followed is not in it",
            cost=cost,
            rank=rank,
            variable=variable,
            conf=result.conf,
            technique="allocator",
        )
    if not replayed:
        missing = "the recording is being replayed" if replayed is None else "no recording was open to replay"
        conf = beside(record.settings, EXPANDABLE)
        yield Remedy(
            what=f"{variable}={conf}",
            saves_bytes=idle,
            enough=None if grows else _without_replay(context),
            source="formula",
            source_words=f"at most all free blocks; {missing}",
            cost="almost none",
            rank=0,
            variable=variable,
            conf=conf,
            technique="allocator",
        )


def _without_replay(context: RemedyContext) -> bool | None:
    """Return whether expandable segments are enough if free memory is returned in whole pages only."""
    fits = context.estimate.fits(context.available_bytes)
    lost = (context.facts.idle_bytes or 0) - _whole_pages_bytes(context.record.layout)
    return None if fits and not context.estimate.fits(context.available_bytes - max(0, lost)) else fits


def _whole_pages_bytes(layout: Layout | None) -> int:
    """Return the most bytes of free blocks that are whole pages: as if each block began with a page."""
    if layout is None:
        return 0
    segment, size, state = (np.frombuffer(layout.blocks[name], np.int64) for name in ("segment", "size_bytes", "state"))
    page = np.array(PAGE_BYTES)[np.frombuffer(layout.segments["large"], np.int64)[segment]]
    whole = size // page * page
    return int(whole[state == STATES.index("inactive")].sum())


def _step_fits(context: RemedyContext) -> bool:
    """Return whether a replay up to the error proves enough: no margin for fragmentation is needed then.

    Within a step, the rest of it must be known, too: it is not in the replay.
    """
    if context.facts.phase in ("data", "other", None):
        return context.estimate.low_bytes <= context.available_bytes
    high = context.estimate.high_bytes
    return high is not None and high / (1 + FRAGMENTATION_MARGIN) <= context.available_bytes
