"""Finds DeepSpeed's own gradients, parameters and loss scale, which PyTorch's hooks do not show.

ZeRO moves each gradient to its own buckets as soon as it is computed, so ``.grad`` is None again. Some buckets exist only during
backward. The engine also divides and scales the loss before it calls backward. Everything is found by attribute names, so that
deepspeed need not be imported. If a version uses other names, nothing is found. Tested with 0.19.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

ENGINES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Known engines: passed to attach, found among the models, or seen to call backward."""
GRADIENTS: Final = (
    "ipg_buckets",
    "ipg_buffer",
    "averaged_gradients",
    "grad_partitions_flat_buffer",
    "fp32_groups_gradients_flat",
)
"""Attributes of its optimizers with gradients: those that are being sent, were sent, or wait for the step."""
PARAMETERS: Final = ("fp16_partitioned_groups_flat", "fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
"""Attributes with this rank's part of the parameters, and 32-bit copies of it. The torch optimizer has them only in its step."""
FRAMES: Final = 8
"""Maximum number of frames between the engine's call of backward and PyTorch's."""
DEEP: Final = 3
"""Maximum depth of nested lists and dicts of buckets."""


def is_engine(module: object) -> bool:
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(module).__mro__)


def listen() -> Any:
    """Return the engine that is about to call backward, or None. Costs 0.1 µs if deepspeed is not loaded, else 1 µs."""
    if "deepspeed" not in sys.modules:
        return None
    frame = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            break
        if str(frame.f_globals.get("__name__", "")).startswith("deepspeed."):
            engine = frame.f_locals.get("self")
            if is_engine(engine):
                return engine
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return None


def scale_of(engine: Any) -> float:
    """Return the factor by which the engine multiplies the loss in backward: the loss scale of fp16."""
    return float(getattr(_optimizer_of(engine), "loss_scale", 1.0))


def takes_gradients() -> bool:
    """Return whether ZeRO moves gradients away, so that ``.grad`` is None although gradients exist."""
    return bool(ENGINES) and any(_optimizer_of(engine) is not None for engine in list(ENGINES))


def gradients() -> list[Any]:
    """Return the gradient tensors that are not in ``.grad``. Costs some µs per engine."""
    return list(_kept(GRADIENTS))


def parameters() -> list[Any]:
    """Return the parameter tensors that neither modules nor torch's optimizers have."""
    return list(_kept(PARAMETERS))


def _kept(names: Iterable[str]) -> Iterator[Any]:
    for engine in list(ENGINES):
        optimizer = _optimizer_of(engine)
        if optimizer is not None:
            for name in names:
                yield from _tensors(vars(optimizer).get(name), DEEP)


def _optimizer_of(engine: Any) -> Any:
    """Return DeepSpeed's optimizer around the user's, such as that of ZeRO; None if there is none."""
    optimizer = vars(engine).get("optimizer")
    return optimizer if type(optimizer).__module__.startswith("deepspeed.") else None


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    import torch

    if issubclass(type(value), torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        yield from _each(list(value.values()), depth)
    elif depth and isinstance(value, (list, tuple)):
        yield from _each(list(value), depth)
    elif depth and hasattr(value, "buffer"):  # a bucket
        yield from _tensors(value.buffer, depth - 1)


def _each(values: Iterable[Any], depth: int) -> Iterator[Any]:
    for value in values:
        yield from _tensors(value, depth - 1)
