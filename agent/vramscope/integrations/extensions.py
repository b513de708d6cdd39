"""Frameworks that the loop hooks are extended with."""

from __future__ import annotations

from vramscope.integrations.deepspeed import EngineSteps
from vramscope.integrations.lomo import LomoSteps
from vramscope.steps.hooks import LoopHooks


def extend(hooks: LoopHooks) -> None:
    """Make the hooks understand DeepSpeed and LOMO. To be called before ``hooks.install``."""
    hooks.extensions += [EngineSteps(hooks), LomoSteps(hooks)]
