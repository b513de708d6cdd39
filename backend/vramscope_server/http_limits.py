"""How much of a request may come before anything of it is understood: what neither uvicorn nor httptools bounds."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024


class BoundedHeads(HttpToolsProtocol):
    """Hangs up on who sends a head, a trailer or the frame of a piece without end.

    httptools takes a header of any length, and glues each part that comes to all before it: one connection, which needs no
    token for that, could fill the memory and hold up everybody else meanwhile.
    """

    _vain_bytes = 0
    """that came since anything was last understood"""
    _understood = False

    def data_received(self, data: bytes) -> None:
        """What came; refused where too much has led to nothing."""
        self._understood = False
        super().data_received(data)
        if self._understood:
            self._vain_bytes = 0
            return
        self._vain_bytes += len(data)
        if self._vain_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has more than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._understood = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._understood = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._understood = True
        super().on_message_complete()
