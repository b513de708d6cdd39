"""The loss of each step, as it was given to backward: with no help of the user, and without waiting for the GPU.

A step's loss is the sum of what its backward passes began at: that whose gradient the optimizer then takes. Where the user (or
Trainer, Accelerate, Lightning) divides by the number of micro-steps it is their mean. What an enabled GradScaler multiplied is
told as it was before. Where one number would mix things, the step has none: gradients dropped between two passes (SAM), a second
optimizer that steps between them or after several (a GAN), a gradient given to backward, several tensors at once, a tensor
that is no single number, a loss that somebody scaled by hand outside of what is known here.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory import deepspeed_zero
from vramscope.metrics.async_copies import Copies, Slot
from vramscope.steps.events import Order, StepListener
from vramscope.steps.records import StepRecord

if TYPE_CHECKING:
    import torch

CHEAP_NS: Final = 5_000
"""A read that costs less is made for each backward pass."""
OUTLIER_NS: Final = 4 * CHEAP_NS
"""A read that took longer was interrupted and counts as this much."""
SHARE: Final = 0.001
"""Maximum share of the time for expensive reads; above it, only some of the steps are read."""
WARM_UP_STEPS: Final = 100
"""Number of first steps that are always read."""
MOST_WAITING: Final = 20_000
"""Maximum number of steps waiting to be fetched; later ones are left out."""
PROBES: Final = 4
"""Number of parameters that are watched for dropped gradients."""
SCALE_THEMSELVES: Final = ("deepspeed.", "apex.")
"""Packages that multiply the loss by a scale of their own before backward; DeepSpeed's engine says by how much."""

Part = float | Slot


class Noted:
    """The loss of one step in the making."""

    __slots__ = ("at_ns", "mixed", "number", "parts", "plain", "scale", "several")

    def __init__(self) -> None:
        self.number = 0
        self.at_ns = 0
        self.parts: list[Part] = []
        self.plain = False
        """True if one of its parts went through no scaler."""
        self.several = False
        """True if another optimizer stepped within it."""
        self.scale = 1.0
        """Factor by which DeepSpeed multiplied all of its parts."""
        self.mixed = False
        """True if the step has no single loss: nothing is recorded."""


class LossWatch(StepListener):
    """All but :meth:`take` on the training thread.

    leader   the optimizer whose steps are the training's
    roots    the modules that train, as far as they are known
    now      nanoseconds, rising
    """

    order = Order.LOSS

    def __init__(
        self,
        leader: Callable[[], torch.optim.Optimizer | None],
        roots: Callable[[], Iterable[torch.nn.Module]],
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        import torch

        self._leader = leader
        self._roots = roots
        self._now = now
        self._tensor = torch.Tensor
        self._is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self._cuda_is_up = False
        self._device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
        self._modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
        self._profiled: Callable[[], bool] = torch.autograd._profiler_enabled
        self._copies = Copies()
        self._step = Noted()
        self._held: Noted | None = None
        self._waiting: deque[Noted] = deque()
        self._scaled: tuple[weakref.ref[torch.Tensor], Part | None] | None = None
        self._probes: list[weakref.ref[torch.Tensor]] = []
        self._forward_on: tuple[int, int] | None = None
        self._cost_ns = 0.0
        self._readings = 0
        self._next_ns = 0
        self._reads = True
        self.forward_began = False
        """True if the running step has had a forward or a backward pass."""
        self.off = False
        """True if nothing is read, because the framework said that the start of backward is not the loss."""

    # -- what happens in a step ------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """A forward with gradients begins. Costs 0.3 µs, on a GPU 0.6."""
        self.forward_began = True
        self._cuda_is_up = self._cuda_is_up or self._is_initialized()
        if self._cuda_is_up:
            device = self._device()
            self._forward_on = (device, self._stream(device))

    def scaled(self, given: Any, result: Any) -> None:
        """An enabled GradScaler has multiplied ``given``; the result counts as ``given``."""
        if self.off or given is result:
            return
        if not isinstance(result, self._tensor):
            self._step.mixed = True  # several losses at once
            return
        self._decide()
        self._scaled = (weakref.ref(result), self._read(given))

    def backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``torch.autograd.backward`` is about to begin with these arguments."""
        if self.off:
            return
        self._commit()
        step = self._step
        root = args[0] if args else kwargs.get("tensors")
        if isinstance(root, (list, tuple)) and len(root) == 1:
            root = root[0]
        gradient = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        if step.parts and (step.several or self._gradients_were_dropped()):
            step.mixed = True
        self.forward_began = True
        self._decide()
        scaled, self._scaled = self._scaled, None
        part: Part | None
        if scaled is None:
            part, step.plain = self._read(root), True
        else:
            part = scaled[1] if scaled[0]() is root else None
            if part is None and isinstance(scaled[1], Slot):
                self._give_back(scaled[1])
        if part is not None:
            step.parts.append(part)
        if part is None or not _is_none(gradient):
            step.mixed = True
        engine = deepspeed_zero.listen() if "deepspeed" in sys.modules else None
        if engine is None:
            step.mixed = step.mixed or _scales_itself()
        else:
            scale = deepspeed_zero.scale_of(engine)
            step.mixed |= len(step.parts) > 1 and scale != step.scale
            step.scale = scale

    def other_stepped(self) -> None:
        """An optimizer other than the leader has stepped."""
        if self._step.parts:
            self._step.several = True
        if self._held is not None:
            self._held.mixed = True  # several passes, several optimizers: whose loss is whose?

    def scaler_steps(self, optimizer: Any) -> bool:
        """An enabled GradScaler is about to step an optimizer; whether that is the leader."""
        if self._step.plain:
            self._step.mixed = True  # scaled by something that was not heard
        leader = self._leader()
        return leader is None or optimizer is leader

    def skipped(self) -> None:
        """The scaler left the step out: its gradients are not finite, and are dropped."""
        self._drop(self._step)
        self._step = Noted()

    def step_ended(self, record: StepRecord) -> None:
        """The step has ended."""
        number, at_ns = record.number, record.end_ns
        step, self._step = self._step, Noted()
        self.forward_began = False
        self._scaled = None
        if self._cost_ns > CHEAP_NS and number > WARM_UP_STEPS and self._readings:
            self._next_ns = at_ns + int(self._readings * self._cost_ns / SHARE)
        self._readings, self._reads = 0, True
        if not step.parts:
            return
        step.number, step.at_ns = number, at_ns
        self._commit()
        self._held = step
        if len(step.parts) == 1:
            self._commit()
        if not self._probes_live():
            self._choose_probes()

    def finish(self, patience_s: float) -> None:
        """The training is over: what is still on its way gets so long to arrive."""
        self._commit()
        until = time.monotonic() + patience_s
        while time.monotonic() < until and any(not self._is_there(step) for step in list(self._waiting)):
            time.sleep(0.005)

    # -- for the sampler's thread ----------------------------------------------------------------------------------------

    def take(self) -> list[tuple[int, int, float]]:
        """(step, its end in perf_counter_ns, loss) of the steps whose loss has arrived since the last call, oldest first."""
        found = []
        while self._waiting:
            values = [self._value(part) for part in self._waiting[0].parts]
            if any(value is None for value in values):
                break
            step = self._waiting.popleft()
            for part in step.parts:
                if isinstance(part, Slot):
                    self._copies.release(part)
            if not step.mixed:
                found.append(
                    (step.number, step.at_ns, sum(value for value in values if value is not None) / step.scale)
                )
        return found

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """At the first reading of a step: whether this step is read."""
        if not self._step.parts and self._scaled is None:
            self._reads = self._now() >= self._next_ns

    def _read(self, tensor: Any) -> Part | None:
        """One number of a tensor, or its slot; None where there is none to be had. 2 µs on the CPU, 10 µs on a GPU."""
        if not self._reads or self._step.mixed or type(tensor) is not self._tensor:
            return None
        if self._compiling() or self._modes() or self._profiled():
            return None  # (nobody wants an operation of ours in a graph, or in a profile)
        began = self._now()
        part = self._number(tensor)
        took = min(self._now() - began, OUTLIER_NS)
        self._readings += 1
        self._cost_ns += (took - self._cost_ns) / 8
        return part

    def _number(self, tensor: torch.Tensor) -> Part | None:
        if tensor.numel() != 1 or not tensor.is_floating_point():
            return None
        kind = tensor.device.type
        if kind == "cpu":
            return float(tensor.item())
        if kind != "cuda" or self._capturing():
            return None
        if not self._is_in_order(tensor.device.index):
            return None
        return self._copies.begin(tensor)

    def _is_in_order(self, device: int) -> bool:
        """Whether what the forward computed comes before what is launched now: on another stream it may still be to come."""
        if self._forward_on is None:
            return True
        forward_device, stream = self._forward_on
        return self._stream(device) == (stream if device == forward_device else 0)

    def _gradients_were_dropped(self) -> bool:
        if deepspeed_zero.takes_gradients():
            return False  # (as far as can be known)
        if self._probes:
            return all((p := probe()) is None or p.grad is None for probe in self._probes)
        # The first step: nobody has stepped yet.
        return all(p.grad is None for root in self._roots() for p in root.parameters() if p.is_leaf)

    def _probes_live(self) -> bool:
        for probe in self._probes:  # (in each step: any() would take three times as long)
            if probe() is None:
                return False
        return bool(self._probes)

    def _choose_probes(self) -> None:
        optimizer = self._leader()
        self._probes = []
        for group in () if optimizer is None else optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._probes.append(weakref.ref(parameter))
                    if len(self._probes) == PROBES:
                        return

    def _commit(self) -> None:
        """The step before is as it is: with several passes, the optimizers that belong to it have stepped by now."""
        held, self._held = self._held, None
        if held is not None:
            self._drop(held) if held.mixed else self._enqueue(held)

    def _enqueue(self, step: Noted) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(step)

    def _drop(self, step: Noted) -> None:
        """Drop the step; its slots are free again once their copies have arrived."""
        step.mixed = True
        if any(isinstance(part, Slot) for part in step.parts):
            self._waiting.append(step)

    def _give_back(self, slot: Slot) -> None:
        left = Noted()
        left.parts.append(slot)
        self._drop(left)

    def _value(self, part: Part) -> float | None:
        return self._copies.read(part) if isinstance(part, Slot) else part

    def _is_there(self, step: Noted) -> bool:
        return all(self._value(part) is not None for part in step.parts)


def _is_none(gradient: Any) -> bool:
    return gradient is None or (isinstance(gradient, (list, tuple)) and all(one is None for one in gradient))


def _scales_itself() -> bool:
    """Whether one of the frames that called backward is of a package that scales. 1 µs where one is loaded."""
    if not any(package.rstrip(".") in sys.modules for package in SCALE_THEMSELVES):
        return False
    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(SCALE_THEMSELVES):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
