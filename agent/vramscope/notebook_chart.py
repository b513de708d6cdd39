"""The picture of ``%vram live``: allocated and reserved memory of the last two minutes, as SVG within an output of a cell.

An output needs no script and no second port, so Jupyter, Colab and exported notebooks show it alike.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vramscope.protocol.number_format import amount

WINDOW_S: Final = 120.0
WIDTH: Final = 480
HEIGHT: Final = 96
ROOM_ABOVE: Final = 1.1
"""Height of the picture over its highest value: the line of the peak stays within it."""
COLOURS: Final = {"reserved": "#94a3b8", "allocated": "#3b82f6", "peak": "#d97706"}
"""Legible on white and on black."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One reading of PyTorch's allocator. All sizes are bytes."""

    time_s: float
    """Monotonic clock."""
    index: int
    """Index of the CUDA device."""
    allocated: int
    peak: int
    """Highest allocated since the process began, or since the user reset it."""
    reserved: int
    total: int
    """Memory of the device."""

    @property
    def words(self) -> str:
        """The reading in one line."""
        of_device = f"reserved {amount(self.reserved)} of {amount(self.total)}"
        return f"GPU {self.index}: allocated {amount(self.allocated)}, peak {amount(self.peak)}, {of_device}"


def memory_chart(readings: Sequence[DeviceMemory]) -> str:
    """The readings of the last two minutes as an SVG element. The words of the newest one are its name. Needs one reading."""
    newest = readings[-1]
    shown = [one for one in readings if one.time_s >= newest.time_s - WINDOW_S]
    top = ROOM_ABOVE * max(1, newest.peak, *(one.reserved for one in shown))

    def y(value: int) -> float:
        return round(HEIGHT * (1 - value / top), 1)

    def area(name: str, values: Sequence[int]) -> str:
        # A value holds until the next reading.
        path = f"M{_x(shown[0], newest)},{HEIGHT}V{y(values[0])}"
        for reading, value in zip(shown[1:], values[1:], strict=True):
            path += f"H{_x(reading, newest)}V{y(value)}"
        return f'<path d="{path}H{WIDTH}V{HEIGHT}Z" fill="{COLOURS[name]}"/>'

    peak = f'<path d="M0,{y(newest.peak)}H{WIDTH}" stroke="{COLOURS["peak"]}" stroke-dasharray="4 3"/>'
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(newest.words)}" style="max-width:100%;border-bottom:1px solid currentColor">'
        + area("reserved", [one.reserved for one in shown])
        + area("allocated", [one.allocated for one in shown])
        + peak
        + "</svg>"
    )


def chart_legend() -> str:
    """Names of the colours, and the time that the picture shows, as HTML."""
    marks = {"allocated": "■", "reserved": "■", "peak": "╌"}
    names = "&ensp;".join(f'<span style="color:{COLOURS[name]}">{mark}</span> {name}' for name, mark in marks.items())
    return f"<small>{names}&ensp;last {WINDOW_S / 60:.0f} minutes</small>"


def _x(reading: DeviceMemory, newest: DeviceMemory) -> float:
    return round(WIDTH * (1 - (newest.time_s - reading.time_s) / WINDOW_S), 1)
