"""What optimizers keep of each parameter, what they will keep, and how they go through the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory import lomo_state
from vramscope.process.frames import locals_of
from vramscope.protocol.oom_record import Update

if TYPE_CHECKING:
    from types import FrameType

MOST_IN_HAND: Final = 1000
"""tensors in one list of a running step"""

STATE_OF: Final = {
    "Adam": 2.0,
    "AdamW": 2.0,
    "NAdam": 2.0,
    "RAdam": 2.0,
    "Adamax": 2.0,
    "Adagrad": 1.0,
    "Adadelta": 2.0,
    "Rprop": 2.0,
}
"""state in bytes a byte of parameters, of PyTorch's own optimizers that always keep as much (amsgrad: one more)"""


def states_of(optimizers: list[Any], frames: Iterable[FrameType]) -> Iterator[tuple[Any, Any]]:
    """(parameter that it is kept for, what an optimizer keeps); None: not for one of them. ``frames``: of the thread that asked."""
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for value in state.values() if isinstance(state, dict) else ():
                for part in value if isinstance(value, list) else (value,):  # (LBFGS keeps its history in lists)
                    yield parameter, part
        for value in lomo_state.state_of(optimizer):
            yield None, value
    for value in _in_hand(frames, optimizers):
        yield None, value


def _in_hand(frames: Iterable[FrameType], optimizers: list[Any]) -> Iterator[Any]:
    """What an optimizer has in local variables of its ``step``: LBFGS its whole history, until its first step has ended.

    Others have what is counted already, or nothing: they update in functions.
    """
    import torch

    known = set(map(id, optimizers))
    for frame in frames:
        code = frame.f_code
        if code.co_name != "step" or not code.co_argcount:
            continue
        values = locals_of(frame)
        if id(values.get(code.co_varnames[0])) not in known:
            continue
        for value in values.values():
            held = value[:MOST_IN_HAND] if type(value) is list else (value,)
            yield from (one for one in held if issubclass(type(one), torch.Tensor))


def state_per_byte_of(optimizers: list[Any]) -> float | None:
    """What the optimizer will keep for each byte of a parameter; None where that is not known."""
    shares = set()
    for optimizer in optimizers:
        kind, defaults = type(optimizer), getattr(optimizer, "defaults", {})
        if kind.__name__ == "Lomo" and lomo_state.is_lomo(optimizer):
            shares.add(0.0)
            continue
        if not kind.__module__.startswith("torch.optim"):
            return None
        if kind.__name__ == "SGD":
            shares.add(1.0 if defaults.get("momentum") else 0.0)
        elif kind.__name__ in STATE_OF:
            shares.add(STATE_OF[kind.__name__] + (1.0 if defaults.get("amsgrad") else 0.0))
        else:
            return None
    return shares.pop() if len(shares) == 1 else None


def update_of(optimizers: list[Any]) -> Update | None:
    """How the first goes through its parameters; on a GPU ``foreach`` is what PyTorch takes by itself."""
    defaults = getattr(optimizers[0], "defaults", {}) if optimizers else {}
    if "foreach" not in defaults or not type(optimizers[0]).__module__.startswith("torch.optim"):
        return None
    if defaults.get("fused"):
        return "fused"
    return "one by one" if defaults["foreach"] is False else "foreach"
