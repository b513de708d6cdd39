"""Lightning ``Trainer``: a callback marks the phases, because training_step is no call of a module and the optimizer runs it.

Lightning calls ``optimizer.step(closure)`` with forward and backward inside the closure; ``on_before_optimizer_step`` is
the moment in it when only the update is left.
"""

from __future__ import annotations

from typing import Any

from vramscope.guard import first_line, guarded
from vramscope.integrations.connection import Connection
from vramscope.integrations.deepspeed import of_zero
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.phase import DATA, EVAL, FORWARD, OPTIMIZER

PACKAGES = ("lightning", "pytorch_lightning")


def package_of(target: object) -> str | None:
    """The package of the Trainer (callbacks of the two do not mix); None for any other object."""
    for kind in type(target).__mro__:
        package = kind.__module__.partition(".")[0]
        if kind.__name__ == "Trainer" and package in PACKAGES and ".trainer" in kind.__module__:
            return package
    return None


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """Connects a Trainer; None for any other target."""
    package = package_of(target)
    if package is None:
        return None
    if package == "lightning":
        from lightning.pytorch import Callback
    else:
        from pytorch_lightning import Callback
    connection = Connection("lightning", configuration(target))
    clock = hooks.clock

    class VramscopeLightningCallback(Callback):  # type: ignore[misc]
        """Marks phases; counts nothing itself."""

        @guarded("Lightning's on_fit_start")
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            hooks.models.add(pl_module)

        @guarded("Lightning's on_train_start")
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            clock.begin_again(trainer.global_step)

        @guarded("Lightning's on_train_batch_start")
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            hooks.before_training_step(pl_module)
            clock.enter(FORWARD)

        @guarded("Lightning's on_before_optimizer_step")
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            clock.enter(OPTIMIZER)

        @guarded("Lightning's on_train_batch_end")
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            clock.enter(DATA)

        @guarded("Lightning's on_train_epoch_end")
        def on_train_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            hooks.end_epoch()  # a loader of known length is not asked again; the module's own hook comes after this one

        @guarded("Lightning's evaluation hook")
        def on_validation_start(self, *args: Any, **kwargs: Any) -> None:
            clock.enter(EVAL)

        on_test_start = on_predict_start = on_validation_start
        on_validation_end = on_test_end = on_predict_end = on_train_batch_end

        @guarded("Lightning's on_save_checkpoint")
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if hooks.checkpoint is not None and trainer.is_global_zero:
                hooks.checkpoint(trainer.global_step)

        @guarded("Lightning's on_exception")
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            for listener in connection.listeners:
                listener(type(exception).__name__, first_line(exception))

    callback = VramscopeLightningCallback()
    target.callbacks.append(callback)
    if target.training and target.lightning_module is not None:  # it was found at work
        callback.on_fit_start(target, target.lightning_module)
        callback.on_train_start(target, target.lightning_module)
    return connection


def configuration(trainer: Any) -> dict[str, Any]:
    """The Trainer's settings that bear on memory and pace; those that a version does not have are left out."""
    names = (
        "precision",
        "accumulate_grad_batches",
        "max_epochs",
        "max_steps",
        "gradient_clip_val",
        "num_devices",
        "num_nodes",
    )
    config = {name: getattr(trainer, name, None) for name in names}
    strategy = getattr(trainer, "strategy", None)
    config["strategy"] = type(strategy).__name__
    # What FSDPStrategy was given as activation_checkpointing_policy or activation_checkpointing is kept under these names.
    if getattr(strategy, "_activation_checkpointing_kwargs", None):
        config["activation_checkpointing"] = True
    if getattr(getattr(strategy, "cpu_offload", None), "offload_params", False):
        config["cpu_offload"] = True
    schedule = next((one for one in trainer.callbacks if type(one).__name__ == "GradientAccumulationScheduler"), None)
    if schedule is not None:  # epoch -> micro-steps: what the Trainer says just now is one of them
        config["accumulate_grad_batches"] = str(schedule.scheduling)
    return {
        **{name: value for name, value in config.items() if value is not None},
        **of_zero(getattr(strategy, "config", None)),
    }
