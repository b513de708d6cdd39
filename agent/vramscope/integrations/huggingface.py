"""Hugging Face ``Trainer``: its model is the root, its settings are the run's; steps and phases come from the loop's hooks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.integrations.accelerate import plugins
from vramscope.integrations.connection import Connection
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.phase import DATA

_TIMES: Final = re.compile(r"(_runtime|_per_second|^total_flos|^step)$")
"""Logged numbers about speed, which the agent measures itself."""


def is_trainer(target: object) -> bool:
    """True for a transformers Trainer. Decided by name, so that transformers is not imported where it is not used."""
    return any(
        kind.__name__ == "Trainer" and kind.__module__.startswith("transformers.") for kind in type(target).__mro__
    )


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """Connects a Trainer; None for any other target."""
    if not is_trainer(target):
        return None
    from transformers import TrainerCallback

    clock = hooks.clock

    class VramscopeCallback(TrainerCallback):  # type: ignore[misc]
        """Reports what the loop hooks cannot know: where a resumed run continues, and when an evaluation ends."""

        @guarded("the Trainer's on_train_begin")
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if hooks.loss is not None and args.world_size > 1:
                # It may multiply the loss by the number of processes: its logged loss is used instead.
                hooks.loss.off = True
            clock.begin_again(state.global_step)
            if model is not None:
                hooks.models.add(model)

        @guarded("the Trainer's on_log")
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            numbers = numbers_of(logs or {})
            if hooks.tell is not None and numbers:
                hooks.tell(state.global_step, numbers)

        @guarded("the Trainer's on_evaluate")
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.enter(DATA)

        on_predict = on_evaluate

        @guarded("the Trainer's on_save")
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if hooks.checkpoint is not None and state.is_world_process_zero:
                hooks.checkpoint(state.global_step)

    callback = VramscopeCallback()
    target.add_callback(callback)
    if getattr(target, "is_in_train", False):  # it was found at work
        callback.on_train_begin(target.args, target.state, target.control, model=target.model)
    if target.model is not None:  # None with model_init: the model comes with on_train_begin
        hooks.models.add(target.model)
    hooks.on_first_step = hooks.models.find_if_unheard
    return Connection("huggingface", configuration(target), run_name_of(target.args))


def numbers_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """What the Trainer logs of the training and its evaluations: Python numbers, for which it has waited by itself."""
    numbers = {
        name: value for name, value in logs.items() if isinstance(value, int | float) and not _TIMES.search(name)
    }
    loss = numbers.pop("loss", None)
    return numbers if loss is None else {"trainer_loss": loss, **numbers}


def run_name_of(arguments: Any) -> str:
    """The user's name for the run. Older versions give the output folder's where there is none."""
    name = getattr(arguments, "run_name", None)
    return name if isinstance(name, str) and name != arguments.output_dir else ""


def configuration(trainer: Any) -> dict[str, Any]:
    """The training arguments, what its Accelerator makes of them, and the model's configuration under ``model.``."""
    config = dict(trainer.args.to_dict())
    accelerator = getattr(trainer, "accelerator", None)
    if accelerator is not None:
        config.update((key, value) for key, value in plugins(accelerator).items() if not config.get(key))
    model_config: Any = getattr(trainer.model, "config", None)
    if model_config is not None and hasattr(model_config, "to_diff_dict"):
        config["model"] = model_config.to_diff_dict()
    return {key: value for key, value in config.items() if value not in (None, "", [], {})}
