"""CUDA graphs of a dry run. A program captures its step after some steps of warm-up, which run in a stream of their own.

The captured step has memory of its own, and is replayed without steps that anybody sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramscope.guard import guarded
from vramscope.process.patching import Patches


@guarded("the stream of a step", default=False)
def is_in_side_stream() -> bool:
    """Return whether this step runs in another stream than the default one, as the warm-up for a graph does."""
    import torch

    return torch.cuda.is_initialized() and bool(torch.cuda.current_stream() != torch.cuda.default_stream())


@guarded("the replays of graphs")
def install(replayed: Callable[[], None]) -> None:
    """Call ``replayed`` after each replay of a graph."""
    import torch

    def replay(original: Any, graph: Any) -> Any:
        result = original(graph)
        replayed()
        return result

    Patches().wrap(torch.cuda.CUDAGraph, "replay", replay)
