"""Limits the size of a request's head, the time for it, and the time in which nothing of an answer is read.

Neither uvicorn nor httptools does that.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0
"""Time from the connection, or from the first byte of a later request, until a head is complete."""

UNREAD_SECONDS: Final = 60.0
"""Time in which a client must read some of an answer that does not fit into the buffers of its connection."""


class BoundedConnection(HttpToolsProtocol):
    """Closes connections that send a head, a trailer or a chunk header without end, no head at all, or do not read.

    httptools accepts a header of any length, and appends each part to all parts before it. One connection, which needs no
    token for that, could fill the memory and block all other requests. (Running uvicorn with h11, which has a limit of
    its own, was not chosen: h11 is a parser in Python, and ingest is bound by the event loop.)
    """

    _vain_bytes = 0
    """Bytes since anything was last parsed."""
    _understood = False
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    """Request that is being answered. Uvicorn knows the newest one, which may wait behind it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: wait for its first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended: answer no request of it that waits, and tell the one that runs."""
        self._end_waiting()
        self._end_watching()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has not read what was sent last."""
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        """The client has read nearly all of it."""
        self._end_watching()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser; refuse it if too much has not been parsed."""
        self._understood = False
        super().data_received(data)
        if self._understood:
            self._vain_bytes = 0
            return
        self._vain_bytes += len(data)
        if self._vain_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._end_waiting()
        self._understood = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._understood = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._understood = True
        super().on_message_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_silent)

    def _end_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_unread(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._check_unread, unread_bytes)

    def _check_unread(self, before_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < before_bytes:
            self._watch_unread()
        else:
            self._unread_timer = None
            self.transport.abort()  # close() would wait until the rest is read

    def _end_watching(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _close_silent(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
