"""Notices about a session, printed once on the terminal and sent once to the server."""

from __future__ import annotations

import time
from collections.abc import Callable

from vramscope.process import terminal
from vramscope.protocol import messages


class Notice:
    """A notice that is reported at most once: vramscope stops recording because the program records itself, say.

    put    sends a message to the server
    step   returns the number of completed optimizer steps
    """

    def __init__(self, put: Callable[[messages.Event], None], step: Callable[[], int], text: str) -> None:
        self._put = put
        self._step = step
        self._text = text
        self._reported = False

    def report(self) -> None:
        """Print the notice and send it to the server, unless that was done before."""
        terminal.say_once(self._text, self._text)
        if not self._reported:
            self._reported = True
            self._put(
                messages.Event(time_ns=time.time_ns(), kind="notice", step=self._step(), data={"text": self._text})
            )
