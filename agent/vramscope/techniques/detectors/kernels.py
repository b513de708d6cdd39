"""Kernels that do several of a model's operations at once and keep less between: Liger's, by the names of the graph's nodes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from vramscope.techniques.detectors.attention import HIDES
from vramscope.techniques.observation import Facts, Found, said, technique

KIND: Final = "fused_kernels"
CHIP: Final = "Liger kernels"
_NODE: Final = re.compile(r"^Liger(\w+?)(?:Function)?Backward\d*$")


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("use_liger_kernel")
    declared = said(name, value) if name else None
    nodes: Counter[str] = facts.sight.nodes if facts.sight is not None else Counter()
    seen: Counter[str] = Counter()
    for node, count in nodes.items():
        if (named := _NODE.match(node)) is not None:
            seen[named[1]] += count
    if seen:
        calls = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.items()))
        return Found(technique(KIND, CHIP, declared, f"calls of Liger's kernels: {calls}", calls=sum(seen.values())))
    if declared is None:
        return None
    if not nodes or any(word in node for node in nodes for word in HIDES):
        return Found(technique(KIND, CHIP, declared, None))
    finding = facts.finding(
        "kernels-not-seen",
        f"{declared}, and none of Liger's kernels was seen in the graph.",
        "Liger knows the model's class or it changes nothing: its list of models says which",
    )
    return Found(technique(KIND, CHIP, declared, ""), finding if facts.is_sure else None)
