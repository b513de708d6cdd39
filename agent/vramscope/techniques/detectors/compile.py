"""torch.compile: requested, and active."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vramscope.techniques.observation import Detection, TrainingState, plural, setting_text, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "compile"
NODE: Final = "CompiledFunction"
"""Name of the nodes of a compiled forward pass."""


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("torch_compile")
    declared = setting_text(name, value) if name else None
    graphs = compiled_graphs()
    wrapped = compiled_modules(training.roots)
    # Graphs alone prove nothing: torchao's optimizers compile themselves, for example.
    in_forward = training.observation is not None and any(NODE in name for name in training.observation.nodes)
    if graphs and (wrapped or in_forward):
        return Detection(
            technique(KIND, "compiled", declared, f"torch.compile made {plural(graphs, 'graph')}", graphs=graphs)
        )
    if declared is None and wrapped:
        declared = f"torch.compile was called on {wrapped} modules"
    if declared is None:
        return None
    if not training.observed:
        return Detection(technique(KIND, "compiled", declared, None))
    text = f"{declared}, but torch.compile made no graph in {training.step} steps. Everything runs eagerly."
    finding = training.finding(
        "compile-not-seen",
        text,
        "check for TORCHDYNAMO_DISABLE and suppressed errors, and that the compiled module is the one that is called",
    )
    return Detection(technique(KIND, "compiled", declared, ""), finding if training.is_sure else None)


def compiled_modules(roots: Iterable[torch.nn.Module]) -> int:
    """Number of modules on which torch.compile was called."""
    return sum(_is_compiled(module) for root in roots for module in root.modules())


def models_around(roots: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Models with compiled parts that are not compiled themselves. They run as ordinary Python code."""
    return [root for root in roots if not _is_compiled(root) and any(map(_is_compiled, root.modules()))]


def _is_compiled(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or vars(module).get("_compiled_call_impl") is not None


def compiled_graphs() -> int:
    """Number of graphs that Dynamo has made in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"].get("unique_graphs", 0)) if counters and "stats" in counters else 0
