"""The thread that makes windows of what was read, packs them, and puts them into the ring piece by piece.

Converting holds the interpreter's lock, which the training needs: so it is done in slices of about a millisecond with a
pause behind each, and a piece goes into the ring only while there is room, so that no sample has to leave for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from vramscope import wire
from vramscope.guard import guarded
from vramscope.identity import fresh_id
from vramscope.ring import Ring
from vramscope.trace.making import make
from vramscope.trace.raw import Raw
from vramscope.window import Window, pack

MOST_WAITING: Final = 2
"""windows that are read and not yet with the sender; while there are so many no further one begins"""
PAUSE_S: Final = 0.004
PEAK: Final = "allocated_bytes.all.peak"
RING_SHARE: Final = 4
"""a piece is put while the ring holds less than this part of what it may"""
LAST_RING_SHARE: Final = 2
"""the same at the session's end"""


class Uploads:
    """``put`` comes from the training thread; the thread starts with the first window.

    on_window called with each window when it is packed
    on_cost   called with (steps, seconds, highest peak in bytes) of each window when it is packed
    """

    def __init__(
        self,
        ring: Ring,
        *,
        pace_s: float,
        on_window: Callable[[Window], None] | None,
        on_cost: Callable[[int, float, int], None],
    ) -> None:
        self._ring = ring
        self._pace_s = pace_s
        self._on_window = on_window
        self._on_cost = on_cost
        self._waiting: queue.SimpleQueue[tuple[Raw, float] | None] = queue.SimpleQueue()
        self._count = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._count >= MOST_WAITING

    def put(self, raw: Raw, seconds: float) -> None:
        """A window that was read; ``seconds``: what it has cost so far."""
        self._count += 1
        self._waiting.put((raw, seconds))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vramscope-windows", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Bring all that is here to the ring, without pauses; what is not done in time is left out."""
        self._closing.set()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout_s)

    def after_fork_in_child(self) -> None:
        self._thread = None
        self._waiting = queue.SimpleQueue()

    # -- the thread ----------------------------------------------------------------------------------------------------

    @guarded("packing windows")
    def _run(self) -> None:
        bring = guarded("packing a window")(self._bring)
        while (item := self._waiting.get()) is not None:
            bring(*item)
            del item  # the tree is large
            self._count -= 1

    def _bring(self, raw: Raw, seconds: float) -> None:
        began = time.thread_time()
        windows = self._make(raw)
        packed = [(window, pack(window)) for window in windows]
        if self._on_window is not None:
            for window in windows:
                self._on_window(window)
        self._on_cost(
            max(window.last_step - window.first_step + 1 for window in windows),
            seconds + time.thread_time() - began,
            max(window.end.counters.get(PEAK, 0) for window in windows),
        )
        for window, data in packed:
            self._feed(window, data)

    def _make(self, raw: Raw) -> list[Window]:
        return [make(raw, facts, self._pause) for facts in raw.facts]

    def _feed(self, window: Window, data: bytes) -> None:
        artifact = fresh_id()
        size = wire.MAX_PIECE_BYTES
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        if len(parts) > wire.MAX_PIECES:
            return
        about = about_of(window, len(data))
        for number, part in enumerate(parts):
            if not self._wait_for_room(len(part)):
                return
            self._ring.put(
                wire.Piece(artifact=artifact, kind="window", number=number, pieces=len(parts), about=about, data=part)
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

    def _pause(self) -> None:
        self._closing.wait(PAUSE_S)


def about_of(window: Window, packed_bytes: int) -> dict[str, wire.Scalar]:
    """What a list shows of a window."""
    return {
        "device": window.device,
        "first_step": window.first_step,
        "last_step": window.last_step,
        "reason": window.reason,
        "events": len(window.events["action"]) // 8,
        "lost_events": window.lost_events,
        "bytes": packed_bytes,
        "torch": window.torch,
        "settings": window.settings,
    }
