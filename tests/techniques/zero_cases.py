"""DeepSpeed alone and in three frameworks, with each ZeRO stage, in a separate process with a rank."""

from __future__ import annotations

import sys
from typing import Any

import torch
from cases import CASES, DEVICE, STEPS, Blocks, case, plainly
from framework_cases import accelerated, hugging_face, lightning_fit

CASES.clear()  # the others have theirs
sys.path.append(f"{sys.prefix}/deepspeed")


@case
def engine_offloaded() -> Any:
    """Each rank's parameters and states are on the host."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    on_host = {"device": "cpu"}
    third = {
        "stage": 3,
        "offload_param": on_host,
        "offload_optimizer": on_host,
        "stage3_param_persistence_threshold": 0,
    }
    allowed = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    model = Blocks(plainly)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": third, **allowed},
    )

    def train() -> None:
        for _ in range(STEPS):
            engine.backward(engine(torch.zeros(8, 64, device=DEVICE)).square().mean())
            engine.step()

    return engine, train


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
