"""Bounds the memory for batches that are received or wait to be stored, and the time to receive a body."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

import anyio

from vramscope.protocol import messages
from vramscope_server.api.problems import Busy, Slow, too_large

READ_SECONDS: Final = 30.0
"""Time to receive a body of up to 8 MiB."""
BUSY_SECONDS: Final = 2.0
"""The same when the memory is needed: an older body that is not complete is given up."""
SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size may use memory that others may not: most batches are small."""
FOR_SMALL_BYTES: Final = 8 * 1024 * 1024
"""Memory for them beyond the maximum."""
REFUSED_SECONDS: Final = 10.0
"""Time after a refusal for lack of memory in which ``/health`` says so."""


class Received:
    """A body that is being received."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        """Cancelled to give it up. It has no effect any more once the body is complete."""
        self.bytes = 0
        self.is_complete = False
        self.began_at = time.monotonic()


class Intake:
    """Bytes of batches that have arrived and are not stored yet. Used on one event loop; :meth:`problem` on any thread.

    Announced bytes do not count: whoever announces and sends nothing takes no memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._bodies: set[Received] = set()
        self._refused_at: float | None = None

    def problem(self) -> str | None:
        """Why batches were refused in the last seconds, or None."""
        if self._refused_at is None or time.monotonic() - self._refused_at > REFUSED_SECONDS:
            return None
        if self.bytes < self._most_bytes / 2:
            return None  # it is over
        incomplete = [body.bytes for body in list(self._bodies) if not body.is_complete]
        return (
            f"Batches are refused until others are stored: {self.bytes:,} of {self._most_bytes:,} bytes are in use, "
            f"{sum(incomplete):,} of them by {len(incomplete)} requests that are not complete."
        )

    @contextlib.contextmanager
    def place(self) -> Iterator[Received]:
        """Memory for one batch, until it is stored or refused."""
        body = Received()
        self._bodies.add(body)
        try:
            yield body
        finally:
            self._bodies.discard(body)
            self.bytes -= body.bytes

    async def read(self, body: Received, announced: int, parts: AsyncIterator[bytes]) -> bytes:
        """The whole body. Raises TooLarge; Slow if it does not arrive in time; or Busy if it has no room, at once where the
        announced bytes have none."""
        self._make_room(announced, body)
        kept: list[bytes] = []
        size = 0
        with body.scope:
            body.scope.deadline = anyio.current_time() + READ_SECONDS
            async for part in parts:
                size += len(part)
                if size > messages.MAX_BATCH_BYTES:
                    raise too_large("batch", f"more than {messages.MAX_BATCH_BYTES} bytes", messages.MAX_BATCH_BYTES)
                self._make_room(len(part), body)
                body.bytes += len(part)
                self.bytes += len(part)
                kept.append(part)
        if body.scope.cancel_called:
            raise too_slow(f"{size} bytes")
        body.is_complete = True
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _make_room(self, size: int, wanted_by: Received) -> None:
        """Raises Busy if there is no room, after giving up bodies that take long."""
        if self.bytes + size <= self._most_bytes:
            return
        now = time.monotonic()
        for body in self._bodies:
            if body is not wanted_by and not body.is_complete and now - body.began_at > BUSY_SECONDS:
                body.scope.cancel()
                self.bytes -= body.bytes
                body.bytes = 0
        is_small = wanted_by.bytes + size <= SMALL_BYTES
        if self.bytes + size > self._most_bytes + (FOR_SMALL_BYTES if is_small else 0):
            self._refused_at = now
            raise Busy("Too many batches wait to be stored. Retry in a second.", headers={"Retry-After": "1"})


def too_slow(seen: str) -> Slow:
    """The refusal of a body that does not arrive in time."""
    return Slow(
        f"The body was not complete in time: {seen} had arrived. Nothing was stored.",
        field="body",
        seen=seen,
        expected=f"the whole body within {READ_SECONDS:g} seconds",
        headers={"Connection": "close"},
    )
