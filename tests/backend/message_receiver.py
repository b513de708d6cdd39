"""A real receiver of the messages that Apprise posts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """Takes what Apprise posts, after a number of refusals."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.refusals = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.refusals -= 1
                refused = receiver.refusals >= 0
                if not refused:
                    receiver.received.append(body)
                self.send_response(500 if refused else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"json://user:secret@127.0.0.1:{self.server_address[1]}/hook"

    @property
    def titles(self) -> list[str]:
        return [one["title"] for one in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
