"""A window that is being recorded: what is known of it so far, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from vramscope.trace.modules import ModuleTags
from vramscope.trace.owners import Owners
from vramscope.trace.plan import Wish
from vramscope.trace.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vramscope.memory.allocator import Interval
    from vramscope.steps.clock import Stretch


class OpenWindow:
    """A window that is being recorded."""

    def __init__(self, wish: Wish, raw: Raw, metadata: str, skip: int, owners: Owners) -> None:
        self.wish = wish
        self.owners = owners
        self.raw = raw
        self.thread = get_ident()
        self.metadata = metadata
        """the user's own, to be put back"""
        self.skip = skip
        """stretches of the first step that were over before the window began"""
        self.modules: ModuleTags | None = None
        self.peaks: dict[int, tuple[int, int]] = {}
        self.events_without_stacks = 0
        """that came before stacks were switched on"""
        self.spent_ns = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What is done in here is part of what the window costs."""
        began = time.perf_counter_ns()
        yield
        self.spent_ns += time.perf_counter_ns() - began

    def see(self, stretches: Sequence[Stretch]) -> None:
        """The highest allocated and reserved of each device, by the allocator's own counters."""
        for stretch in stretches:
            for facts, cut in zip(self.raw.facts, stretch.cuts, strict=False):
                self._see(facts.device, cut)

    def _see(self, device: int, cut: Interval) -> None:
        allocated, reserved = self.peaks.get(device, (0, 0))
        self.peaks[device] = max(allocated, cut.peak_allocated_bytes), max(reserved, cut.peak_reserved_bytes)
