"""An inference engine with a memory pool of its own in the training's process: rollouts of GRPO or PPO, say."""

from __future__ import annotations

from typing import Final

from vramscope.memory.engine_pools import EnginePool, engine_pool
from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.techniques.observation import Detection, TrainingState, technique

KIND: Final = "rollout_engine"


def find(training: TrainingState) -> Detection | None:
    """Report the engine and the memory in its pools. Memory in expandable segments is a finding."""
    pool = engine_pool()
    if pool is None:
        return None
    found = technique(
        KIND, f"{pool.engine} pool", None, f"{amount(pool.reserved_bytes)} in the memory pool of {pool.engine}"
    )
    return Detection(found, _finding(training, pool))


def _finding(training: TrainingState, pool: EnginePool) -> messages.Pitfall | None:
    if not pool.expandable_bytes:
        return None
    advice = "set expandable_segments:False"
    if pool.engine == "vLLM":
        advice += (
            ", or set expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF only: newer versions of vLLM read that variable, and "
            "turn the setting off for their pool"
        )
    return training.finding(
        "sleep-mode-and-expandable",
        f"{amount(pool.expandable_bytes)} in the memory pool of {pool.engine} are in expandable segments "
        f"(expandable_segments:True). {pool.engine} cannot release them while it sleeps.",
        advice,
    )
