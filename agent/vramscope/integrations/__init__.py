"""Integrations of frameworks. A user imports callbacks from here: ``from vramscope.integrations import VramscopeCallback``."""

from __future__ import annotations

import importlib
from typing import Any, Final

CALLBACKS: Final = {
    "VramscopeCallback": "transformers_callback",
    "VramscopeMonitor": "lightning_callbacks",
    "VramscopeLogger": "lightning_callbacks",
    "VramscopeTracker": "accelerate_tracker",
    "VramscopeTrainLoop": "ray_train_loop",
}
"""Class -> module of vramscope.callbacks. Its import imports the framework."""


def __getattr__(name: str) -> Any:
    """A callback; the module is imported at its first use, as it needs its framework and the agent above this package."""
    if name not in CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vramscope.callbacks.{CALLBACKS[name]}"), name)
