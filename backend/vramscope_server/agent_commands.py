"""The commands ``run`` and ``sync``: they are the agent's, and work where only the agent is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


def run(words: list[str]) -> int:
    """Run a training with the agent in it. Returns the exit code."""
    from vramscope import launch

    return launch.main(words)


def sync(words: list[str]) -> int:
    """Send what trainings stored on disk while the server was unreachable. Returns the exit code."""
    from vramscope.transport import sync as sender

    return sender.main(words)


AGENT_COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {"run": run, "sync": sync}
