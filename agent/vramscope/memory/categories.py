"""Splits a device's allocated bytes into parameters, gradients, optimizer state, buffers, activations and the rest.

Parameters, gradients, optimizer state and buffers are counted: the storages of the tensors that modules and optimizers
own, each storage once, rounded as the allocator rounds. Counting costs about 1 µs a tensor, so it is done in some of the
steps (:class:`Budget`); between two counts a step that ends at the same number of allocated bytes has the same split.

At the peak the gradients are in between: a counted step notes, parameter by parameter as backward finishes them, when
the allocator's peak last rose. Activations are then what was allocated since the forward began and is not a gradient
(temporaries of the running operation included). In the optimizer's step, and between backward and it, activations are
gone: what was allocated since that phase began and is no state are temporaries, of ``foreach`` or of clipping. *Other* is what
was there before and none of the above (the batch, cuBLAS workspaces, outputs still held). The six always add up to the
allocated bytes they split.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.memory.allocator import Interval, block_bytes
from vramscope.steps import zero
from vramscope.steps.clock import BACKWARD, FORWARD, OPTIMIZER, OTHER, Split, Stretch
from vramscope.wire import CPU, UNKNOWN

if TYPE_CHECKING:
    import torch

FIRST_STEPS = frozenset((1, 2, 3, 5, 10, 20, 50, 100))
"""counted whatever it costs: in the first steps a training takes on its shape"""


class Held(NamedTuple):
    """Counted bytes of one device."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int


class Budget:
    """Lets something through as long as it takes at most ``fraction`` of the time that passes."""

    def __init__(self, fraction: float = 0.001, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._fraction = fraction
        self._now = now
        self._free_at_ns = 0

    def allows(self, now_ns: int) -> bool:
        return now_ns >= self._free_at_ns

    def spent(self, nanoseconds: int) -> None:
        self._free_at_ns = self._now() + int(nanoseconds / self._fraction)


class Categories:
    """The anatomy of steps (see StepClock.anatomy). Everything runs on the training thread, where tensors stand still.

    optimizers, roots   live views (weak sets); nothing of theirs is kept
    peak_of             device -> the allocator's peak allocated bytes now; None without CUDA
    """

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        roots: Iterable[torch.nn.Module],
        peak_of: Callable[[int], int] | None,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._optimizers = optimizers
        self._roots = roots
        self._peak_of = peak_of
        self._now = now
        self._count_budget = Budget(now=now)
        self._peak_budget = Budget(now=now)
        self._spent_ns = 0
        self._step = 1
        self._sampling = False
        self._began = False
        self._handles: list[Any] = []
        self._before_forward: dict[int, Held] = {}
        self._gradients_before_forward: dict[int, int] = {}
        self._gradients_at_peak: dict[int, int] = {}
        self._seen_peak: dict[int, int] = {}
        self._grown: dict[int, int] = {}
        self._heard: set[int] = set()
        self._last: dict[int, tuple[int, Held]] = {}
        self._last_peak: dict[int, tuple[int, Split]] = {}
        self._told: tuple[list[tuple[int, int]], list[tuple[Split, Split]]] = ([], [])
        """of the last step, where its phases were not read: allocated bytes at its end and at its peak, a device each, and its
        splits. The next one that ends and peaks as high has the same"""

    # -- within a step --------------------------------------------------------------------------------------------------

    def begin(self, phase: int, devices: tuple[int, ...], cuts: list[Interval]) -> None:
        """A phase begins; ``cuts`` are of the one that ended. Only a step that is sampled does anything here."""
        if not self._began:
            self._began = True
            wanted = self._step in FIRST_STEPS or self._peak_budget.allows(self._now())
            self._sampling = wanted and bool(devices) and self._peak_of is not None
        if not self._sampling:
            return
        start = self._now()
        self._stop_following(devices, cuts)
        if phase == FORWARD and not self._before_forward:
            for device in devices:
                held = self.count(device)
                self._before_forward[device] = held
                self._gradients_before_forward[device] = held.gradients
        elif phase == BACKWARD:
            self._follow_gradients(devices)
        elif phase == OPTIMIZER:
            # One that was made before attach is known since its step began, and its state is not new.
            for device, before in self._before_forward.items():
                self._before_forward[device] = before._replace(optimizer=self.count(device).optimizer)
        self._spent_ns += self._now() - start

    def end_step(self, stretches: list[Stretch], devices: tuple[int, ...]) -> list[tuple[Split, Split]] | None:
        """The splits at the step's end and at its peak, a device each; None where this step was not counted."""
        start = self._now()
        if self._handles:
            self._stop_following(devices, stretches[-1].cuts)
        due = self._count_budget.allows(start)
        marks: list[tuple[int, int]] = []
        if len(stretches) == 1:
            marks = [(cut.allocated_bytes, cut.peak_allocated_bytes) for cut in stretches[0].cuts]
        if marks and marks == self._told[0] and not due:
            self._step += 1
            return self._told[1]
        splits = []
        for position, device in enumerate(devices or (CPU,)):
            allocated = stretches[-1].cuts[position].allocated_bytes if devices else UNKNOWN
            known = self._last.get(device)
            if due or self._sampling or known is None:
                held = self.count(device)
                self._last[device] = (allocated, held)
            elif known[0] != allocated:
                splits.append((Split(), Split()))
                continue
            else:
                held = known[1]
            at_end = at_end_split(held, allocated)
            at_peak = self._peak_split(device, position, stretches, held) if devices else Split()
            splits.append((at_end, at_peak))
        if due or self._sampling:
            spent = self._spent_ns + self._now() - start
            self._count_budget.spent(spent)
            if self._sampling:
                self._peak_budget.spent(2 * spent)
        self._step += 1
        self._spent_ns, self._began, self._sampling = 0, False, False
        self._before_forward.clear()
        whole = bool(marks) and not any(UNKNOWN in split for pair in splits for split in pair)
        self._told = (marks if whole else [], splits)
        return splits

    def _peak_split(self, device: int, position: int, stretches: list[Stretch], held: Held) -> Split:
        """The split at the step's peak. A step as high as the last one that was split has its split."""
        stretches = [
            stretch for stretch in stretches if position < len(stretch.cuts)
        ]  # watched from within the step on
        stretch = max(stretches, key=lambda s: s.cuts[position].peak_allocated_bytes)
        peak = stretch.cuts[position].peak_allocated_bytes
        earlier = stretches[: stretches.index(stretch)]
        if stretch.phase == OPTIMIZER or (stretch.phase == OTHER and any(one.phase == BACKWARD for one in earlier)):
            begin = earlier[-1].cuts[position].allocated_bytes if earlier else UNKNOWN
            split = self._split_behind(device, stretch.phase, held, peak, begin)
        else:
            split = self._split_of(device, position, stretch.phase, stretches, held, peak)
        if UNKNOWN not in split:
            self._last_peak[device] = (peak, split)
        elif self._last_peak.get(device, (UNKNOWN,))[0] == peak:
            split = self._last_peak[device][1]
        return split

    def _split_behind(self, device: int, phase: int, held: Held, peak: int, begin: int) -> Split:
        """Of a peak behind the backward, when activations are gone; ``begin``: allocated bytes when its phase began."""
        before = self._before_forward.get(device)
        gradients, state = held.gradients, 0
        if phase == OPTIMIZER:
            state = 0 if before is None else max(0, held.optimizer - before.optimizer)
        else:
            held = held if before is None else held._replace(optimizer=before.optimizer)
            gradients = self._grown.get(device, UNKNOWN)
        if gradients == UNKNOWN:
            return closed(held, UNKNOWN, UNKNOWN, peak)
        split = closed(held, gradients, 0, peak)
        # (Where more was counted than is allocated, the rest is UNKNOWN, which is below zero.)
        temporaries = min(peak - begin - state, split.other) if begin != UNKNOWN else 0
        return closed(held, gradients, temporaries, peak) if temporaries > 0 else split

    def _split_of(
        self, device: int, position: int, phase: int, stretches: list[Stretch], held: Held, peak: int
    ) -> Split:
        """From how many gradients there were at the peak of this phase in the last sampled step."""
        before = self._before_forward.get(device)
        # The optimizer makes its state at its first step: until then the peak is without it.
        held = held if before is None else held._replace(optimizer=before.optimizer)
        at_forward = self._gradients_before_forward.get(device)
        gradients = {
            FORWARD: at_forward,
            BACKWARD: self._gradients_at_peak.get(device),
            OTHER: at_forward,
        }.get(phase)
        allocated = allocated_before_forward(stretches, position)
        if gradients is None or at_forward is None or allocated is None:
            return closed(held, UNKNOWN, UNKNOWN, peak)
        others = allocated - held.parameters - held.optimizer - held.buffers - at_forward
        activations = peak - held.parameters - held.optimizer - held.buffers - gradients - others
        if others < 0 or activations < 0:
            return closed(held, gradients, UNKNOWN, peak)
        return closed(held, gradients, activations, peak)

    # -- gradients as backward makes them ----------------------------------------------------------------------------------

    def _follow_gradients(self, devices: tuple[int, ...]) -> None:
        for device in devices:
            held = self.count(device)
            self._grown[device] = self._gradients_at_peak[device] = held.gradients
            self._seen_peak[device] = 0
        assert self._peak_of is not None
        peak_of, grown, seen, at_peak = self._peak_of, self._grown, self._seen_peak, self._gradients_at_peak
        self._heard = heard = set[int]()
        fresh: set[int] = set()
        counted = {key for device in devices for tensor in zero.gradients() for key, _ in storages(tensor, device)}

        def finished(parameter: torch.Tensor) -> None:
            device = parameter.device.index
            if device not in seen:
                return
            peak = peak_of(device)
            heard.add(device)
            if peak > seen[device]:  # it rose while this gradient was made, so this one was not complete then
                seen[device], at_peak[device] = peak, grown[device]
            if id(parameter) in fresh:
                # (Many may be views of one bucket: that counts once.)
                for key, size in storages(parameter.grad, device):
                    grown[device] += size if key not in counted else 0
                    counted.add(key)

        for parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                if parameter.grad is None:
                    fresh.add(id(parameter))
                self._handles.append(parameter.register_post_accumulate_grad_hook(finished))

    def _stop_following(self, devices: tuple[int, ...], cuts: list[Interval]) -> None:
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for device, cut in zip(devices, cuts, strict=False):
            if device not in self._heard:  # gradients are made some other way (FSDP): then it is not known
                self._gradients_at_peak.pop(device, None)
                self._grown.pop(device, None)
            elif cut.peak_allocated_bytes > self._seen_peak.get(device, 0):
                self._gradients_at_peak[device] = self._grown.get(device, 0)
        self._seen_peak.clear()

    # -- counting -------------------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[torch.Tensor]:
        seen: set[int] = set()
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter
        for root in list(self._roots):
            for parameter in root.parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter

    def count(self, device: int) -> Held:
        """Bytes on a device by owner, each storage once (tied weights, views, gradients that share a bucket)."""
        seen: dict[int, int] = {}
        parameters = gradients = state = buffers = 0

        def fresh(tensor: Any) -> int:
            size = 0
            for key, bytes_ in storages(tensor, device):
                if key not in seen:
                    seen[key] = bytes_
                    size += bytes_
            return size

        every = list(self._parameters())
        for parameter in (*every, *zero.parameters()):
            parameters += fresh(parameter)
        for parameter in every:
            # (functional_call puts results into a module for a moment: PyTorch warns who asks for their gradient)
            if parameter.is_leaf and parameter.grad is not None:
                gradients += fresh(parameter.grad)
        for tensor in zero.gradients():
            gradients += fresh(tensor)
        for root in list(self._roots):
            for buffer in root.buffers():
                buffers += fresh(buffer)
        for optimizer in list(self._optimizers):
            for entry in list(optimizer.state.values()):
                for value in entry.values() if isinstance(entry, dict) else ():
                    state += fresh(value)
        return Held(parameters, gradients, state, buffers)


def storages(tensor: Any, device: int) -> Iterator[tuple[int, int]]:
    """(identity, bytes) of the storages under a tensor on this device.

    Wrappers are opened: DTensor, quantised states, torch.func's."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from storages(getattr(tensor, name), device)
        return
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            yield from storages(tensor._indices(), device)
            yield from storages(tensor._values(), device)
        return
    where = tensor.device
    if where.type == "cpu":
        if device != CPU:
            return
    elif where.type != "cuda" or where.index != device:
        return
    try:
        storage = tensor.untyped_storage()
    except RuntimeError:
        inner = unwrapped(tensor)
        if inner is not tensor:  # (else a class that has no memory of its own)
            yield from storages(inner, device)
        return
    size = storage.nbytes()
    if size:
        yield storage._cdata, size if device == CPU else block_bytes(size)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What torch.func's transformations wrapped, however often; any other tensor itself."""
    import torch

    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def at_end_split(held: Held, allocated: int) -> Split:
    """The split when a step ends. Activations are unknown there: what outlives the step counts as other."""
    if allocated == UNKNOWN:
        return Split(held.parameters, held.gradients, held.optimizer, held.buffers)
    return closed(held, held.gradients, 0, allocated)


def allocated_before_forward(stretches: list[Stretch], position: int) -> int | None:
    """Allocated bytes when the first forward of the step began; None where no forward was seen."""
    for earlier, later in itertools.pairwise(stretches):
        if later.phase == FORWARD:
            return earlier.cuts[position].allocated_bytes
    return None


def closed(held: Held, gradients: int, activations: int, allocated: int) -> Split:
    """A split that adds up to ``allocated``, the rest being other; the rest is unknown where a part is, or where more was
    counted than is allocated."""
    parts = (held.parameters, gradients, held.optimizer, held.buffers, activations)
    rest = allocated - sum(parts) if UNKNOWN not in parts else UNKNOWN
    return Split(*parts, max(rest, UNKNOWN))
