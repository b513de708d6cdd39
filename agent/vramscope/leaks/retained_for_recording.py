"""What an open recording of allocator history asks the leak detector: which bytes the known findings retain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vramscope.leaks.autograd.graph_walk import Chains, NodeBudget, walk
from vramscope.leaks.registry import FindingRegistry
from vramscope.leaks.scan import storages
from vramscope.memory.scanned_leak import ScannedLeak
from vramscope.steps.events import RetentionRecording


class RetainedForRecording:
    """One per detector. Without a recording nothing is asked."""

    def __init__(self, registry: FindingRegistry) -> None:
        self.recording: RetentionRecording | None = None
        self._registry = registry

    @property
    def are_open(self) -> bool:
        """True while the recorder wants to know what the known findings retain. Asked several times a step."""
        recording = self.recording
        if recording is None or not recording.is_open:
            return False
        return self._registry.names_holders and recording.asks_who_holds

    def needed(self, root: Any, chains: Chains) -> None:
        """Answer what the backward pass from this tensor needs."""
        if self.recording is not None and root.grad_fn is not None:
            needed = walk(root.grad_fn, NodeBudget(chains)).saved
            storages.add(needed, root)  # the caller of backward has it
            self.recording.needed(needed)

    def held(self, leaks: Iterable[ScannedLeak]) -> None:
        """Answer what the findings retain."""
        if self.recording is not None:
            self.recording.held(leaks)
