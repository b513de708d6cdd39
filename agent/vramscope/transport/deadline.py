"""Ends HTTP exchanges that take too long.

The timeouts of an HTTP client apply to single reads: an answer that sends a byte now and then never ends. A thread of its own
therefore shuts the connection's socket down when the whole exchange has taken too long.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

CHECK_S: Final = 0.5
"""Time between two checks while an exchange is active."""


class Deadline:
    """Deadline for the exchanges of one connection, one after the other. The thread starts with the first exchange."""

    def __init__(self) -> None:
        self.has_passed = False
        """True where the last exchange was ended here."""
        self.socket: socket.socket | None = None
        """Socket of the open connection."""
        self._until_s: float | None = None
        self._active = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End what runs inside after this time: its reads and writes fail."""
        if self._thread is None:
            thread = threading.Thread(target=self._watch, name="vramscope-deadline", daemon=True)
            with contextlib.suppress(RuntimeError):  # at the interpreter's exit no thread starts from Python 3.12 on
                thread.start()
                self._thread = thread
        self.has_passed = False
        self._until_s = time.monotonic() + seconds
        self._active.set()
        try:
            yield
        finally:
            self._until_s = None
            self._active.clear()

    def note_connection(self, event: str, info: dict[str, Any]) -> None:
        """Note the socket of each new connection. A trace function of httpcore, called with each of its events."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.socket = info["return_value"].get_extra_info("socket")

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._active.set()
        self.socket = self._thread = None

    def _watch(self) -> None:
        while True:
            self._active.wait()
            if self._closed:
                return
            until_s = self._until_s
            if until_s is not None and time.monotonic() > until_s:
                self._end()
            time.sleep(CHECK_S)

    def _end(self) -> None:
        self.has_passed = True  # a socket that is connected later in this exchange is shut down too
        if self.socket is not None:
            with contextlib.suppress(OSError):
                # The method of ssl's sockets would change the object that the other thread reads from.
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
