"""The device that a replay runs on: what of its memory PyTorch can take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramscope_server.analysis.simulator.replay import UNLIMITED
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.program import derivation_of


@dataclass(frozen=True)
class TargetDevice:
    """A GPU's memory as one process sees it. None: not known."""

    total_bytes: int | None
    """Bytes of the whole device, as cudaMemGetInfo reports them."""
    outside_bytes: int | None
    """Bytes that PyTorch cannot take: the context and libraries of the process, other processes."""
    limit_fraction: float | None
    """Fraction set by set_per_process_memory_fraction; None: no limit."""
    room_bytes: int
    """Bytes that PyTorch can take in all; UNLIMITED if nothing is known of the device."""

    @property
    def limit_bytes(self) -> int | None:
        return (
            None
            if self.limit_fraction is None or self.total_bytes is None
            else int(self.limit_fraction * self.total_bytes)
        )

    def of(self, total_bytes: int) -> TargetDevice:
        """Another device with the same things beside PyTorch on it."""
        return replace(self, total_bytes=total_bytes, room_bytes=max(0, total_bytes - (self.outside_bytes or 0)))


def target_device_of(trace: Trace, device_bytes: int | None = None) -> TargetDevice:
    """The device that the trace was recorded on, or one of ``device_bytes``."""
    total, free = trace.device_total_bytes, trace.device_free_bytes
    outside = None
    if total is not None and free is not None and trace.start is not None:
        outside = max(0, total - free - trace.start.reserved_bytes)
    fraction = None
    if trace.limit_bytes is not None and total and trace.parsed_settings[0].per_process_memory_fraction == 1:
        fraction = trace.limit_bytes / total  # set in the program; what the settings say is read from them
    if total is not None:
        room = total - (outside or 0)
    else:
        derivation = derivation_of(trace)
        room = derivation.room_high_bytes if derivation.room_high_bytes is not None else UNLIMITED
    device = TargetDevice(total, outside, fraction, room)
    return device if device_bytes is None else device.of(device_bytes)
