"""The thread that makes artifacts of what was recorded, and puts them into the ring piece by piece.

Making one holds the interpreter's lock, which the training needs: so it is done in slices of about a millisecond with a
:meth:`Uploads.pause` behind each, and a piece goes into the ring only while there is room, so that no sample leaves for it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from vramscope.guard import guarded
from vramscope.process.identity import random_id
from vramscope.process.notices import Notice
from vramscope.protocol import messages
from vramscope.transport.ring import Ring

MOST_WAITING: Final = 2
"""recordings that are read and not yet with the sender; while there are so many no further one begins"""
PAUSE_S: Final = 0.004
RING_SHARE: Final = 4
"""a piece is put while the ring holds less than this part of what it may"""
LAST_RING_SHARE: Final = 2
"""the same at the session's end"""


class Artifact(NamedTuple):
    """Something recorded, ready to be sent."""

    kind: str
    """of series.ARTIFACT_KINDS"""
    about: dict[str, messages.Scalar]
    """what a list shows of it"""
    data: bytes
    ident: str | None = None
    """what it shall be called; None: something fresh"""


Make = Callable[[Callable[[], None]], Iterable[Artifact]]
"""Makes artifacts of what was recorded; is given what lets the training on between slices."""


class Uploads:
    """``put`` comes from the training thread; the thread starts with the first recording. One for each who records.

    name   what is recorded, in the plural
    """

    def __init__(self, ring: Ring, step: Callable[[], int], *, pace_s: float, name: str) -> None:
        self._ring = ring
        self._step = step
        self._pace_s = pace_s
        self._name = name
        self._waiting: queue.SimpleQueue[Make | None] = queue.SimpleQueue()
        self._count = 0
        self._without_room = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._count >= MOST_WAITING

    def put(self, make: Make) -> None:
        """Something was read: ``make`` it into artifacts on our own thread."""
        self._count += 1
        self._waiting.put(make)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"vramscope-{self._name}", daemon=True)
            with contextlib.suppress(
                RuntimeError
            ):  # from Python 3.12 on none begins at the interpreter's exit: close does it
                thread.start()
                self._thread = thread

    def close(self, timeout_s: float) -> None:
        """Bring all that is here to the ring, without pauses; what is not done in time is left out, and that is said."""
        self._closing.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        else:
            self._run()
        left_out = self._count + self._without_room
        if left_out:
            text = f"the session ended before all recorded {self._name} were packed; left out: {left_out}"
            Notice(self._ring.put, self._step, text).report()

    def after_fork_in_child(self) -> None:
        self._thread = None
        self._count = self._without_room = 0
        self._waiting = queue.SimpleQueue()

    # -- the thread ----------------------------------------------------------------------------------------------------

    @guarded("packing recordings")
    def _run(self) -> None:
        bring = guarded("packing a recording")(self._bring)
        while (make := self._waiting.get()) is not None:
            bring(make)
            del make  # what it holds is large
            self._count -= 1

    def _bring(self, make: Make) -> None:
        for artifact in make(self.pause):
            self._feed(artifact)

    def _feed(self, artifact: Artifact) -> None:
        kind, about, data, ident = artifact
        ident, size = ident or random_id(), messages.MAX_PIECE_BYTES
        most = messages.MAX_PIECES * size
        if len(data) > most:
            text = f"a {kind} is left out: it has {len(data)} bytes when packed, and at most {most} are sent"
            Notice(self._ring.put, self._step, text).report()
            return
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        for number, part in enumerate(parts):
            if not self._wait_for_room(len(part)):
                self._without_room += 1
                return
            self._ring.put(
                messages.Piece(artifact=ident, kind=kind, number=number, pieces=len(parts), about=about, data=part)
            )
            self._closing.wait(self._pace_s)

    def _wait_for_room(self, size_bytes: int) -> bool:
        """False: the session ended, and there is none."""
        while True:
            closing = self._closing.is_set()
            share = LAST_RING_SHARE if closing else RING_SHARE
            if self._ring.held_bytes + size_bytes <= self._ring.max_bytes // share:
                return True
            if closing:
                return False
            self._closing.wait(self._pace_s)

    def pause(self) -> None:
        """Let the training on, between two slices."""
        self._closing.wait(PAUSE_S)
