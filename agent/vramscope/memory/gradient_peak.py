"""How many bytes of gradients there are when backward is at its peak.

That cannot be read after the fact. In some of the steps each parameter's finished gradient asks whether the peak rose before
it; the steps in between are interpolated by their height. The longer a batch, the earlier in backward is the
peak, so between two steps that were followed the gradients lie between theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vramscope.memory import deepspeed_zero
from vramscope.memory.peak_counters import Interval
from vramscope.memory.tensor_bytes import storages
from vramscope.process.hook_numbers import own_hook_numbers

if TYPE_CHECKING:
    import torch

MOST_KNOWN = 32
"""Number of remembered heights."""
CLOSE_ENOUGH = 0.02
"""Maximum difference of two followed steps, as a share of the peak, at which a step between them counts as known."""

NEAR = 0.05
"""Maximum distance from the followed steps, as a share of the height, at which a step beyond them counts as known."""


class BackwardPeaks:
    """Follows the gradients of single steps. Everything runs on the training thread.

    peak_of   device -> the allocator's peak allocated bytes now
    """

    def __init__(self, peak_of: Callable[[int], int]) -> None:
        self._peak_of = peak_of
        self._handles: list[Any] = []
        self._seen_peak: dict[int, int] = {}
        self._at_seen: dict[int, int] = {}
        self._grown: dict[int, int] = {}
        self._devices: set[int] = set()
        self._highest: dict[int, tuple[int, int]] = {}
        self._known: dict[int, dict[int, int]] = {}

    @property
    def following(self) -> bool:
        return bool(self._handles)

    def follow(self, gradients: dict[int, int], parameters: Iterable[torch.Tensor]) -> None:
        """Follow a backward pass that begins with these bytes of gradients a device. Costs 2 µs a parameter."""
        self._grown, self._at_seen = dict(gradients), dict(gradients)
        self._seen_peak = dict.fromkeys(gradients, 0)
        self._devices = devices = set[int]()
        peak_of, grown, seen, at_seen = self._peak_of, self._grown, self._seen_peak, self._at_seen
        fresh: set[int] = set()
        counted = {
            key for device in gradients for tensor in deepspeed_zero.gradients() for key, _ in storages(tensor, device)
        }

        def finished(parameter: torch.Tensor) -> None:
            device = parameter.device.index
            if device not in seen:
                return
            peak = peak_of(device)
            devices.add(device)
            if peak > seen[device]:  # it rose while this gradient was made, so this one was not complete then
                seen[device], at_seen[device] = peak, grown[device]
            if id(parameter) in fresh:
                # Many gradients may be views of one bucket, which counts once.
                for key, size in storages(parameter.grad, device):
                    grown[device] += size if key not in counted else 0
                    counted.add(key)

        with own_hook_numbers():
            for parameter in parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    if parameter.grad is None:
                        fresh.add(id(parameter))
                    self._handles.append(parameter.register_post_accumulate_grad_hook(finished))

    def stop(self, devices: tuple[int, ...], cuts: list[Interval]) -> None:
        """The backward is over; ``cuts`` are what it came to."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for device, cut in zip(devices, cuts, strict=False):
            if device not in self._devices:  # gradients are made some other way (FSDP): then it is not known
                self._forget(device)
                continue
            rose_behind = cut.peak_allocated_bytes > self._seen_peak.get(device, 0)
            gradients = self._grown[device] if rose_behind else self._at_seen[device]
            if cut.peak_allocated_bytes >= self._highest.get(device, (0, 0))[0]:
                self._highest[device] = (cut.peak_allocated_bytes, gradients)
        self._seen_peak = {}

    def _forget(self, device: int) -> None:
        for known in (self._grown, self._highest, self._known):
            known.pop(device, None)

    def behind(self, device: int) -> int | None:
        """Gradient bytes after the last followed backward pass; None if unknown."""
        return self._grown.get(device)

    def note(self, device: int, begun_at: int | None) -> None:
        """The step that was followed is over; ``begun_at``: allocated bytes when its forward began, None where none was seen."""
        highest = self._highest.pop(device, None)
        if highest is None or begun_at is None:
            return
        peak, gradients = highest
        known = self._known.setdefault(device, {})
        known.pop(peak - begun_at, None)
        known[peak - begun_at] = gradients
        if len(known) > MOST_KNOWN:
            del known[next(iter(known))]

    def at(self, device: int, height: int, peak: int) -> int | None:
        """Gradients at the peak of a backward that rose to ``height`` above its forward's begin; None where those that were
        followed leave it open."""
        known = self._known.get(device, {})
        if height in known:
            return known[height]
        below = max((one for one in known if one <= height), default=None)
        above = min((one for one in known if one >= height), default=None)
        if below is None or above is None:
            # Beyond all, but near: the nearest two say whether it still moves.
            nearest = sorted(known, key=lambda one: abs(one - height))[:2]
            if len(nearest) < 2 or abs(height - nearest[0]) > max(NEAR * height, abs(nearest[1] - nearest[0])):
                return None
            below, above = nearest
        if abs(known[below] - known[above]) > CLOSE_ENOUGH * peak:
            return None
        return known[min(below, above, key=lambda one: abs(one - height))]
