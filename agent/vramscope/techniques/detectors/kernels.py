"""Fused kernels that run several operations at once and save fewer tensors: Liger's, by the names of graph nodes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from vramscope.techniques.detectors.attention import HIDES
from vramscope.techniques.observation import Detection, TrainingState, setting_text, technique

KIND: Final = "fused_kernels"
CHIP: Final = "Liger kernels"
_NODE: Final = re.compile(r"^Liger(\w+?)(?:Function)?Backward\d*$")


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("use_liger_kernel")
    declared = setting_text(name, value) if name else None
    nodes: Counter[str] = training.observation.nodes if training.observation is not None else Counter()
    counts: Counter[str] = Counter()
    for node, count in nodes.items():
        if (named := _NODE.match(node)) is not None:
            counts[named[1]] += count
    if counts:
        calls = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        return Detection(technique(KIND, CHIP, declared, f"Liger kernel calls: {calls}", calls=sum(counts.values())))
    if declared is None:
        return None
    if not nodes or any(word in node for node in nodes for word in HIDES):
        return Detection(technique(KIND, CHIP, declared, None))
    finding = training.finding(
        "kernels-not-seen",
        f"{declared}, but the graph has no Liger kernel.",
        "check that Liger supports the model's class: it leaves unknown models unchanged",
    )
    return Detection(technique(KIND, CHIP, declared, ""), finding if training.is_sure else None)
