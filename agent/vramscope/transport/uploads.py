"""The thread that makes artifacts from recordings and puts them into the ring piece by piece.

Making one holds the interpreter's lock, which the training needs. So it is done in slices of about a millisecond, with a
:meth:`Uploads.pause` after each. A piece is put into the ring only if it fits, so that no sample is dropped for it.

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

MAX_WAITING: Final = 2
"""Maximum number of recordings that wait to be packed. At this number no further one begins."""
PAUSE_S: Final = 0.004
RING_SHARE: Final = 4
"""Divisor of the ring's limit: a piece is put into the ring while less than this part is used."""
LAST_RING_SHARE: Final = 2
"""Value of RING_SHARE at the end of the session."""


class Artifact(NamedTuple):
    """A recording, packed and ready to be sent."""

    kind: str
    """A word of series.ARTIFACT_KINDS."""
    about: dict[str, messages.Scalar]
    """Summary that lists show."""
    data: bytes
    ident: str | None = None
    """Id of the artifact; None for a random one."""


Make = Callable[[Callable[[], None]], Iterable[Artifact]]
"""Makes artifacts from a recording. Its argument is a function that pauses between slices, so that the training runs."""


class Uploads:
    """Packs and queues recordings of one kind. ``put`` is called on the training thread; the first call starts the thread.

    step   returns the number of completed optimizer steps
    name   what is recorded, in the plural

    """

    def __init__(self, ring: Ring, step: Callable[[], int], *, pace_s: float, name: str) -> None:
        self._ring = ring
        self._step = step
        self._pace_s = pace_s
        self._name = name
        self._waiting: queue.SimpleQueue[Make | None] = queue.SimpleQueue()
        self._count = 0
        self._unsent = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._count >= MAX_WAITING

    def put(self, make: Make) -> None:
        """Queue a recording. ``make`` turns it into artifacts on this object's thread."""
        self._count += 1
        self._waiting.put(make)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"vramscope-{self._name}", daemon=True)
            with contextlib.suppress(
                RuntimeError
            ):  # from Python 3.12 on no thread starts at the interpreter's exit: close() packs
                thread.start()
                self._thread = thread

    def close(self, timeout_s: float) -> None:
        """Put all recordings into the ring without pauses. Those that are not packed in time are dropped and reported."""
        self._closing.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        else:
            self._run()
        left_out = self._count + self._unsent
        if left_out:
            text = f"the session ended before all recorded {self._name} were packed; missing: {left_out}"
            Notice(self._ring.put, self._step, text).report()

    def after_fork_in_child(self) -> None:
        self._thread = None
        self._count = self._unsent = 0
        self._waiting = queue.SimpleQueue()

    # -- the thread ----------------------------------------------------------------------------------------------------

    @guarded("packing recordings")
    def _run(self) -> None:
        pack = guarded("packing a recording")(self._pack)
        while (make := self._waiting.get()) is not None:
            pack(make)
            del make  # it retains much memory
            self._count -= 1

    def _pack(self, make: Make) -> None:
        for artifact in make(self.pause):
            self._put_pieces(artifact)

    def _put_pieces(self, artifact: Artifact) -> None:
        kind, about, data, ident = artifact
        ident, size = ident or random_id(), messages.MAX_PIECE_BYTES
        most = messages.MAX_PIECES * size
        if len(data) > most:
            text = f"a {kind} is not sent: it has {len(data):,} bytes when packed, more than the {most:,} allowed"
            Notice(self._ring.put, self._step, text).report()
            return
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        for number, part in enumerate(parts):
            if not self._wait_until_it_fits(len(part)):
                self._unsent += 1
                return
            self._ring.put(
                messages.Piece(artifact=ident, kind=kind, number=number, pieces=len(parts), about=about, data=part)
            )
            self._closing.wait(self._pace_s)

    def _wait_until_it_fits(self, size_bytes: int) -> bool:
        """Wait until a piece fits. False: the session ended, and it does not fit."""
        while True:
            closing = self._closing.is_set()
            share = LAST_RING_SHARE if closing else RING_SHARE
            if self._ring.kept_bytes + size_bytes <= self._ring.max_bytes // share:
                return True
            if closing:
                return False
            self._closing.wait(self._pace_s)

    def pause(self) -> None:
        """Pause between two slices, so that the training runs."""
        self._closing.wait(PAUSE_S)
