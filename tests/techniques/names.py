"""What the installed libraries call things."""

from __future__ import annotations

import importlib.metadata
from typing import Final

from packaging.version import Version


def newer(package: str, version: str) -> bool:
    """Whether the installed one is of this version or a later one: not every Python gets the newest."""
    return Version(importlib.metadata.version(package)) >= Version(version)


CHECKPOINTS_PARTLY: Final = newer("transformers", "5.23")
"""whether TrainingArguments say which layers checkpoint, and where what they keep is kept"""
CHECKPOINTING: Final = "activation_checkpointing" if CHECKPOINTS_PARTLY else "gradient_checkpointing"
"""of TrainingArguments: the newest transformers for Python 3.10 know the older word alone"""
HAS_MUON: Final = newer("torch", "2.9")
CHECKPOINTS_TO_HOST: Final = newer("accelerate", "1.15")
"""whether Accelerate's plugin for FSDP can keep on the host what checkpointed layers keep"""
