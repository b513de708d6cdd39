"""Switches Python stacks on within a window: in its last step, or earlier where the training may soon run out of memory.

A stack costs about 1 µs an allocation. The first steps of most trainings are recorded without. Where little of the card is left,
an out-of-memory error in the first or second step is likely, and only stacks give it source lines and modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramscope.recording.counters import AllocatorReader
from vramscope.recording.event_metadata import EventMetadata
from vramscope.recording.plan import FIRST
from vramscope.recording.pytorch_history import PytorchHistory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramscope.recording.raw_window import DeviceFacts
    from vramscope.recording.window_state import OpenWindow

WEIGHTS_SHARE: Final = 0.2
"""Share of the memory that is allocated before any work. From here on a training may not fit: gradients and the state of AdamW
take three times as much again."""
WORK_SHARE: Final = 0.6
"""Share of the memory that work takes. From here on the state of the optimizer, which comes with the first step, may not fit."""


class StackSwitch:
    """Decides when a window's events get stacks. All calls are on the training thread."""

    def __init__(
        self, history: PytorchHistory, metadata: EventMetadata, reader: AllocatorReader, most_events: int
    ) -> None:
        self._history, self._metadata = history, metadata
        self._reader, self._most_events = reader, most_events

    def phase_entered(self, window: OpenWindow) -> None:
        """Handle the begin of a phase, before its mark. One reading a device in the first steps, nothing later."""
        if window.request is FIRST and not window.raw.stacks and self._history.can_add_stacks:
            share = WORK_SHARE if window.has_work else WEIGHTS_SHARE
            if any(self._allocated_bytes(facts) > share * room_bytes(facts) for facts in window.raw.facts):
                self._add(window)

    def step_ended(self, window: OpenWindow, done: int) -> None:
        """Handle the end of a step but the window's last. ``done``: steps of the window that have ended."""
        if window.raw.stacks or not self._history.can_add_stacks:
            return
        if done == window.request.stacks_from or (window.request is FIRST and is_nearly_full(window)):
            self._add(window)

    def _allocated_bytes(self, facts: DeviceFacts) -> int:
        # (The clock's last reading may be older than the model.)
        return int(self._reader.counters(facts.device)["allocated_bytes"]["all"]["current"])

    def _add(self, window: OpenWindow) -> None:
        window.raw.stacks = True
        window.events_without_stacks = self._reader.events_since(window.raw.facts)
        self._history.add_stacks(self._most_events)
        window.modules = self._metadata.begin_module_tags()


def needs_stacks_at_once(facts_of_devices: Iterable[DeviceFacts]) -> bool:
    """Return whether so much is allocated when the first window begins that the training may not fit."""
    return any(
        facts.start_counters["allocated_bytes.all.current"] > WEIGHTS_SHARE * room_bytes(facts)
        for facts in facts_of_devices
    )


def is_nearly_full(window: OpenWindow) -> bool:
    """Return whether the steps of a window took most of a device."""
    return any(window.peaks.get(facts.device, (0, 0))[0] > WORK_SHARE * room_bytes(facts) for facts in window.raw.facts)


def room_bytes(facts: DeviceFacts) -> int:
    """Bytes of a device that this process could take when the window began."""
    room = facts.free_bytes + facts.start_counters["reserved_bytes.all.current"]
    return min(room, facts.total_bytes if facts.limit_bytes is None else facts.limit_bytes)
