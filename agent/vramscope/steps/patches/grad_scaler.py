"""Watches GradScaler: a scaled loss is no loss, and a skipped step ends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded

if TYPE_CHECKING:
    from vramscope.steps.hook_interface import StepHooks


class ScalerPatch:
    """Watches ``torch.amp.GradScaler``. All calls are on the training thread and cost 0.3 µs if no loss is watched."""

    def __init__(self, hooks: StepHooks) -> None:
        self._hooks = hooks

    def install(self) -> None:
        import torch

        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
        if scaler is None:
            return
        patches = self._hooks.patches
        patches.watch(scaler, "scale", before=_first_two, after=guarded("the loss")(self._scaled))
        patches.watch(
            scaler,
            "step",
            before=guarded("the loss")(self._before_step),
            after=guarded("the loss")(self._after_step),
        )

    def _scaled(self, call: tuple[Any, Any] | None, result: Any) -> None:
        loss = self._hooks.loss
        if call is None:
            return  # the call began in a plain step
        scaler, given = call
        if loss is not None and scaler.is_enabled() and self._hooks.clock.is_training_thread():
            self._hooks.timed(loss.scaled, given, result)

    def _before_step(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> int | None:
        """Number of optimizer steps so far, if an enabled scaler is about to make one; else None."""
        loss, clock = self._hooks.loss, self._hooks.clock
        if loss is None or not scaler.is_enabled() or not clock.is_training_thread():
            return None
        return clock.step if loss.scaler_steps(optimizer) else None

    def _after_step(self, before: int | None, _: Any) -> None:
        loss = self._hooks.loss
        if before is not None and loss is not None and self._hooks.clock.step == before:
            loss.skipped()


@guarded("the loss")
def _first_two(scaler: Any, outputs: Any) -> tuple[Any, Any]:
    return scaler, outputs
