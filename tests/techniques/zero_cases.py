"""DeepSpeed below three frameworks, each with another stage of ZeRO; in a process of its own, whose environment has the rank."""

from __future__ import annotations

import sys
from typing import Any

from cases import CASES, case
from framework_cases import accelerated, hugging_face, lightning_fit

CASES.clear()  # the others have theirs
sys.path.append(f"{sys.prefix}/deepspeed")


@case
def accelerate_zero() -> Any:
    from accelerate import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(zero_stage=2)
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 4
    return accelerated(deepspeed_plugin=plugin)


@case
def hf_zero() -> Any:
    automatic = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    return hugging_face(
        deepspeed={"zero_optimization": {"stage": 1}, **automatic}, gradient_accumulation_steps=2, optim="adamw_torch"
    )


@case
def lightning_zero() -> Any:
    from lightning.pytorch.strategies import DeepSpeedStrategy

    return lightning_fit(strategy=DeepSpeedStrategy(stage=3, process_group_backend="gloo"))
