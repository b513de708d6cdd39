"""Names of settings in the installed versions of the libraries."""

from __future__ import annotations

import importlib.metadata
from typing import Final

from packaging.version import Version


def newer(package: str, version: str) -> bool:
    """Whether this version or a later one is installed. Some Python versions do not get the newest."""
    return Version(importlib.metadata.version(package)) >= Version(version)


CHECKPOINTS_PARTLY: Final = newer("transformers", "5.23")
"""Whether TrainingArguments select layers to checkpoint, and the device of saved tensors."""
CHECKPOINTING: Final = "activation_checkpointing" if CHECKPOINTS_PARTLY else "gradient_checkpointing"
"""Setting of TrainingArguments. The newest transformers for Python 3.10 has only the older name."""
HAS_MUON: Final = newer("torch", "2.9")
CHECKPOINTS_TO_HOST: Final = newer("accelerate", "1.15")
"""Whether Accelerate's FSDP plugin can offload saved tensors of checkpointed layers."""
