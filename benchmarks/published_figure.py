"""One memory figure that was published from a real card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from published_sources import Source  # beside this file


class Counter(Enum):
    """What a source measured."""

    PEAK = "max_memory_allocated"
    ALLOCATED = "memory_allocated"
    RESERVED = "memory_reserved"
    NVIDIA_SMI = "nvidia-smi, less its own context"


class Kind(Enum):
    """What a program is made of."""

    TRAINING = "trainings and models"
    OPERATION = "single operations"
    CONVOLUTION = "convolutions"


@dataclass(frozen=True)
class Figure:
    """One published figure."""

    source: Source
    what: str
    program: str
    arguments: Mapping[str, Any]
    key: str
    """Name of the figure in the program's answer."""
    published_bytes: float
    digit_bytes: float
    """Value of the last printed digit; 1 for figures in bytes."""
    counter: Counter
    kind: Kind
    settings: str = ""
    """Settings of the source's version of PyTorch that differ from today's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    fitted: bool = False
    """True if a setting was chosen after a first run had shown a difference."""
    note: str = ""
    """What a first program of ours did otherwise, with its error."""
