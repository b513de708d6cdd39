"""The graph watch at work on whatever trains, for the tests of what it finds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vramscope.integrations.extensions import extend
from vramscope.integrations.plain import connect
from vramscope.leaks.detector import LeakDetector
from vramscope.leaks.scan.scanner import SCAN_SECONDS
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


@contextlib.contextmanager
def watched(seconds: float = SCAN_SECONDS) -> Iterator[list[Any]]:
    """Watch what trains inside; each scan has this much time. Yields the list of scans."""
    scans: list[Any] = []
    clock = StepClock()
    hooks = LoopHooks(clock)
    extend(hooks)
    hooks.graphs = LeakDetector(clock, report=scans.append, seconds=seconds)
    hooks.install()
    connect(None, hooks)
    try:
        yield scans
    finally:
        hooks.remove()
