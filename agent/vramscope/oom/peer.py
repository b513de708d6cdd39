"""How this rank stood when another one ran out of memory. It most often waits in a collective by then, until its launcher ends it.

It is told by the server, in the answer to a batch; by a word of the other rank's, where both share a spool folder; else by the
error that its collective ends with. What it writes is read on the sampler's thread, and lies on the disk at once: SIGTERM, of
which no Python hears while a collective is waited for, may come right after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vramscope.oom import error_chain, forward_progress, stack
from vramscope.oom.peer_signal import Word
from vramscope.oom.record_builder import Scene
from vramscope.oom.trigger import Error
from vramscope.protocol import messages
from vramscope.protocol.oom_record import BlackBox
from vramscope.steps.clock import StepClock

if TYPE_CHECKING:
    from vramscope.protocol.oom_record import Frame

MOST_RECORDS: Final = 4
"""of one session: a rank that runs out in every step, and survives it, is no reason to write as often"""
SERVER: Final = "the server"
HOST: Final = "a rank of this host"
ERROR: Final = "the error of its collective"
_OF_COLLECTIVES: Final = ("ProcessGroup", "gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


class Bystander:
    """One a session, where there are several ranks.

    bring   brings a record away at once: ``bring(box, asked_by)``
    """

    def __init__(self, clock: StepClock, scene: Scene, word: Word, bring: Callable[[BlackBox, str], None]) -> None:
        self._clock, self._scene, self._word = clock, scene, word
        self._bring = bring
        self._asked_by = ""
        self._records = 0
        self._wrote_at_step = -1

    def begin(self) -> None:
        self._word.tidy()

    def ask(self) -> None:
        """The server asks. From any thread."""
        self._asked_by = SERVER

    def tell(self) -> None:
        """This rank runs out."""
        self._word.leave()

    def scan(self, *, ran_out: bool) -> None:
        """Write, where somebody has asked. On the sampler's thread. ``ran_out``: this rank did so itself, and has said it all."""
        asked_by = HOST if self._word.came() else self._asked_by
        self._asked_by = ""
        if asked_by and not ran_out and self._is_due():
            frames = stack.stack_of(sys._current_frames().get(self._clock.thread or 0))
            roots = self._scene.known_roots()
            self._write(Error(
                "bystander", self._scene.device(), None,
                stack=stack.told(frames), running=forward_progress.running(frames, roots, waits=False), frames=frames, roots=roots,
            ), asked_by)  # fmt: skip

    def failing(self, error: BaseException) -> None:
        """An error ends the run. Is it what a collective says when a rank is gone, and was nothing written yet?"""
        known = next((one for one in error_chain.chain_of(error) if is_of_collective(one)), None)
        if known is not None and self._is_due():
            frames: list[Frame] = error_chain.frames_of(known)
            roots = self._scene.known_roots()
            self._write(Error("bystander", self._scene.device(), None, stack=frames, roots=roots), ERROR)

    def _is_due(self) -> bool:
        """The server and the other rank may ask for the same record."""
        return self._records < MOST_RECORDS and self._clock.step != self._wrote_at_step

    def _write(self, error: Error, asked_by: str) -> None:
        self._records += 1
        self._wrote_at_step = self._clock.step
        self._bring(self._scene.box(error), asked_by)


def is_of_collective(error: BaseException) -> bool:
    """Whether torch.distributed raised it: by its class, or a plain RuntimeError in the words of gloo or NCCL."""
    kind = type(error)
    if kind.__module__.startswith("torch") and kind.__name__.startswith("Dist"):
        return True
    return kind is RuntimeError and any(words in str(error)[: messages.MAX_PIECE_BYTES] for words in _OF_COLLECTIVES)
