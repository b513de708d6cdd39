"""Trainings that were run under the agent, and what is true of them: once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests are imported by path: their neighbours are not packages
sys.path.insert(0, str(Path(__file__).parent))

from observed import JUDGED, Observed, run

REMEDIES = (
    "gpt2_chunked",
    "gpt2_half",
    "gpt2_half_chunked",
    "gpt2_more_rows",
    "wide",
    "wide_loop",
    "wide_autocast",
    "wide_bfloat16",
    "wide_eight_bit",
    "gpt2.expandable",
    "zeros",
    "early_clear",
    "evaluation",
    "evaluation_no_grad",
    "t5_checkpointed",
    "contrastive",
    "contrastive_more_rows",
    "ema",
    "lora",
    "best_state",
    "best_state_on_the_host",
)

WAYS = (
    *(f"roberta{how}" for how in ("+as", "+4", "+checkpointing", "+8bit", "+4+checkpointing", "+4+checkpointing+8bit")),
    *(f"encoder{how}" for how in ("+as", "+8bit", "+4+checkpointing+8bit")),
    *(f"roberta+bf16{how}" for how in ("", "+4", "+x3", "+checkpointing+x3")),
    *(f"tied{how}" for how in ("+as", "+4")),
    *(f"vit{how}" for how in ("+as", "+4", "+checkpointing")),
)

SNAPSHOTS = ("gpt2.snapshot", "gpt2.snapshot_with_cpp")


@pytest.fixture(scope="session")
def observed(emulated_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    """All of them, a third as deep as in docs/anatomy.md."""
    return run(tmp_path_factory.mktemp("anatomy"), [*JUDGED, *REMEDIES, *WAYS, *SNAPSHOTS], scale=3)
