"""Hugging Face ``Accelerator``: its prepared models are the roots; its optimizers step through the torch ones that they wrap."""

from __future__ import annotations

import functools
from typing import Any

from vramscope.guard import guarded
from vramscope.integrations.connection import Connection
from vramscope.integrations.deepspeed import of_zero
from vramscope.steps.hooks import LoopHooks


def is_accelerator(target: object) -> bool:
    """True for an Accelerator. Decided by name, so that accelerate is not imported where it is not used."""
    return any(
        kind.__name__ == "Accelerator" and kind.__module__.startswith("accelerate.") for kind in type(target).__mro__
    )


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """Connects an Accelerator; None for any other target. Works before and after ``prepare``."""
    if not is_accelerator(target):
        return None

    @guarded("the Accelerator's models")
    def add_models() -> None:
        for model in getattr(target, "_models", ()):
            hooks.models.add(model)

    prepare = target.prepare

    @functools.wraps(prepare)
    def prepare_and_watch(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        add_models()
        return prepared

    @guarded("the Accelerator's checkpoints")
    def saved(*_: Any) -> None:
        if hooks.checkpoint is not None and target.is_main_process:
            hooks.checkpoint(hooks.clock.step)

    @guarded("the Accelerator's checkpoints")
    def loaded(*_: Any) -> None:
        if hooks.loaded_checkpoint is not None and target.is_main_process:
            hooks.loaded_checkpoint(hooks.clock.step)

    hooks.when_removed(target.register_save_state_pre_hook(saved).remove)
    hooks.when_removed(target.register_load_state_pre_hook(loaded).remove)
    target.prepare = prepare_and_watch  # on this one object; models prepared later are found too
    add_models()
    hooks.on_first_step = hooks.models.find_if_unheard
    return Connection("accelerate", configuration(target))


def configuration(accelerator: Any) -> dict[str, Any]:
    config = {
        "mixed_precision": accelerator.mixed_precision,
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "num_processes": accelerator.num_processes,
        **plugins(accelerator),
    }
    return {name: value for name, value in config.items() if value is not None}


def plugins(accelerator: Any) -> dict[str, Any]:
    """Returns how processes share the work, and the settings of the plugins for FSDP, DeepSpeed and torch.compile."""
    state = accelerator.state
    fsdp, deepspeed = getattr(state, "fsdp_plugin", None), getattr(state, "deepspeed_plugin", None)
    backend = getattr(getattr(getattr(state, "dynamo_plugin", None), "backend", None), "value", "NO")
    kind = accelerator.distributed_type
    config: dict[str, Any] = {"distributed_type": str(getattr(kind, "value", kind))}
    if fsdp is not None:
        config["fsdp"] = str(getattr(fsdp, "sharding_strategy", None) or f"version {getattr(fsdp, 'fsdp_version', 1)}")
        config["activation_checkpointing"] = bool(getattr(fsdp, "activation_checkpointing", False))
        config["activation_checkpointing_offload"] = bool(getattr(fsdp, "activation_checkpointing_offload", False))
        config["cpu_offload"] = _offloads(fsdp.cpu_offload)
    if deepspeed is not None:
        config.update(of_zero(getattr(deepspeed, "deepspeed_config", None)))
    if str(backend).upper() != "NO":
        config["torch_compile"] = str(backend)
    return config


def _offloads(policy: Any) -> bool:
    """Returns the checkpointing setting of FSDP: version 1 has a switch, version 2 one of two policies, of which one does
    nothing."""
    if isinstance(policy, bool) or policy is None:
        return bool(policy)
    return bool(getattr(policy, "offload_params", type(policy).__name__ == "CPUOffloadPolicy"))
