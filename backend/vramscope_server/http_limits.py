"""Limits the size of a request's head and the time for it, which neither uvicorn nor httptools does."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0
"""Time from the connection, or from the first byte of a later request, until a head is complete."""


class BoundedHeads(HttpToolsProtocol):
    """Closes connections that send a head, a trailer or a chunk header without end, or no head at all.

    httptools accepts a header of any length, and appends each part to all parts before it. One connection, which needs no
    token for that, could fill the memory and block all other requests. (Running uvicorn with h11, which has a limit of
    its own, was not chosen: h11 is a parser in Python, and ingest is bound by the event loop.)
    """

    _vain_bytes = 0
    """Bytes since anything was last parsed."""
    _understood = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: wait for its first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_waiting()
        super().connection_lost(exc)

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

    def _close_silent(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
