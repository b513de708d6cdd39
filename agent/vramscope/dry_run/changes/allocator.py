"""Expandable segments of PyTorch's allocator. The process's environment sets them; this module checks that they are in force."""

from __future__ import annotations

from typing import Final

from vramscope.dry_run.changes.change import Change
from vramscope.memory.allocator_settings import allocator_settings
from vramscope.protocol.dry_run import ChangeOutcome

SETTING: Final = "expandable_segments:True"


class ExpandableSegments(Change):
    """Lets segments grow, instead of new segments."""

    name = "expandable_segments"
    reason = "the program sets other allocator settings"

    def outcome(self) -> ChangeOutcome:
        """Return whether the setting is in force after the last step."""
        if SETTING in allocator_settings():
            self.applied("allocator", f"export PYTORCH_CUDA_ALLOC_CONF={SETTING}")
        return super().outcome()
