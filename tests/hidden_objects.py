"""Objects that earlier tests and the libraries they loaded left, out of garbage collections and of scans.

A process that has run a thousand tests has more than a million objects. Each garbage collection visits them, and so does each
scan of the agent: it would take its whole time, and leave some out. What is hidden stays hidden. ``gc.unfreeze()`` would show
the objects of all tests, and of all that were collected: no test calls it.
"""

from __future__ import annotations

import gc

UNNOTICED = 20_000
"""Number of objects whose collection takes some milliseconds."""


def hide_objects(more_than: int = 0) -> None:
    """Hide what is alive, if it is more objects than this. What nothing refers to any more is freed first."""
    if len(gc.get_objects()) > more_than:
        gc.collect()
        gc.freeze()
