"""A bounded buffer between the measuring threads and the sender; when full, the oldest messages are dropped and counted."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from vramscope.protocol import messages

DEFAULT_BYTES: Final = 16 * 1024 * 1024
"""Size limit: about a quarter of an hour of samples of one device. Only reached while both server and disk fail."""

MESSAGE_OVERHEAD_BYTES: Final = 400
COLUMN_OVERHEAD_BYTES: Final = 40
"""Memory that Python takes for a message, and for each bytes object in it: the limit applies to real memory."""


class WakeSignal:
    """Wakes one waiting thread. Unlike ``threading.Event`` it may be set from any context.

    An Event holds a plain lock while it is set. A garbage collection at that time may run a callback that sets it again on
    the same thread, and the training hangs. Here setting is one C call that never waits.

    """

    __slots__ = ("_cleared",)

    def __init__(self) -> None:
        self._cleared = threading.Lock()
        self._cleared.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        try:
            self._cleared.release()
        except RuntimeError:
            return  # it is set already

    def wait(self, timeout_s: float) -> bool:
        """Wait for the signal, at most ``timeout_s``. Return True if it was set, and clear it."""
        return self._cleared.acquire(timeout=max(0.0, timeout_s))


class Ring:
    """Keeps the newest messages up to ``max_bytes`` and ``max_messages``.

    ``put`` never waits, from any thread, signal handler or garbage collection. It appends to an inbox, which is atomic, and
    then updates the counts only if no other thread does. So the inbox may exceed the limit for a short time; the thread
    that holds the lock empties it before it leaves.

    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, max_messages: int = 100_000) -> None:
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.wake = WakeSignal()
        """Signal that is set when the ring is half full. The sender also runs at every flush interval."""
        self._start_empty()

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._inbox: deque[messages.BatchItem] = deque()
        self._kept: deque[tuple[int, messages.BatchItem]] = deque()
        self._lock = threading.Lock()
        self.kept_bytes = 0
        self.put_messages = 0
        self.taken_messages = 0
        self.dropped_messages = 0
        self.dropped_rows = 0
        """Number of rows in the dropped messages."""

    def put(self, message: messages.BatchItem) -> None:
        """Add a message; the oldest are dropped if the ring is full. Does nothing in a forked child."""
        if self._pid != os.getpid():
            return
        self._inbox.append(message)
        self._empty_inbox()
        if self.kept_bytes * 2 >= self.max_bytes:
            self.wake.set()

    def take(self, max_bytes: int) -> list[messages.BatchItem]:
        """Remove and return the oldest messages in order: as many as fit into ``max_bytes``, but at least one.

        Empty also if the lock is not free within a second: a signal handler that closes the session may have interrupted
        this very thread while it held the lock, and must not wait for itself.

        """
        taken: list[messages.BatchItem] = []
        free_bytes = max_bytes
        if not self._lock.acquire(timeout=1.0):
            return taken
        try:
            self._take_in()
            while self._kept and (not taken or self._kept[0][0] <= free_bytes):
                size, message = self._kept.popleft()
                free_bytes -= size
                self.kept_bytes -= size
                taken.append(message)
            self.taken_messages += len(taken)
        finally:
            self._lock.release()
        self._empty_inbox()
        return taken

    def __len__(self) -> int:
        return len(self._kept) + len(self._inbox)

    def after_fork_in_child(self) -> None:
        """Make the child's copy empty, with a free lock. The messages are the parent's to send."""
        self._start_empty()
        self.wake = WakeSignal()
        self._pid = -1  # so that it stays empty

    def _empty_inbox(self) -> None:
        # The thread that holds the lock also takes in messages that arrive meanwhile: it checks again after
        # the release, so that none is left in the inbox.
        while self._inbox and self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            size = size_bytes(message)
            self._kept.append((size, message))
            self.kept_bytes += size
            self.put_messages += 1
        while self._kept and (self.kept_bytes > self.max_bytes or len(self._kept) > self.max_messages):
            size, oldest = self._kept.popleft()
            self.kept_bytes -= size
            self.dropped_messages += 1
            self.dropped_rows += oldest.rows if isinstance(oldest, messages.Block | messages.Scalars) else 0


def size_bytes(message: messages.BatchItem) -> int:
    """Estimate the memory that a message takes."""
    if isinstance(message, messages.Block | messages.Scalars):
        return MESSAGE_OVERHEAD_BYTES + sum(COLUMN_OVERHEAD_BYTES + len(column) for column in message.columns.values())
    if isinstance(message, messages.Piece):
        return MESSAGE_OVERHEAD_BYTES * 2 + len(message.data)
    return MESSAGE_OVERHEAD_BYTES * 4
