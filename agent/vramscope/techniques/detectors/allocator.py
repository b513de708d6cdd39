"""Settings of the caching allocator that differ from the defaults."""

from __future__ import annotations

import os
import re
from typing import Final

from vramscope.memory.allocator_settings import allocator_settings, variables
from vramscope.techniques.observation import Detection, TrainingState, technique

KIND: Final = "allocator"


def find(training: TrainingState) -> Detection | None:
    variable = next((name for name in variables() if os.environ.get(name)), None)
    declared = None if variable is None else f"{variable}={os.environ[variable]}"[:4096]
    in_force = allocator_settings()
    if not in_force and declared is None:
        return None
    text = in_force or (os.environ.get(variable, "") if variable else "")  # the settings in force may differ
    both = re.search(r"expandable_segments\s*:\s*True", text) and re.search(r"max_split_size_mb\s*:\s*\d", text)
    finding = None
    if both:
        finding = training.finding(
            "split-and-expandable",
            "max_split_size_mb and expandable_segments are both set. Reserved memory then grows without bound (PyTorch issue "
            "123548).",
            "set expandable_segments:True only; the Fragmentation page predicts the effect of each setting",
        )
    return Detection(technique(KIND, _chip(in_force or text), declared, in_force or None), finding)


def _chip(text: str) -> str:
    names = [
        part.strip().removesuffix(":True") for part in re.sub(r"\[[^\]]*\]", "[..]", text).split(",") if part.strip()
    ]
    return ", ".join(dict.fromkeys(names))[:60] or "allocator settings"
