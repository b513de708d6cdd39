"""Reads the loss of each step from the arguments of backward. The user declares nothing, and the GPU is not waited for.

The loss of a step is the sum of the tensors at which its backward passes begin. If the user, Trainer, Accelerate or Lightning
divides each by the number of micro-steps, the sum is their mean. The scale of an enabled GradScaler is taken out again.

A step has no loss if one number would mix different things: gradients dropped between two passes (SAM), a second optimizer that
steps between passes or after several (GAN), a gradient given to backward, several tensors at once, a tensor with several
elements, or a loss scaled by unknown code.
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
from vramscope.process.tensor_reads import TensorReads
from vramscope.process.torch_functions import plainly
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


class StepLoss:
    """The loss of one step, part by part."""

    __slots__ = ("at_ns", "mixed", "number", "parts", "plain", "scale", "several")

    def __init__(self) -> None:
        self.number = 0
        self.at_ns = 0
        self.parts: list[Part] = []
        self.plain = False
        """True if at least one part was not scaled by a GradScaler."""
        self.several = False
        """True if another optimizer stepped during this step."""
        self.scale = 1.0
        """Factor by which DeepSpeed multiplied all of its parts."""
        self.mixed = False
        """True if the step has no single loss: nothing is recorded."""


class LossWatch(StepListener):
    """Collects the losses. All methods except :meth:`take` run on the training thread.

    leader   the optimizer whose steps count as the steps of the training
    roots    the known modules that train
    now      clock in nanoseconds that never goes back
    reads    those of the session
    """

    order = Order.LOSS

    def __init__(
        self,
        leader: Callable[[], torch.optim.Optimizer | None],
        roots: Callable[[], Iterable[torch.nn.Module]],
        now: Callable[[], int] = time.perf_counter_ns,
        reads: TensorReads | None = None,
    ) -> None:
        import torch

        self._tensor_reads = reads or TensorReads()
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
        self._step = StepLoss()
        self._held: StepLoss | None = None
        self._waiting: deque[StepLoss] = deque()
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
        """True if nothing is read, because the framework reported that backward does not begin at the loss."""

    # -- events of a step ------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Note that a forward pass with gradients begins. Costs 0.3 µs, on a GPU 0.6 µs."""
        self.forward_began = True
        self._cuda_is_up = self._cuda_is_up or self._is_initialized()
        if self._cuda_is_up:
            device = self._device()
            self._forward_on = (device, self._stream(device))

    def scaled(self, given: Any, result: Any) -> None:
        """Note that an enabled GradScaler multiplied ``given``. The result counts as ``given``."""
        if self.off or given is result:
            return
        if not isinstance(result, self._tensor):
            self._step.mixed = True  # several losses at once
            return
        self._decide()
        self._scaled = (weakref.ref(result), self._read(given))

    def backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the loss before ``torch.autograd.backward`` begins with these arguments."""
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
        """Note that an optimizer other than the leader has stepped."""
        if self._step.parts:
            self._step.several = True
        if self._held is not None:
            self._held.mixed = True  # which loss belongs to which optimizer is unknown

    def scaler_steps(self, optimizer: Any) -> bool:
        """Note that an enabled GradScaler is about to step an optimizer. Return True if it is the leader."""
        if self._step.plain:
            self._step.mixed = True  # scaled by unknown code
        leader = self._leader()
        return leader is None or optimizer is leader

    def skipped(self) -> None:
        """Drop the step: the scaler skipped it, because its gradients are not finite."""
        self._drop(self._step)
        self._step = StepLoss()

    def step_ended(self, record: StepRecord) -> None:
        """Store the loss of the step that ended."""
        number, at_ns = record.number, record.end_ns
        step, self._step = self._step, StepLoss()
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
            with self._tensor_reads as may_read:
                if may_read:
                    self._choose_probes()

    def finish(self, patience_s: float) -> None:
        """Wait at most this long, at the end of the training, for losses that are still being copied."""
        self._commit()
        until = time.monotonic() + patience_s
        while time.monotonic() < until and any(not self._is_there(step) for step in list(self._waiting)):
            time.sleep(0.005)

    # -- for the sampler's thread ----------------------------------------------------------------------------------------

    def take(self) -> list[tuple[int, int, float]]:
        """Return (step, its end in perf_counter_ns, loss) of steps whose loss arrived since the last call, oldest first."""
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

    # -- internals -------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Decide, at the first reading of a step, whether its loss is read."""
        if not self._step.parts and self._scaled is None:
            self._reads = self._now() >= self._next_ns

    def _read(self, tensor: Any) -> Part | None:
        """Return the number in a tensor, or the slot it is copied to. None if there is none. 2 µs on the CPU, 10 µs on a GPU."""
        if not self._reads or self._step.mixed or type(tensor) is not self._tensor:
            return None
        if self._compiling() or self._modes() or self._profiled():
            return None  # the copy would appear in the user's graph or profile
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
        """Return whether the forward pass ran on the current stream. On another one its result may not be computed yet."""
        if self._forward_on is None:
            return True
        forward_device, stream = self._forward_on
        return self._stream(device) == (stream if device == forward_device else 0)

    def _gradients_were_dropped(self) -> bool:
        with self._tensor_reads as may_read:
            if deepspeed_zero.takes_gradients() or not may_read:
                return False  # nothing shows that they were dropped
            if self._probes:
                return all((p := probe()) is None or p.grad is None for probe in self._probes)
            # No optimizer has stepped yet.
            return all(p.grad is None for root in self._roots() for p in root.parameters() if p.is_leaf)

    def _probes_live(self) -> bool:
        for probe in self._probes:  # runs in each step, and any() takes three times as long
            if probe() is None:
                return False
        return bool(self._probes)

    @plainly
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
        """Finish the step before. If it had several passes, all of its optimizers have stepped by now."""
        held, self._held = self._held, None
        if held is not None:
            self._drop(held) if held.mixed else self._enqueue(held)

    def _enqueue(self, step: StepLoss) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(step)

    def _drop(self, step: StepLoss) -> None:
        """Drop the step. Its slots are free again when their copies have arrived."""
        step.mixed = True
        if any(isinstance(part, Slot) for part in step.parts):
            self._waiting.append(step)

    def _give_back(self, slot: Slot) -> None:
        left = StepLoss()
        left.parts.append(slot)
        self._drop(left)

    def _value(self, part: Part) -> float | None:
        return self._copies.read(part) if isinstance(part, Slot) else part

    def _is_there(self, step: StepLoss) -> bool:
        return all(self._value(part) is not None for part in step.parts)


def _is_none(gradient: Any) -> bool:
    return gradient is None or (isinstance(gradient, (list, tuple)) and all(one is None for one in gradient))


def _scales_itself() -> bool:
    """Return whether a package that scales losses called backward. Costs 1 µs if such a package is loaded."""
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
