"""News that concern a whole session: said once at the terminal, told once to the server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vramscope.process import terminal
from vramscope.protocol import messages

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.transport.ring import Ring


class Notice:
    """One piece of news, for when it comes true: what is recorded gives way to the user's own, say."""

    def __init__(self, ring: Ring, clock: StepClock, text: str) -> None:
        self._ring = ring
        self._clock = clock
        self._text = text
        self._told = False

    def tell(self) -> None:
        terminal.say_once(self._text, self._text)
        if not self._told:
            self._told = True
            event = messages.Event(
                time_ns=time.time_ns(), kind="notice", step=self._clock.step, data={"text": self._text}
            )
            self._ring.put(event)
