"""Result of connecting a target: its framework, configuration and run name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Declarations(Protocol):
    """Takes what a framework declares (techniques/detector.py)."""

    def begin(self, framework: str, config: Mapping[str, Any]) -> None: ...


@dataclasses.dataclass
class Connection:
    """Framework, configuration and run name of a connected target."""

    framework: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The framework's own settings, as the user set them."""
    run_name: str = ""
    """Name that the user gave the run in the framework; empty: none."""
    listeners: list[Callable[[str, str], None]] = dataclasses.field(default_factory=list)

    def on_failure(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(type, first line)`` when the framework reports an exception that ends the training."""
        self.listeners.append(listener)
