"""What the installed libraries call things."""

from __future__ import annotations

import importlib.metadata
from typing import Final

from packaging.version import Version

CHECKPOINTING: Final = (
    "activation_checkpointing"
    if Version(importlib.metadata.version("transformers")) >= Version("5.23")
    else "gradient_checkpointing"
)
"""of TrainingArguments: the newest transformers for Python 3.10 know the older word alone"""
