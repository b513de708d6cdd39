"""Shows where GPU memory goes in a PyTorch training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramscope.client.client import Client
    from vramscope.measurement import Measurement, measure

__all__ = ["Client", "Measurement", "measure"]
__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext vramscope``: the cell magic ``%%vram`` (notebook.py)."""
    from vramscope import notebook

    notebook.load(shell)


def __getattr__(name: str) -> Any:
    """Import what is used: ``vramscope run`` imports this package in every Python process that the command starts."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Client":
        from vramscope.client.client import Client

        return Client
    from vramscope import measurement

    return getattr(measurement, name)
