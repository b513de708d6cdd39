"""What is known of an optimizer step once it is over."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from vramscope.protocol import series

if TYPE_CHECKING:
    from vramscope.steps.clock import Stretch


class Split(NamedTuple):
    """Bytes of one device by category, as far as they are known (UNKNOWN where not); order of series.CATEGORIES."""

    parameters: int = series.UNKNOWN
    gradients: int = series.UNKNOWN
    optimizer: int = series.UNKNOWN
    buffers: int = series.UNKNOWN
    activations: int = series.UNKNOWN
    other: int = series.UNKNOWN


class Held(NamedTuple):
    """What outlives a step."""

    graphs_alive: int
    after_step_bytes: int


NOT_KNOWN = Held(series.UNKNOWN, series.UNKNOWN)


class FinishedStep(NamedTuple):
    """One optimizer step, as the training thread noted it. Times are perf_counter_ns."""

    number: int
    end_ns: int
    stretches: list[Stretch]
    micro_steps: int
    watched: bool
    agent_ns: int
    devices: tuple[int, ...]
    splits: list[tuple[Split, Split]] | None
    """(at the end, at the peak) a device; None where nobody counted in this step"""
    held: Held = NOT_KNOWN
    largest: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """by root (its id, compared and never used), the largest first argument of a forward with gradients"""
