"""torch.compile: asked for, and at work."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vramscope.techniques.observation import Facts, Found, said, some, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "compile"
NODE: Final = "CompiledFunction"
"""what the nodes of a compiled forward are called"""


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("torch_compile")
    declared = said(name, value) if name else None
    graphs = compiled_graphs()
    wrapped = compiled_modules(facts.roots)
    # Graphs alone prove nothing: torchao's optimizers, say, compile themselves.
    in_forward = facts.sight is not None and any(NODE in name for name in facts.sight.nodes)
    if graphs and (wrapped or in_forward):
        return Found(
            technique(KIND, "compiled", declared, f"torch.compile made {some(graphs, 'graph')}", graphs=graphs)
        )
    if declared is None and wrapped:
        declared = f"torch.compile was called on {wrapped} modules"
    if declared is None:
        return None
    if not facts.observed:
        return Found(technique(KIND, "compiled", declared, None))
    text = f"{declared}, and torch.compile has made no graph in {facts.step} steps: everything runs eagerly."
    finding = facts.finding(
        "compile-not-seen",
        text,
        "look whether TORCHDYNAMO_DISABLE or a suppressed error keeps it off, and which module is called",
    )
    return Found(technique(KIND, "compiled", declared, ""), finding if facts.is_sure else None)


def compiled_modules(roots: Iterable[torch.nn.Module]) -> int:
    """Modules on which torch.compile was called."""
    return sum(_is_compiled(module) for root in roots for module in root.modules())


def models_around(roots: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those of which parts are compiled, and they themselves are not: they are called as they are written."""
    return [root for root in roots if not _is_compiled(root) and any(map(_is_compiled, root.modules()))]


def _is_compiled(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or vars(module).get("_compiled_call_impl") is not None


def compiled_graphs() -> int:
    """Graphs that dynamo has made in this process so far."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"].get("unique_graphs", 0)) if counters and "stats" in counters else 0
