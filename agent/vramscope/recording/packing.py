"""Makes artifacts from recorded windows: one window a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from vramscope.protocol import messages
from vramscope.protocol.window import Window, pack
from vramscope.recording.convert.window import make
from vramscope.recording.raw_window import RawWindow
from vramscope.transport.uploads import Artifact

PEAKS: Final = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")


class WindowPacker:
    """Packs windows, on the agent's own thread.

    on_window called with each packed window
    on_cost   called with (steps, seconds, highest allocated bytes, highest reserved bytes) of each packed recording
    """

    def __init__(
        self, on_window: Callable[[Window], None] | None, on_cost: Callable[[int, float, int, int], None]
    ) -> None:
        self._on_window = on_window
        self._on_cost = on_cost

    def artifacts(self, raw: RawWindow, seconds: float, pause: Callable[[], None]) -> list[Artifact]:
        """Return the windows of a recording. ``seconds``: its cost so far."""
        start_s = time.thread_time()
        windows = [make(raw, facts, pause) for facts in raw.facts]
        packed = [pack(window) for window in windows]
        if self._on_window is not None:
            for window in windows:
                self._on_window(window)
        if not raw.is_users:
            self._on_cost(
                max(window.last_step - window.first_step + 1 for window in windows),
                seconds + time.thread_time() - start_s,
                *(max(window.end.counters.get(peak, 0) for window in windows) for peak in PEAKS),
            )
        return [
            Artifact("window", about_of(window, len(data)), data, raw.idents.get(window.device))
            for window, data in zip(windows, packed, strict=True)
        ]


def about_of(window: Window, packed_bytes: int) -> dict[str, messages.Scalar]:
    """Return the summary of a window that lists show."""
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
        "leaks": len(window.holdings),
        "peak_allocated_bytes": window.end.counters.get(PEAKS[0], 0),
    }
