"""What is in the ring, packed into batches: each with its number, each beginning with Attached where that is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from vramscope.protocol import messages as wire_messages
from vramscope.transport import batching
from vramscope.transport.ring import Ring

BATCH_BYTES: Final = 512 * 1024
"""Below the 1 MiB that nginx lets through by default."""


class PackedBatch(NamedTuple):
    """A batch, encoded. It keeps its number and its bytes whatever happens to it, so that a twin can be told."""

    sequence: int
    rows: int
    body: bytes


class BatchPacker:
    """Numbers rise by one from 1. Used by one thread at a time."""

    def __init__(
        self,
        ring: Ring,
        *,
        session: str,
        run: str,
        rank: int,
        first_message: Callable[[], wire_messages.Attached],
        look_up: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.introduce = True
        """the next batch begins with a fresh Attached"""
        self.attached: wire_messages.Attached | None = None
        """the newest one, or None before the first batch"""
        self._next_first: wire_messages.Attached | None = None
        self._ring = ring
        self._session, self._run, self._rank = session, run, rank
        self.first_message = first_message
        self._look_up = look_up
        self._clock = clock
        self._sequence = 0

    def next(self, *, heartbeat: bool = False) -> PackedBatch | None:
        """The oldest messages of the ring as one batch; None where there is nothing to say, and no heartbeat is due."""
        self.prepare()  # before anything is taken from the ring: it may fail
        first: list[wire_messages.Cargo] = [] if self._next_first is None else [self._next_first]
        self._next_first = None
        messages = first + batching.merge(self._ring.take(BATCH_BYTES))
        return self.pack(messages) if messages or heartbeat else None

    def prepare(self) -> None:
        """Make the Attached message if one is due. May take some 10 ms: what is not known yet is looked up."""
        if not self.introduce:
            return
        self.introduce = False  # first: what changes while it is made asks for another
        made: wire_messages.Attached | None = None
        try:
            self._look_up()
            made = self.first_message()
        finally:
            if made is None:
                self.introduce = True  # and so does what went wrong
        self.attached = self._next_first = made

    def pack(self, messages: Sequence[wire_messages.Cargo], sequence: int | None = None) -> PackedBatch:
        """The messages as one batch, with the next number unless one is given."""
        if sequence is None:
            self._sequence += 1
            sequence = self._sequence
        batch = wire_messages.Batch(
            wire=wire_messages.WIRE_VERSION,
            session=self._session,
            run=self._run,
            rank=self._rank,
            sequence=sequence,
            sent_ns=self._clock(),
            messages=[],
        )
        return PackedBatch(sequence, batching.rows_in(messages), batching.encode(batching.loaded(batch, messages)))

    def introduced(self, body: bytes) -> bytes:
        """The same encoded batch, beginning with Attached."""
        return body if self.attached is None else batching.introduced(body, batching.encode(self.attached))

    def halves(self, packed: PackedBatch) -> tuple[PackedBatch, PackedBatch] | None:
        """Two batches for one that is too large, the first under its number; None where it cannot be cut."""
        cut = batching.split(packed.body)
        return None if cut is None else (self.pack(cut[0], packed.sequence), self.pack(cut[1]))
