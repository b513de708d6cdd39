"""Record of a rank that did not run out when another one did. Usually it waits in a collective then, until its launcher ends it.

It learns of the error from the server, in the answer to a batch; from the other rank's signal file, where both share a
spool folder; or from the error that its collective ends with. The state is read on the sampler's thread and written to
the disk at once: SIGTERM may follow, and Python does not see it while a collective waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from vramscope.oom import error_chain, error_stack, forward_progress
from vramscope.oom.peer_signal import PeerSignal
from vramscope.oom.record_builder import RecordBuilder
from vramscope.oom.trigger import OomTrigger
from vramscope.protocol import messages
from vramscope.protocol.oom_record import OomRecord
from vramscope.steps.clock import StepClock

MOST_RECORDS: Final = 4
"""Limit of a session: another rank may run out in every step and survive."""
SERVER: Final = "the server"
HOST: Final = "a rank of this host"
ERROR: Final = "the error of its collective"
_COLLECTIVE_WORDS: Final = ("ProcessGroup", "gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


class Bystander:
    """One a session, where there are several ranks.

    keep   writes a record to the disk: ``keep(record, asked_by)``
    """

    def __init__(
        self, clock: StepClock, builder: RecordBuilder, signal: PeerSignal, keep: Callable[[OomRecord, str], None]
    ) -> None:
        self._clock, self._builder, self._signal = clock, builder, signal
        self._keep = keep
        self._asked_by = ""
        self._records = 0
        self._last_step = -1

    def begin(self) -> None:
        self._signal.remove_stale()

    def ask(self) -> None:
        """Request a record on behalf of the server. From any thread."""
        self._asked_by = SERVER

    def signal(self) -> None:
        """Signal the other ranks that this one runs out."""
        self._signal.send()

    def check(self, *, ran_out: bool) -> None:
        """Write a record if one was requested. On the sampler's thread.

        ran_out   this rank ran out itself and has written its own record
        """
        asked_by = HOST if self._signal.received() else self._asked_by
        self._asked_by = ""
        if asked_by and not ran_out and self._is_due():
            frames = error_stack.stack_of(sys._current_frames().get(self._clock.thread or 0))
            roots = self._builder.known_roots()
            running = forward_progress.running_module(frames, roots, is_stopped=False)
            self._write(
                OomTrigger(
                    "bystander",
                    self._builder.device(),
                    None,
                    stack=error_stack.as_record(frames),
                    running=running,
                    frames=frames,
                    roots=roots,
                ),
                asked_by,
            )

    def failing(self, error: BaseException) -> None:
        """An error ends the run. Write a record if a collective raised it because a rank is gone, and none was written yet."""
        collective = next((one for one in error_chain.chain_of(error) if is_of_collective(one)), None)
        if collective is not None and self._is_due():
            frames, roots = error_chain.frames_of(collective), self._builder.known_roots()
            trigger = OomTrigger("bystander", self._builder.device(), None, stack=frames, roots=roots)
            self._write(trigger, ERROR)

    def _is_due(self) -> bool:
        """False for a second request in one step: the server and the other rank may ask for the same record."""
        return self._records < MOST_RECORDS and self._clock.step != self._last_step

    def _write(self, trigger: OomTrigger, asked_by: str) -> None:
        self._records += 1
        self._last_step = self._clock.step
        self._keep(self._builder.build(trigger), asked_by)


def is_of_collective(error: BaseException) -> bool:
    """Whether torch.distributed raised it: by its class, or a plain RuntimeError in the words of gloo or NCCL."""
    kind = type(error)
    if kind.__module__.startswith("torch") and kind.__name__.startswith("Dist"):
        return True
    text = str(error)[: messages.MAX_PIECE_BYTES]
    return kind is RuntimeError and any(words in text for words in _COLLECTIVE_WORDS)
