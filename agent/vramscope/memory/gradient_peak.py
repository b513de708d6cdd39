"""Estimates the bytes of gradients that exist at the peak of backward.

They cannot be read after backward. In some steps a hook reads the peak counter after each parameter's gradient, which shows
between which gradients the peak was. Other steps are interpolated by the height of their peak. With a longer batch the peak is
earlier in backward, so the gradients of a step between two followed steps are between theirs.
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
"""Maximum number of remembered heights."""
CLOSE_ENOUGH = 0.02
"""Maximum difference between the gradients of two followed steps, as a share of the peak, for steps between them."""

NEAR = 0.05
"""Maximum distance of a step above or below all followed steps, as a share of its height."""


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
        """Follow a backward pass, which begins with these bytes of gradients on each device. Costs 2 µs per parameter."""
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
            if (
                peak > seen[device]
            ):  # the peak rose while this gradient was computed, so it was not complete at the peak
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
        """Handle the end of the backward pass; ``cuts`` are its counters by device."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for device, cut in zip(devices, cuts, strict=False):
            if device not in self._devices:  # no hook ran, because gradients are made in another way (FSDP): unknown
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
        """Return the gradient bytes after the last followed backward pass; None if unknown."""
        return self._grown.get(device)

    def note(self, device: int, begun_at: int | None) -> None:
        """Remember the result of a followed step.

        begun_at   allocated bytes when its forward pass began; None if no forward pass was seen
        """
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
        """Return the gradient bytes at the peak of a backward pass; None if the followed steps do not determine them.

        height   bytes of the peak above the begin of the forward pass
        """
        known = self._known.get(device, {})
        if height in known:
            return known[height]
        below = max((one for one in known if one <= height), default=None)
        above = min((one for one in known if one >= height), default=None)
        if below is None or above is None:
            # The height is above or below all known ones. If it is close, the two nearest show whether the bytes still change.
            nearest = sorted(known, key=lambda one: abs(one - height))[:2]
            if len(nearest) < 2 or abs(height - nearest[0]) > max(NEAR * height, abs(nearest[1] - nearest[0])):
                return None
            below, above = nearest
        if abs(known[below] - known[above]) > CLOSE_ENOUGH * peak:
            return None
        return known[min(below, above, key=lambda one: abs(one - height))]
