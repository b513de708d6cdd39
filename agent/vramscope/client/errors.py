"""Errors of the client."""

from __future__ import annotations


class ServerError(Exception):
    """The server cannot be reached, or it refused a request. The text says why, and what would be right."""

    def __init__(self, sentence: str, *, status: int | None = None, problem: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        """HTTP status; None without an answer of a vramscope server."""
        self.problem = problem
        """Stable word of the problem, as docs/wire.md lists them, such as ``not-found``; None without one."""
