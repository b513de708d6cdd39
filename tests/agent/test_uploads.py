"""What was recorded reaches the ring, also where the interpreter is about to end."""

from __future__ import annotations

import threading

from vramscope.protocol import messages
from vramscope.transport.ring import Ring
from vramscope.transport.uploads import Artifact, Uploads


def test_without_a_thread_uploads_are_packed_at_close(monkeypatch) -> None:
    """From Python 3.12 on that is so in what runs at exit: a window that is open then closes there."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    ring = Ring()
    uploads = Uploads(ring, lambda: 0, pace_s=0.0, name="windows")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    uploads.put(lambda pause: [Artifact("window", {}, b"recorded")])
    uploads.close(2.0)
    pieces = [message for message in ring.take(1 << 20) if isinstance(message, messages.Piece)]
    assert [piece.data for piece in pieces] == [b"recorded"]
