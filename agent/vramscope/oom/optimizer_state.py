"""State of optimizers: what they keep for each parameter, what they will keep, and how their update loops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory import lomo_state
from vramscope.memory.optimizer_states import tensors_in
from vramscope.memory.tensor_bytes import storages
from vramscope.process.frames import locals_of
from vramscope.protocol.oom_record import Update

if TYPE_CHECKING:
    from types import FrameType

MOST_IN_LIST: Final = 1000
"""Tensors of one list in a running step."""

FEWEST_IDLE: Final = 2
"""Optimizers with state for one parameter that no longer step, from which on they are not needed."""

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
"""Bytes of state for a byte of parameters, of PyTorch's optimizers that always keep as much (amsgrad: one more)."""


def states_of(optimizers: list[Any], frames: Iterable[FrameType]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a parameter and what an optimizer keeps for it; None: not for one parameter.

    frames   of the requesting thread
    """
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for value in list(state.values()) if isinstance(state, dict) else ():
                for part in tensors_in(value):
                    yield parameter, part
        for value in lomo_state.state_of(optimizer):
            yield None, value
    for value in _in_step(frames, optimizers):
        yield None, value


def _in_step(frames: Iterable[FrameType], optimizers: list[Any]) -> Iterator[Any]:
    """Tensors in local variables of an optimizer's ``step``. LBFGS has its whole history there until its first step has ended.

    Others have nothing there, or what is counted already: they update in functions.
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
            inner = value[:MOST_IN_LIST] if type(value) is list else (value,)
            yield from (one for one in inner if issubclass(type(one), torch.Tensor))


def superseded_bytes(optimizers: Iterable[Any], device: int, idle: Collection[int]) -> int:
    """Bytes on a device of state that earlier optimizers keep for the same parameters as a later one.

    idle   identities of optimizers that no longer step. Those of several tasks step in turn, and none is superseded

    0 for a parameter without two idle ones beside another: a wrapper such as Lookahead keeps its own beside that of its optimizer.
    """
    everyone, of_idle = Counter[int](), defaultdict[int, list[int]](list)
    counted = set[int]()  # a wrapper may have the state of its optimizer
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            sizes = {
                key: size for one in tensors_in(state) for key, size in storages(one, device) if key not in counted
            }
            counted.update(sizes)
            everyone[id(parameter)] += bool(sizes)
            if sizes and id(optimizer) in idle:
                of_idle[id(parameter)].append(sum(sizes.values()))
    return sum(sum(sizes) for key, sizes in of_idle.items() if FEWEST_IDLE <= len(sizes) < everyone[key])


def surplus_bytes(optimizers: list[Any], device: int, state_bytes: int) -> int | None:
    """Bytes of state beyond what one optimizer keeps for the weights that have any; None where that is not known.

    state_bytes   all state of these optimizers on the device
    """
    each = state_per_byte_of(optimizers)
    if not each:
        return None
    weights: dict[int, int] = {}
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if state:
                parts = dict(storages(parameter, device))
                if not parts:
                    return None  # its weights are elsewhere
                weights.update(parts)
    return max(0, state_bytes - int(each * sum(weights.values())))


def state_per_byte_of(optimizers: list[Any]) -> float | None:
    """Bytes that the optimizer will keep for a byte of a parameter; None where that is not known."""
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
    """Update loop of the first optimizer; on a GPU ``foreach`` is PyTorch's default. Several each copy their own parameters
    only, so that their loop counts as not known."""
    defaults = getattr(optimizers[0], "defaults", {}) if optimizers else {}
    if "foreach" not in defaults or not type(optimizers[0]).__module__.startswith("torch.optim"):
        return None
    if defaults.get("fused"):
        return "fused"
    if defaults["foreach"] is False:
        return "one by one"
    return "foreach" if len(optimizers) == 1 else None
