"""The caching allocator's settings, where they are not the defaults."""

from __future__ import annotations

import os
import re
from typing import Final

from vramscope.memory.allocator_settings import allocator_settings
from vramscope.techniques.observation import Facts, Found, technique

KIND: Final = "allocator"
VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def find(facts: Facts) -> Found | None:
    given = next((name for name in VARIABLES if os.environ.get(name)), None)
    declared = None if given is None else f"{given}={os.environ[given]}"[:4096]
    in_force = allocator_settings()
    if not in_force and declared is None:
        return None
    text = in_force or (os.environ.get(given, "") if given else "")  # what is in force may differ from what was given
    both = re.search(r"expandable_segments\s*:\s*True", text) and re.search(r"max_split_size_mb\s*:\s*\d", text)
    finding = None
    if both:
        finding = facts.finding(
            "split-and-expandable",
            "max_split_size_mb is set together with expandable_segments: reserved memory then grows without end "
            "(PyTorch issue 123548).",
            "set expandable_segments:True alone; the Fragmentation page tells what each would give",
        )
    return Found(technique(KIND, _chip(in_force or text), declared, in_force or None), finding)


def _chip(text: str) -> str:
    names = [
        part.strip().removesuffix(":True") for part in re.sub(r"\[[^\]]*\]", "[..]", text).split(",") if part.strip()
    ]
    return ", ".join(dict.fromkeys(names))[:60] or "allocator settings"
