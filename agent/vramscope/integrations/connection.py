"""What a framework, or a loop of the user's own, has said of itself when it was connected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Connection:
    """What a framework says of a target that it knows."""

    framework: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """the framework's own settings, as the user gave them"""
    listeners: list[Callable[[str, str], None]] = dataclasses.field(default_factory=list)

    def on_failure(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(type, first line)`` when the framework reports an exception that ends the training."""
        self.listeners.append(listener)
