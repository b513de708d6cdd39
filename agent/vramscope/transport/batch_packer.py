"""Packs messages of the ring into numbered batches; a batch begins with Attached where that is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from vramscope.protocol import messages
from vramscope.transport import batching
from vramscope.transport.ring import Ring

BATCH_BYTES: Final = 512 * 1024
"""Maximum size of a batch. It is below nginx's default limit of 1 MiB."""


class PackedBatch(NamedTuple):
    """An encoded batch. It keeps its number and bytes, so that the server recognises a duplicate."""

    sequence: int
    rows: int
    body: bytes


class BatchPacker:
    """Makes batches with numbers that rise by one from 1. Used by one thread at a time."""

    def __init__(
        self,
        ring: Ring,
        *,
        session: str,
        run: str,
        rank: int,
        first_message: Callable[[], messages.Attached],
        look_up_slow_facts: Callable[[], None] = lambda: None,
        complete: Callable[[messages.BatchItem], messages.BatchItem] = lambda item: item,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.introduce = True
        """True if the next batch must begin with a fresh Attached message."""
        self.attached: messages.Attached | None = None
        """Newest Attached message; None before the first batch."""
        self._next_first: messages.Attached | None = None
        self._ring = ring
        self._session, self._run, self._rank = session, run, rank
        self.first_message = first_message
        self._look_up_slow_facts = look_up_slow_facts
        self._complete = complete
        self._clock = clock
        self._sequence = 0

    def next(self, *, heartbeat: bool = False) -> PackedBatch | None:
        """Return the oldest messages of the ring as one batch; None if there are none and no heartbeat is due."""
        self.prepare()  # before messages leave the ring: it may fail
        first: list[messages.BatchItem] = [] if self._next_first is None else [self._next_first]
        self._next_first = None
        items = first + [self._complete(item) for item in batching.merge(self._ring.take(BATCH_BYTES))]
        return self.pack(items) if items or heartbeat else None

    def prepare(self) -> None:
        """Make the Attached message if one is due. May take some 10 ms to look up what is not known yet."""
        if not self.introduce:
            return
        self.introduce = False  # set first: a change in the meantime asks for another one
        made: messages.Attached | None = None
        try:
            self._look_up_slow_facts()
            made = self.first_message()
        finally:
            if made is None:
                self.introduce = True  # and so does a failure
        self.attached = self._next_first = made

    def pack(self, items: Sequence[messages.BatchItem], sequence: int | None = None) -> PackedBatch:
        """Pack messages into a batch, under the next number unless ``sequence`` is set."""
        if sequence is None:
            self._sequence += 1
            sequence = self._sequence
        batch = messages.Batch(
            wire=messages.WIRE_VERSION,
            session=self._session,
            run=self._run,
            rank=self._rank,
            sequence=sequence,
            sent_ns=self._clock(),
            messages=[],
        )
        return PackedBatch(sequence, batching.rows_in(items), batching.encode(batching.with_items(batch, items)))

    def with_attached(self, body: bytes) -> bytes:
        """Return the encoded batch, beginning with Attached."""
        return body if self.attached is None else batching.with_attached(body, batching.encode(self.attached))

    def halves(self, packed: PackedBatch) -> tuple[PackedBatch, PackedBatch] | None:
        """Split a batch that is too large; the first half keeps its number. None if it cannot be split."""
        cut = batching.split(packed.body)
        return None if cut is None else (self.pack(cut[0], packed.sequence), self.pack(cut[1]))
