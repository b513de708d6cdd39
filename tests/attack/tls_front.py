"""An encrypted front before a server, with the certificate that it is set to: a real one, over real sockets."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from urllib.parse import urlsplit

import trustme

NAME = "127.0.0.1"
KINDS = ("expired", "future", "other_name", "other_authority", "silent", "plain", "garbage", "reset")
"""Kinds of faults:

expired          the certificate was valid until yesterday
future           it is valid from tomorrow
other_name       it is for another name
other_authority  its authority is not known to the agent
silent           the handshake is never answered
plain            the answer is not encrypted
garbage          the answer to the handshake is not TLS at all
reset            the connection ends in the handshake
"""


class TlsFront:
    """Passes what comes over an encrypted connection on to a server, once ``kind`` is ``good``."""

    def __init__(self, server: str, authority: trustme.CA) -> None:
        self.kind = "good"
        self.met = 0
        """Connections that met the present kind."""
        self._target = (str(urlsplit(server).hostname), int(urlsplit(server).port or 80))
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        self._contexts = {
            "good": _context(authority.issue_cert(NAME)),
            "expired": _context(authority.issue_cert(NAME, not_before=now - 9 * day, not_after=now - day)),
            "future": _context(authority.issue_cert(NAME, not_before=now + day, not_after=now + 9 * day)),
            "other_name": _context(authority.issue_cert("elsewhere.example")),
            "other_authority": _context(trustme.CA().issue_cert(NAME)),
        }
        self._open: list[socket.socket] = []
        self._stop = threading.Event()
        self._listening = socket.create_server((NAME, 0))
        self.url = f"https://{NAME}:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, kind: str) -> None:
        """Treat new connections so; there are no older ones afterwards."""
        self.kind, self.met = kind, 0
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stop.set()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        kind = self.kind
        self.met += 1
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10)
            if kind == "silent":
                while self.kind == kind and not self._stop.wait(0.02):
                    pass
            elif kind == "plain":
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            elif kind == "garbage":
                connection.recv(65536)
                connection.sendall(bytes(200))
            elif kind in self._contexts:
                with self._contexts[kind].wrap_socket(connection, server_side=True) as encrypted:
                    self._open.append(encrypted)
                    self._pass_on(encrypted)

    def _pass_on(self, encrypted: ssl.SSLSocket) -> None:
        with socket.create_connection(self._target, timeout=10) as server:
            back = threading.Thread(target=_copy, args=(server, encrypted), daemon=True)
            back.start()
            _copy(encrypted, server)
            server.shutdown(socket.SHUT_WR)
            back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)


def _context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context
