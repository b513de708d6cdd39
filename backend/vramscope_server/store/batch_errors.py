"""Refusals of batches: each names the field, its value and what would be valid."""

from __future__ import annotations

from vramscope.protocol import messages


class BadBatch(ValueError):
    """A batch that is refused. ``field`` is a path such as ``messages[2].columns.step``."""

    def __init__(self, field: str, seen: object, expected: str) -> None:
        super().__init__(f"{field}: {seen}, expected {expected}")
        self.field = field
        self.seen = seen
        self.expected = expected


class NotMessagePack(BadBatch):
    """The body is not MessagePack, or ends too early."""


class OtherWire(BadBatch):
    """The sender speaks another version of the contract."""

    def __init__(self, seen: object) -> None:
        super().__init__("wire", seen, str(messages.WIRE_VERSION))


class OtherProject(BadBatch):
    """A run of a project that the token is not bound to."""


class OtherToken(BadBatch):
    """The batch ends a session that another token began."""


class UnknownSession(BadBatch):
    """The sender is unknown: the agent is asked to introduce itself and to send the batch again."""
