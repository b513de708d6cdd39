"""Two trainings in one process: the second one's peak has in it what is left of the first.

What is left is known by its optimizer: one that has not stepped since attach, with state or gradients on a device; or by a model
with gradients that no optimizer has and nothing calls. It holds parameters, their gradients and state; what the training that
runs now uses too is not counted. And what its last forward gave, ``outputs`` and ``loss``, is known by its graph, which is older
than attach: autograd counts the operations of a thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.tensor_bytes import storages
from vramscope.process.live_objects import living, of_types
from vramscope.process.name_roots import roots
from vramscope.protocol import messages
from vramscope.steps.root_modules import outermost_modules
from vramscope.techniques.observation import Facts, some

if TYPE_CHECKING:
    import torch

LEAST_BYTES: Final = 128 * 2**20
"""cuBLAS's workspaces (64 MiB on an H100) and a batch or two explain less than that"""
LEAST_FRACTION: Final = 0.01
"""Smallest share of this training's own bytes that is reported."""
LEAST_RESULT: Final = 2**20
"""bytes of a tensor that is worth a word"""
MOST_NAMES: Final = 3
LOOK_AT_STEP: Final = 20
"""until then an optimizer that steps rarely has stepped"""


class EarlierRun:
    """Keeps one number from attach on, and what it found; no optimizer."""

    def __init__(self) -> None:
        self._at_attach_bytes = 0
        self._operations = 0
        """of autograd on this thread, at attach"""
        self._thread = 0
        self._looked = False
        self._finding: messages.Finding | None = None

    def begin(self) -> None:
        """At attach: how much was allocated then. Some 10 µs."""
        import torch

        self._at_attach_bytes = allocated_bytes()
        self._operations = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)()
        self._thread = threading.get_ident()

    def find(self, facts: Facts) -> messages.Finding | None:
        """A sweep over all objects, some 0.1 s, once, and only where much was there at attach that this training does not use."""
        if facts.step < LOOK_AT_STEP or self._looked:
            return self._finding
        self._looked = True
        if self._at_attach_bytes < LEAST_BYTES:
            return None
        ours = _bytes_of(facts.optimizers, facts.alive)
        total = sum(ours.values())
        if allocated_bytes() - total >= max(LEAST_BYTES, int(LEAST_FRACTION * total)):
            self._finding = self._look(facts, ours, total)
        return self._finding

    def _look(self, facts: Facts, ours: dict[int, int], total: int) -> messages.Finding | None:
        left = [thing for thing in optimizers_on_devices() if all(thing is not known for known in facts.optimizers)]
        models = self._models(facts, left)
        # A model that was given up is among those that are alive, too: it is no part of this training.
        theirs = {id(p) for p in _parameters(left)} | {id(p) for model in models for p in model.parameters()}
        used = _bytes_of(
            facts.optimizers, [root for root in facts.alive if all(id(p) not in theirs for p in root.parameters())]
        )
        held = _bytes_of(left, models)
        results = self._results(facts)
        for tensor in results:
            held.update(_on_device(tensor))
        size = sum(bytes_ for key, bytes_ in held.items() if key not in used)
        if size < max(LEAST_BYTES // 2, int(LEAST_FRACTION * total)):
            return None  # some of what was there at attach, and not most of it
        parts = []
        if left or models:
            kinds = ", ".join(dict.fromkeys(type(thing).__name__ for thing in (*left, *models)))
            parts.append(f"{kinds} with parameters, gradients and state")
        if results:
            parts.append(f"{some(len(results), 'tensor')} that its forward gave{_named(results)}")
        advice = "delete the first model and optimizer" if left or models else "delete what holds them"
        return facts.finding(
            "earlier-run-alive",
            f"When this run began the process held an earlier training, and still does: {' and '.join(parts)}, "
            f"{size / 2**20:,.0f} MiB on the device. Every peak of this run has them in it.",
            f"compare runs in processes of their own, or {advice} and call gc.collect() before the next",
        )

    def _results(self, facts: Facts) -> list[torch.Tensor]:
        """Tensors on devices that operations before attach gave, of graphs that the training of now does not walk."""
        import torch

        sight = facts.sight
        if threading.get_ident() != self._thread or sight is None or sight.oldest_node is None:
            return []  # another thread counts for itself
        if sight.oldest_node < self._operations:
            return []
        tensors, _ = of_types([torch.Tensor])
        nodes = ((tensor, tensor.grad_fn) for tensor in tensors if tensor.is_cuda and tensor.nbytes >= LEAST_RESULT)
        return [tensor for tensor, node in nodes if node is not None and node._sequence_nr() < self._operations]

    def _models(self, facts: Facts, optimizers: Sequence[Any]) -> list[torch.nn.Module]:
        """Those with gradients that are no optimizer's, and that were not called in the observed step: its optimizer is gone."""
        if facts.heard is None:
            return []
        known = {id(p) for p in _parameters([*facts.optimizers, *optimizers])}
        return [
            model
            for model in outermost_modules()
            if id(model) not in facts.heard.called
            and any(_on_device(p.grad) for p in model.parameters())
            and all(id(p) not in known for p in model.parameters())
        ]


def _named(tensors: Sequence[Any]) -> str:
    """`` (global 'outputs')``: variables that hold one of them, or a mapping of results with it; "" where there is none."""
    ids = set(map(id, tensors))
    found: dict[str, None] = {}
    for root in itertools.chain.from_iterable(roots()):
        value = root.value
        inner = dict.values(value) if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
        if id(value) in ids or not ids.isdisjoint(map(id, inner)):
            found[str(root)] = None
    return f" ({', '.join(list(found)[:MOST_NAMES])})" if found else ""


def allocated_bytes() -> int:
    """Of all devices that are in use; 0 where CUDA is not."""
    import torch

    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))


def optimizers_on_devices() -> list[torch.optim.Optimizer]:
    """Every optimizer of the process that has state on a device, or gradients: one that has trained."""
    import torch

    return [
        optimizer
        for optimizer in living(torch.optim.Optimizer)
        if any(map(_on_device, (*_state_of(optimizer), *(p.grad for p in _parameters([optimizer])))))
    ]


def _bytes_of(optimizers: Sequence[Any], roots: Iterable[torch.nn.Module]) -> dict[int, int]:
    """Storage -> bytes on devices: parameters, gradients, state and buffers."""
    held: dict[int, int] = {}
    parameters = _parameters(optimizers)
    for root in roots:
        parameters += root.parameters()
        for buffer in root.buffers():
            held.update(_on_device(buffer))
    for parameter in parameters:
        held.update(_on_device(parameter))
        held.update(_on_device(parameter.grad))
    for optimizer in optimizers:
        for value in _state_of(optimizer):
            held.update(_on_device(value))
    return held


def _parameters(optimizers: Sequence[Any]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in vars(optimizer).get("param_groups", ()) for p in group["params"]]


def _state_of(optimizer: Any) -> list[Any]:
    states = list(vars(optimizer).get("state", {}).values())
    return [value for state in states if isinstance(state, dict) for value in state.values()]


def _on_device(tensor: Any) -> list[tuple[int, int]]:
    device = getattr(tensor, "device", None)
    return [] if device is None or device.type != "cuda" else list(storages(tensor, device.index))
