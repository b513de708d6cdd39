"""The thread that sends messages to the server, or writes them to disk during an outage. The training never waits for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from vramscope.guard import guarded
from vramscope.process import terminal
from vramscope.protocol import messages
from vramscope.settings import Settings
from vramscope.transport import batching
from vramscope.transport.backoff import Outage
from vramscope.transport.batch_packer import BatchPacker, PackedBatch
from vramscope.transport.http import ServerAnswer, ServerConnection
from vramscope.transport.ring import Ring
from vramscope.transport.spool import Spool
from vramscope.transport.spool_dir import WaitingBatch

HEARTBEAT_S: Final = 5.0
KEEP_INTERVAL_S: Final = 2.0
"""During an outage one file is written in this time: fewer and larger than batches on the wire."""

DRAIN_BATCHES: Final = 10
"""Number of kept batches sent in one turn. A POST takes about 1 ms of CPU from the training."""

SEND_BATCHES: Final = 8
FIRST_URGENT_NUMBER: Final = 1 << 39
"""First number of batches written by keep_now. It is below the numbers that ``sync`` gives to halves."""
MAX_PAUSE_S: Final = 60.0
MAX_SEND_EVERY_S: Final = 10.0
"""Longest time between two turns that a server can ask for: a third of the silence after which a session counts as lost."""
QUICK_S: Final = 10.0
"""Time from the start in which every turn comes on time: somebody waits for the run's page."""
MOST_SHARE: Final = 0.002
"""Share of a processor core that turns may take afterwards; the pauses between them grow, up to MAX_OWN_PAUSE_S."""
MAX_OWN_PAUSE_S: Final = 1.0
TURNS_IN_MEAN: Final = 8
"""Number of turns over which their processor time is averaged."""
LAST_KEEP_S: Final = 0.2
"""Part of the time for closing that is reserved for writing the rest to disk."""


class _GivenUp(BaseException):
    """Raised in the thread when close() no longer waits and takes over. Not an error: it passes the guard."""


class Sender:
    """Takes messages from the ring and sends them in order, as batches with rising numbers.

    States: *direct* (one batch each flush interval goes straight to the server), *away* (batches go to the spool, the
    oldest is tried with growing pauses), *catching up* (the server is back, kept batches go first).

    first_message         returns Attached as far as it is known; called from any thread, and returns at once
    look_up_slow_facts    looks up what takes long (the commit); called on the thread, before first_message
    complete              adds to a message what is read from files; called on the thread, must not raise
    sends                 False: server or token is not known, so that everything goes to the spool for `vramscope sync`

    """

    def __init__(
        self,
        settings: Settings,
        *,
        session: str,
        run: str,
        rank: int,
        first_message: Callable[[], messages.Attached],
        ring: Ring,
        spool: Spool,
        look_up_slow_facts: Callable[[], None] = lambda: None,
        complete: Callable[[messages.BatchItem], messages.BatchItem] = lambda item: item,
        on_request: Callable[[list[str]], None] | None = None,
        clock: Callable[[], int] = time.time_ns,
        sends: bool = True,
    ) -> None:
        self.settings = settings
        self.ring = ring
        self.spool = spool
        self.sent_batches = 0
        self.sent_rows = 0
        self.sent_bytes = 0
        self.cpu_seconds = 0.0
        """CPU time of the thread so far."""
        self._turn_cpu_s = 0.0
        """Mean of the newest turns."""
        self._on_request = on_request
        self._packer = BatchPacker(
            ring,
            session=session,
            run=run,
            rank=rank,
            first_message=first_message,
            look_up_slow_facts=look_up_slow_facts,
            complete=complete,
            clock=clock,
        )
        self._delivery = ServerConnection(
            settings.server,
            settings.token,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._waiting: deque[threading.Event] = deque()
        # Held by the thread while it works, and released while it waits for the clock or the network. Only close()
        # asks for it, and briefly, so that it can take over from a thread that hangs in a POST.
        self._lock = threading.Lock()
        self._urgent_numbers = itertools.count(1)
        self._in_hand: PackedBatch | None = None  # being posted, not in the spool
        self._outage = Outage(permanent=not sends)
        self._next_keep_s = 0.0
        self._last_sent_s = 0.0
        self._send_every_s = settings.flush_ms / 1000
        self._caught_up_batches = 0
        self._closing_at_s: float | None = None
        self._given_up = False
        spool.begin(session=session, server=settings.server)

    def start(self) -> None:
        """Start the thread. Takes about 0.2 s once, for the imports."""
        self._delivery.prepare()
        self._thread = threading.Thread(target=self._run, name="vramscope-sender", daemon=True)
        self._thread.start()

    @property
    def dropped_rows(self) -> int:
        """Number of rows that are lost, because ring or spool were full."""
        return self.ring.dropped_rows + self.spool.dropped_rows

    def attach_again(self) -> None:
        """Begin the next batch with a fresh Attached message, because its content changed."""
        self._packer.introduce = True

    def keep_now(self, items: list[messages.Message]) -> bool:
        """Write messages to disk at once as a batch of their own, from any thread. The batch is sent in its turn.

        Returns False if the disk refuses. The number of the batch is far above the thread's own numbers.

        """
        if self._pid != os.getpid() or self._given_up:
            return False
        first = self._packer.attached or self._packer.first_message()
        packed = self._packer.pack([first, *items], FIRST_URGENT_NUMBER + next(self._urgent_numbers))
        done = self.spool.keep_now(*packed, batching.encode(first))
        self.ring.wake.set()
        return done

    def flush(self, deadline_s: float = 3.0) -> bool:
        """Wait until all messages so far are at the server or in the spool. False: not within the deadline."""
        if self._thread is None or self._given_up or self._pid != os.getpid():
            return False
        done = threading.Event()
        self._waiting.append(done)
        self.ring.wake.set()
        return done.wait(deadline_s)

    @guarded("closing the sender", False)
    def close(self, deadline_s: float | None = None) -> bool:
        """Send the rest until the deadline, write what is left to the spool, and end the thread.

        Returns True if everything reached the server. Takes at most the deadline and half a second, whatever the server
        does: a thread that hangs in a POST is abandoned, and its batch goes to the spool.

        """
        if self._given_up or self._pid != os.getpid():
            return False
        deadline_s = self.settings.close_timeout_s if deadline_s is None else deadline_s
        self._closing_at_s = time.monotonic() + deadline_s
        self.ring.wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline_s)
        if not self._lock.acquire(timeout=0.5):
            self._given_up = True
            return False  # the disk hangs, not the network: nothing more can be saved
        try:
            self._given_up = True
            if self._in_hand is not None:
                self._keep(self._in_hand)
            self._keep_all()
            left = len(self.spool)
            lost_before = self.spool.dropped_rows
            self.spool.close()
        finally:
            self._lock.release()
        if self.spool.batches_on_disk:
            terminal.say_once("left", f"unsent data stays in {self.spool.directory}; `vramscope sync` sends it")
        if lost := self.spool.dropped_rows - lost_before:
            where = self.spool.directory
            terminal.say_once("lost", f"the last {lost:,} rows are lost: no server, and {where} cannot take more")
        return left == 0 and self.dropped_rows == 0

    def after_fork_in_child(self) -> None:
        """Make the child's copy inert: no thread, no lock, and nothing sent on the parent's connection."""
        self._pid = -1
        self._given_up = True
        self._thread = None
        self._in_hand = None
        self._waiting.clear()
        self._delivery.forget()
        self.ring.after_fork_in_child()
        self.spool.after_fork_in_child()

    # --- the thread ---------------------------------------------------------------------------------------------

    @guarded("the sender")
    def _run(self) -> None:
        began = time.monotonic()
        with contextlib.suppress(_GivenUp), contextlib.closing(self._delivery):
            while self._closing_at_s is None:
                # While the server is away, its rhythm does not delay what is written to disk.
                self.ring.wake.wait(self._pause_s(time.monotonic() - began))
                self._turn()
            self._last_turn(self._closing_at_s)

    def _pause_s(self, running_s: float) -> float:
        """Return the longest time until the next turn."""
        if self._outage.on:
            return self.settings.flush_ms / 1000
        own_s = 0.0 if running_s < QUICK_S else min(self._turn_cpu_s / MOST_SHARE, MAX_OWN_PAUSE_S)
        return max(self._send_every_s, own_s)

    @guarded("sending")
    def _turn(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._packer.prepare()  # without the lock: close() need not wait for it
        with self._lock:
            self.spool.take_over()
            now = time.monotonic()
            direct = len(self.spool) == 0 and now >= self._outage.next_try_s
            if direct:
                direct = self._send_new(None if waiting else SEND_BATCHES)
            if not direct:
                in_use = len(self.spool) > 0 or self._outage.on
                half_full = self.ring.kept_bytes * 2 >= self.ring.max_bytes
                if waiting or half_full or (in_use and now >= self._next_keep_s):
                    self._keep_all()
                    self._next_keep_s = now + KEEP_INTERVAL_S
                if now >= self._outage.next_try_s:
                    self._send_kept(DRAIN_BATCHES)
        before, self.cpu_seconds = self.cpu_seconds, time.thread_time()
        self._turn_cpu_s += (self.cpu_seconds - before - self._turn_cpu_s) / TURNS_IN_MEAN
        for done in waiting:
            done.set()

    @guarded("sending the last batches")
    def _last_turn(self, closing_at_s: float) -> None:
        with self._lock:
            self.spool.take_over()
            # Also when the next try is not due yet: the training ends now, and the server may be back. During an
            # outage it gets one second, so that the end of a run does not always wait in vain.
            until_s = min(closing_at_s, time.monotonic() + 1.0) if self._outage.on else closing_at_s - LAST_KEEP_S
            if len(self.spool):
                self._keep_all()
            if not self._outage.permanent and self._send_kept(until_s=until_s):
                self._send_new(until_s=until_s)
            self._keep_all()
            self._delivery.close()
        self.cpu_seconds = time.thread_time()
        for done in self._waiting:
            done.set()

    def _send_new(self, count: int | None = None, *, until_s: float | None = None) -> bool:
        """Send the messages of the ring, in at most ``count`` batches. False: one was not accepted and is in the spool now."""
        # If the server sets the rhythm, what arrives during a POST waits for the next turn.
        is_slowed = count is not None and self._send_every_s > self.settings.flush_ms / 1000
        goal = self.ring.put_messages
        for _ in _times(count):
            packed = self._packer.next(heartbeat=time.monotonic() >= self._last_sent_s + HEARTBEAT_S)
            if packed is None:
                break
            if not self._deliver(packed, until_s=until_s):
                return False
            if until_s is None and time.monotonic() < self._outage.next_try_s:
                break  # the server asked for a pause
            if is_slowed and self.ring.taken_messages + self.ring.dropped_messages >= goal:
                break
        return True

    def _send_kept(self, count: int | None = None, *, until_s: float | None = None) -> bool:
        """Send the oldest batches of the spool, in order. False: one was not accepted and stays there."""
        for _ in _times(count):
            oldest = self.spool.oldest()
            if oldest is None:
                break
            kept, body = oldest
            if not self._deliver(PackedBatch(kept.sequence, kept.rows, body), kept, until_s=until_s):
                return False
            if until_s is None and time.monotonic() < self._outage.next_try_s:
                break
        return True

    def _keep_all(self) -> None:
        while (packed := self._packer.next()) is not None:
            self._keep(packed)

    def _keep(self, packed: PackedBatch) -> None:
        if self._packer.attached is not None:
            self.spool.introduce(batching.encode(self._packer.attached))
        self.spool.append(*packed)

    def _deliver(self, packed: PackedBatch, kept: WaitingBatch | None = None, *, until_s: float | None = None) -> bool:
        """Post a batch and act on the answer. ``kept``: its entry in the spool. True: continue with the next batch."""
        answer = self._post(packed, in_spool=kept is not None, until_s=until_s)
        halves = self._packer.halves(packed) if answer.outcome == "too_large" else None
        answer = answer if halves is not None else answer.to_single_row()
        now = time.monotonic()
        if answer.outcome in ("away", "busy", "refused"):
            if kept is None:
                self._keep(packed)
            self._outage.record_failure(answer, now, self.spool.location, silent=self._closing_at_s is not None)
            return False
        self._outage.end(now)
        if kept is not None:
            self.spool.remove(kept)
        if answer.outcome == "stored":
            self._on_stored(packed, answer, was_kept=kept is not None)
            return True
        if halves is None:
            self._set_aside(packed, answer.text)
            terminal.say_once(
                "set-aside", f"a batch was refused and set aside in {self.spool.directory}: {answer.text}"
            )
            return True
        self._keep(halves[1])
        return self._deliver(halves[0], until_s=until_s)

    def _post(self, packed: PackedBatch, *, in_spool: bool, until_s: float | None) -> ServerAnswer:
        """Post a batch, beginning with Attached if the server may not know the session."""
        # After an outage it may be another server, or one with an empty database.
        body = self._packer.with_attached(packed.body) if self._outage.on else packed.body
        self._in_hand = None if in_spool else packed
        answer = self._post_unlocked(body, until_s)
        if answer.outcome == "unknown_session":
            body = self._packer.with_attached(packed.body)
            answer = self._post_unlocked(body, until_s)
        self._in_hand = None
        return answer

    def _post_unlocked(self, body: bytes, until_s: float | None) -> ServerAnswer:
        timeout_s = None if until_s is None else until_s - time.monotonic()
        if timeout_s is not None and timeout_s <= 0:
            return ServerAnswer("away", "no time was left")
        self._lock.release()
        try:
            answer = self._delivery.post(body, timeout_s=timeout_s)
        finally:
            self._lock.acquire()
        if self._given_up:
            raise _GivenUp
        return answer

    def _set_aside(self, packed: PackedBatch, reason: str) -> None:
        lost_before = self.spool.dropped_batches
        self.spool.set_aside(*packed, reason)
        if self.spool.dropped_batches > lost_before:
            terminal.say_once("set-aside-full", f"{self.spool.directory} takes no more refused batches: they are lost")

    def _on_stored(self, packed: PackedBatch, answer: ServerAnswer, *, was_kept: bool) -> None:
        if self.sent_batches == 0 and (earlier := self.spool.earlier_sessions()):
            unsent = f"{earlier} unsent session{'s' * (earlier > 1)} in {self.spool.directory}"
            terminal.say_once("earlier", f"{unsent}; `vramscope sync` sends {'them' if earlier > 1 else 'it'}")
        self.sent_batches += 1
        self.sent_rows += packed.rows
        self.sent_bytes += len(packed.body)
        self._last_sent_s = time.monotonic()
        self._caught_up_batches += was_kept
        if was_kept and len(self.spool) == 0:
            self._outage.caught_up(self._caught_up_batches)
            self._caught_up_batches = 0
        if answer.ack is not None:
            self._outage.next_try_s = self._last_sent_s + min(max(answer.ack.retry_after_ms, 0) / 1000, MAX_PAUSE_S)
            asked_s = min(answer.ack.send_every_ms / 1000, MAX_SEND_EVERY_S)
            self._send_every_s = max(self.settings.flush_ms / 1000, asked_s)
            if answer.ack.requests and self._on_request is not None:
                with guarded("answering the server's request"):
                    self._on_request(list(answer.ack.requests))


def _times(count: int | None) -> Iterable[int]:
    return itertools.count() if count is None else range(count)
