"""Floating-point operations of a step: products of matrices, convolutions and attention, by the shapes of their operands.

PyTorch's profiler records the calls of its operators without changing them, those of the backward pass and of repeated forward
passes, too. Time on an emulated GPU says nothing about the work. This number does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.process.patching import Patches

PRODUCTS: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_scaled_mm": 0,
    "aten::_int_mm": 0,
    "aten::_grouped_mm": 0,
    "aten::_scaled_grouped_mm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_addmm_activation": 1,
}
"""Position of the first of the two matrices."""
STARTS: Final = ("_prepare_profiler", "_enable_profiler")
"""Functions that each profiler of PyTorch calls first."""
KERNELS: Final = ("flash", "efficient", "cudnn")
ATTENTION: Final = {f"aten::_scaled_dot_product_{kernel}_attention" for kernel in KERNELS}
ATTENTION_BACKWARD: Final = {f"{name}_backward" for name in ATTENTION}


class WorkMeter:
    """Counts the operations of one step. A profiler of the program takes its place: PyTorch has one for a process."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._patches = Patches()
        self._is_starting = False
        self.flops: int | None = None
        """Operations of the step; None if they are not known."""

    @guarded("the operations of a step")
    def begin(self) -> None:
        """Record from now on, on this thread and those of the backward pass."""
        import torch
        from torch.autograd import profiler
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            return
        for name in STARTS:
            if hasattr(profiler, name):
                self._patches.wrap(profiler, name, self._started)
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._is_starting = True
        try:
            self._profile.start()
        finally:
            self._is_starting = False

    @guarded("the operations of a step")
    def end(self) -> None:
        """Stop recording, and count."""
        own_profile, self._profile = self._profile, None
        self._patches.remove()
        if own_profile is None:
            return
        own_profile.stop()
        self.flops = _sum_of_flops(own_profile.profiler.kineto_results.events()) or None

    def _started(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make place for a profiler that the program starts."""
        if self._profile is not None and not self._is_starting:
            own_profile, self._profile = self._profile, None
            with guarded("the end of the agent's profile"):
                own_profile.stop()
        return original(*args, **kwargs)


def _sum_of_flops(calls: Sequence[Any]) -> int:
    """Add the operations of all calls. Autocast calls each operator a second time, within the call that it converts."""
    total, ends_ns = 0, dict[int, int]()
    for call in sorted(calls, key=lambda call: (call.start_ns(), -call.duration_ns())):
        thread, start_ns = call.start_thread_id(), call.start_ns()
        if start_ns >= ends_ns.get(thread, 0) and (flops := flops_of(call.name(), call.shapes, call.concrete_inputs)):
            total += flops
            ends_ns[thread] = start_ns + call.duration_ns()
    return total


def flops_of(name: str, shapes: Callable[[], Any], values: Callable[[], Any]) -> int:
    """Return the operations of a call, two for each multiplication with its addition; 0 for other operators.

    shapes   returns the shapes of the arguments
    values   returns the arguments that are no tensors
    """
    if name in PRODUCTS:
        left, right = shapes()[PRODUCTS[name] :][:2]
        operations = math.prod(left) * right[-1]
    elif name in ATTENTION:
        query, key, value = shapes()[:3]
        operations = math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    elif name in ATTENTION_BACKWARD:  # the scores again, and two products for each of the two of the forward pass
        query, key, value = shapes()[1:4]
        operations = math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])
    elif name == "aten::convolution":
        image, weight = shapes()[:2]
        stride, padding, dilation, is_transposed = values()[3:7]
        points = image[2:] if is_transposed else _points(image[2:], weight[2:], stride, padding, dilation)
        operations = image[0] * math.prod(weight) * math.prod(points)
    elif name == "aten::convolution_backward":
        gradient, image, weight = shapes()[:3]
        is_transposed, needs_gradients = values()[7], values()[10]
        points = (image if is_transposed else gradient)[2:]
        operations = image[0] * math.prod(weight) * math.prod(points) * sum(needs_gradients[:2])
    else:
        operations = 0
    return 2 * int(operations)


def _points(
    image: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return the size of the result of a convolution. One number may stand for all dimensions."""
    each = [one if len(one) == len(image) else [*one] * len(image) for one in (stride, padding, dilation)]
    return [
        (points + 2 * pad - step * (width - 1) - 1) // stride + 1
        for points, width, stride, pad, step in zip(image, weight, *each, strict=True)
    ]
