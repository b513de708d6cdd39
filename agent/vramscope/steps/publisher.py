"""Publishes the events of the step clock to listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramscope.steps.events import StepListener
from vramscope.steps.records import StepRecord


class StepPublisher:
    """Base of the clock. Each event has its own tuple, of the listeners that override it."""

    def __init__(self) -> None:
        self._listeners: tuple[StepListener, ...] = ()
        self._on_phase_entered: tuple[Callable[[], None], ...] = ()
        self._on_phase_continued: tuple[Callable[[], None], ...] = ()
        self._on_phase_inputs: tuple[Callable[[tuple[Any, ...], dict[str, Any]], None], ...] = ()
        self._on_step_ended: tuple[Callable[[StepRecord], None], ...] = ()
        self._on_renumbered: tuple[Callable[[int], None], ...] = ()

    def subscribe(self, listener: StepListener) -> None:
        """Publish events to this listener from now on. Subscribing twice changes nothing."""
        if listener not in self._listeners:
            self._set_listeners((*self._listeners, listener))

    def unsubscribe(self, listener: StepListener) -> None:
        """Publish no more events to this listener."""
        self._set_listeners(tuple(one for one in self._listeners if one is not listener))

    def _set_listeners(self, listeners: tuple[StepListener, ...]) -> None:
        # New tuples: a hook on the training thread sees the old or the new one of each event, never one that changes.
        self._listeners = tuple(sorted(listeners, key=lambda listener: listener.order))

        def calls(event: str) -> tuple[Callable[..., None], ...]:
            unused = getattr(StepListener, event)
            return tuple(getattr(one, event) for one in self._listeners if getattr(type(one), event) is not unused)

        self._on_phase_entered = calls("phase_entered")
        self._on_phase_continued = calls("phase_continued")
        self._on_phase_inputs = calls("phase_inputs")
        self._on_step_ended = calls("step_ended")
        self._on_renumbered = calls("steps_renumbered")

    @property
    def listener_needs_detail(self) -> bool:
        """True if a listener needs all hooks in the next step."""
        return any(listener.needs_detail for listener in self._listeners)
