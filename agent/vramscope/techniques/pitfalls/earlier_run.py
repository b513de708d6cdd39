"""Pitfall: two trainings in one process. The peak of the second includes the memory left by the first.

The first training is recognized by its optimizer, which has not stepped since attach and has state or gradients on a device;
or by a model with gradients that belongs to no optimizer and is not called. Its parameters, gradients and state count, except
those that the current training uses too. Results of its last forward pass, ``outputs`` and ``loss``, are recognized by their
graph, which is older than attach: autograd counts the operations of a thread.
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
from vramscope.protocol.number_format import amount
from vramscope.steps.root_modules import outermost_modules
from vramscope.techniques.observation import TrainingState, plural

if TYPE_CHECKING:
    import torch

MIN_BYTES: Final = 128 * 2**20
"""Smallest unexplained memory that starts a search. cuBLAS workspaces (64 MiB on an H100) and a few batches are smaller."""
MIN_FRACTION: Final = 0.01
"""Smallest share of this training's own bytes that is reported."""
MIN_RESULT_BYTES: Final = 2**20
"""Smallest tensor that is reported as a result of the earlier training."""
MAX_NAMES: Final = 3
SCAN_STEP: Final = 20
"""Step of the search. Optimizers that step rarely have stepped by then."""


class EarlierRun:
    """Searches once for an earlier training. It keeps counters from attach on, and the finding."""

    def __init__(self) -> None:
        self._at_attach_bytes = 0
        self._operations = 0
        """Autograd's operations on this thread at attach."""
        self._thread = 0
        self._scanned = False
        self._finding: messages.Pitfall | None = None

    def begin(self) -> None:
        """Record the allocated memory at attach. About 10 µs."""
        import torch

        self._at_attach_bytes = allocated_bytes()
        self._operations = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)()
        self._thread = threading.get_ident()

    def find(self, training: TrainingState) -> messages.Pitfall | None:
        """Search all objects once, in about 0.1 s, and only if much memory at attach is not used by this training."""
        if training.step < SCAN_STEP or self._scanned:
            return self._finding
        self._scanned = True
        if self._at_attach_bytes < MIN_BYTES:
            return None
        ours = _bytes_of(training.optimizers, training.known_roots)
        total = sum(ours.values())
        if allocated_bytes() - total >= max(MIN_BYTES, int(MIN_FRACTION * total)):
            self._finding = self._scan(training, ours, total)
        return self._finding

    def _scan(self, training: TrainingState, ours: dict[int, int], total: int) -> messages.Pitfall | None:
        optimizers = [one for one in optimizers_on_devices() if all(one is not known for known in training.optimizers)]
        models = self._models(training, optimizers)
        # The known models may include an abandoned one, which is no part of this training.
        theirs = {id(p) for p in _parameters(optimizers)} | {id(p) for model in models for p in model.parameters()}
        used = _bytes_of(
            training.optimizers,
            [root for root in training.known_roots if all(id(p) not in theirs for p in root.parameters())],
        )
        left = _bytes_of(optimizers, models)
        results = self._results(training)
        for tensor in results:
            left.update(_on_device(tensor))
        size = sum(bytes_ for key, bytes_ in left.items() if key not in used)
        if size < max(MIN_BYTES // 2, int(MIN_FRACTION * total)):
            return None  # only a small part of the memory at attach
        parts = []
        if optimizers or models:
            kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in (*optimizers, *models)))
            parts.append(f"{kinds} with parameters, gradients and state")
        if results:
            parts.append(f"{plural(len(results), 'result tensor')}{_variables_of(results)}")
        advice = (
            "delete the first model and optimizer" if optimizers or models else "delete the variables that retain them"
        )
        return training.finding(
            "earlier-run-alive",
            f"The process still retains an earlier training: {' and '.join(parts)}, {amount(size)} on the device. "
            "Every peak of this run includes them.",
            f"compare runs in separate processes, or {advice} and call gc.collect() before the next run",
        )

    def _results(self, training: TrainingState) -> list[torch.Tensor]:
        """Tensors on devices from operations before attach, in graphs that the current training does not use."""
        import torch

        observation = training.observation
        if threading.get_ident() != self._thread or observation is None or observation.oldest_node is None:
            return []  # each thread has its own counter
        if observation.oldest_node < self._operations:
            return []
        tensors, _ = of_types([torch.Tensor])
        nodes = ((tensor, tensor.grad_fn) for tensor in tensors if tensor.is_cuda and tensor.nbytes >= MIN_RESULT_BYTES)
        return [tensor for tensor, node in nodes if node is not None and node._sequence_nr() < self._operations]

    def _models(self, training: TrainingState, optimizers: Sequence[Any]) -> list[torch.nn.Module]:
        """Models with gradients that belong to no optimizer and were not called in the observed step."""
        if training.module_calls is None:
            return []
        known = {id(p) for p in _parameters([*training.optimizers, *optimizers])}
        return [
            model
            for model in outermost_modules()
            if id(model) not in training.module_calls.called
            and any(_on_device(p.grad) for p in model.parameters())
            and all(id(p) not in known for p in model.parameters())
        ]


def _variables_of(tensors: Sequence[Any]) -> str:
    """`` (global 'outputs')``: variables that retain one of the tensors, also in a container; "" if there are none."""
    ids = set(map(id, tensors))
    found: dict[str, None] = {}
    for root in itertools.chain.from_iterable(roots()):
        value = root.value
        inner = dict.values(value) if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
        if id(value) in ids or not ids.isdisjoint(map(id, inner)):
            found[str(root)] = None
    return f" ({', '.join(list(found)[:MAX_NAMES])})" if found else ""


def allocated_bytes() -> int:
    """Allocated bytes of all devices; 0 if CUDA is not initialized."""
    import torch

    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))


def optimizers_on_devices() -> list[torch.optim.Optimizer]:
    """Optimizers of the process that have trained: with state or gradients on a device."""
    import torch

    return [
        optimizer
        for optimizer in living(torch.optim.Optimizer)
        if any(map(_on_device, (*_state_of(optimizer), *(p.grad for p in _parameters([optimizer])))))
    ]


def _bytes_of(optimizers: Sequence[Any], roots: Iterable[torch.nn.Module]) -> dict[int, int]:
    """Storage -> bytes on devices, of parameters, gradients, optimizer state and buffers."""
    sizes: dict[int, int] = {}
    parameters = _parameters(optimizers)
    for root in roots:
        parameters += root.parameters()
        for buffer in root.buffers():
            sizes.update(_on_device(buffer))
    for parameter in parameters:
        sizes.update(_on_device(parameter))
        sizes.update(_on_device(parameter.grad))
    for optimizer in optimizers:
        for value in _state_of(optimizer):
            sizes.update(_on_device(value))
    return sizes


def _parameters(optimizers: Sequence[Any]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in vars(optimizer).get("param_groups", ()) for p in group["params"]]


def _state_of(optimizer: Any) -> list[Any]:
    states = list(vars(optimizer).get("state", {}).values())
    return [value for state in states if isinstance(state, dict) for value in state.values()]


def _on_device(tensor: Any) -> list[tuple[int, int]]:
    device = getattr(tensor, "device", None)
    return [] if device is None or device.type != "cuda" else list(storages(tensor, device.index))
