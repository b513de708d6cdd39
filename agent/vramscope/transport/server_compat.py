"""A server that is older than this agent refuses a whole batch for one thing in it: that is left out, and the rest is sent.

Servers since 2026-11-25 keep what they do not know. Those before answer ``invalid-batch`` and name the field: a series that they
do not know is left out of all batches from then on, a message of this batch alone. That is told; all that stands beside it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from vramscope.protocol import messages
from vramscope.transport.http import Answer

MOST_CUTS: Final = 32
"""things of one batch that are left out; where a server refuses more of it, the batch is no server's"""
_AT: Final = re.compile(r"(messages|scalars)\[(\d+)\](.*)")


class OlderServer:
    """What one server would not have. Used by one thread at a time."""

    def __init__(self) -> None:
        self.cut: list[str] = []
        """messages that were left out of the batch that was posted last, in words: nobody has them"""
        self._new_series: list[str] = []
        self._series: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Another one may answer now, or the same one, upgraded."""
        self._series.clear()

    def post(self, body: bytes, send: Callable[[bytes], Answer]) -> Answer:
        """The answer to as much of an encoded batch as the server takes; to all of it, where that is not one thing too many."""
        self.cut = []
        first: Answer | None = None
        rest = self._without_series(body)
        for _ in range(MOST_CUTS):
            answer = send(rest)
            if answer.verdict != "rejected":
                return answer
            first = first or answer
            less = self._less(rest, answer)
            if less is None:
                break
            rest = less
        self.cut = []
        return first or answer

    def take_series(self) -> list[str]:
        """Names of those that are left out since this was asked last."""
        taken, self._new_series = self._new_series, []
        return taken

    def _less(self, body: bytes, answer: Answer) -> bytes | None:
        """The batch without what was refused; None where the answer names nothing that could go alone."""
        found = _AT.fullmatch(answer.field)
        batch: dict[str, Any] = msgspec.msgpack.decode(body)
        if found is None or int(found[2]) >= len(batch.get(found[1], ())):
            return None
        item = batch[found[1]][int(found[2])]
        kind = item.get("type", "scalars")
        if kind == "attached":
            return None
        if kind == "block" and found[3] == ".columns" and answer.seen in item["columns"].keys() - {"time_ns", "step"}:
            self._series.add((item["stream"], answer.seen))
            self._new_series.append(answer.seen)
            return self._without_series(body)
        del batch[found[1]][int(found[2])]
        self.cut.append(f"{kind} ({answer.field}: {answer.seen})")
        return messages.encode(batch)

    def _without_series(self, body: bytes) -> bytes:
        if not self._series:
            return body
        batch: dict[str, Any] = msgspec.msgpack.decode(body)
        for message in batch["messages"]:
            if message["type"] == "block":
                for name in [name for name in message["columns"] if (message["stream"], name) in self._series]:
                    del message["columns"][name]
        return messages.encode(batch)
