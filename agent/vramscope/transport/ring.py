"""A bounded buffer between those who measure and the one who sends; when full, the oldest go and are counted."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from vramscope.protocol import messages

DEFAULT_BYTES: Final = 16 * 1024 * 1024
"""About a quarter of an hour of samples of one device: only a server and a disk that are both away ever fill it."""

MESSAGE_OVERHEAD_BYTES: Final = 400
COLUMN_OVERHEAD_BYTES: Final = 40
"""What Python itself takes for a message and for each bytes object in it: the bound is on real memory."""


class WakeSignal:
    """Wakes one waiting thread. Unlike ``threading.Event`` it may be rung from anywhere.

    An Event holds a plain lock while it is set; a garbage collection in that moment may run a callback that sets it
    again on the same thread, and the training hangs. Here ringing is one C call that never waits.
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        try:
            self._quiet.release()
        except RuntimeError:
            return  # it rings already

    def wait(self, timeout_s: float) -> bool:
        """Wait until it rings, at most so long. True if it rang; it is quiet again then."""
        return self._quiet.acquire(timeout=max(0.0, timeout_s))


class Ring:
    """Holds the newest messages up to ``max_bytes``, and up to ``max_messages``.

    ``put`` never waits, whatever thread, signal handler or garbage collection it comes from: it appends to an inbox,
    which is atomic, and then settles the books only if nobody else is at them. So for moments the inbox may stand above
    the bound; whoever holds the books takes it in before leaving.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, max_messages: int = 100_000) -> None:
        self.max_bytes = max_bytes
        self.max_messages = max_messages
        self.wake = WakeSignal()
        """Rung when the ring is half full. The sender looks by itself at every flush interval."""
        self._start_empty()

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._inbox: deque[messages.Cargo] = deque()
        self._held: deque[tuple[int, messages.Cargo]] = deque()
        self._books = threading.Lock()
        self.held_bytes = 0
        self.put_messages = 0
        self.taken_messages = 0
        self.dropped_messages = 0
        self.dropped_rows = 0
        """rows among the dropped messages"""

    def put(self, message: messages.Cargo) -> None:
        """Add a message; the oldest ones make room. In a forked child: nothing happens."""
        if self._pid != os.getpid():
            return
        self._inbox.append(message)
        self._settle()
        if self.held_bytes * 2 >= self.max_bytes:
            self.wake.ring()

    def take(self, max_bytes: int) -> list[messages.Cargo]:
        """Remove and give the oldest messages, in order: as many as fit into ``max_bytes``, but one at least.

        Empty also when the books stay taken for a second: a signal handler that closes the session may have
        interrupted this very thread while it was at them, and must not wait for itself.
        """
        taken: list[messages.Cargo] = []
        room = max_bytes
        if not self._books.acquire(timeout=1.0):
            return taken
        try:
            self._take_in()
            while self._held and (not taken or self._held[0][0] <= room):
                size, message = self._held.popleft()
                room -= size
                self.held_bytes -= size
                taken.append(message)
            self.taken_messages += len(taken)
        finally:
            self._books.release()
        self._settle()
        return taken

    def __len__(self) -> int:
        return len(self._held) + len(self._inbox)

    def after_fork_in_child(self) -> None:
        """The child's copy: empty, with a lock that nobody holds. What was in here is the parent's to send."""
        self._start_empty()
        self.wake = WakeSignal()
        self._pid = -1  # and it stays empty

    def _settle(self) -> None:
        # A message that arrives while somebody is at the books is taken in by that somebody: they look again after
        # letting go, so none is left lying without an owner.
        while self._inbox and self._books.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._books.release()

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            size = size_bytes(message)
            self._held.append((size, message))
            self.held_bytes += size
            self.put_messages += 1
        while self._held and (self.held_bytes > self.max_bytes or len(self._held) > self.max_messages):
            size, oldest = self._held.popleft()
            self.held_bytes -= size
            self.dropped_messages += 1
            self.dropped_rows += oldest.rows if isinstance(oldest, messages.Block | messages.Scalars) else 0


def size_bytes(message: messages.Cargo) -> int:
    """What a message takes in memory, closely enough to bound it by."""
    if isinstance(message, messages.Block | messages.Scalars):
        return MESSAGE_OVERHEAD_BYTES + sum(COLUMN_OVERHEAD_BYTES + len(column) for column in message.columns.values())
    if isinstance(message, messages.Piece):
        return MESSAGE_OVERHEAD_BYTES * 2 + len(message.data)
    return MESSAGE_OVERHEAD_BYTES * 4
