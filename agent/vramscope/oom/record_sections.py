"""Sections of an out-of-memory record. Each has some fields of OomRecord; a section that failed has none."""

from __future__ import annotations

from typing import TypedDict

from vramscope.protocol.messages import Leak, Technique
from vramscope.protocol.oom_record import DataHolder, ModuleBytes, Update
from vramscope.protocol.other_process import OtherProcess
from vramscope.protocol.window import Layout


class DeviceSection(TypedDict, total=False):
    """Numbers of the device and its processes."""

    total_bytes: int | None
    free_bytes: int | None
    limit_bytes: int | None
    counters: dict[str, int]
    outside_before_bytes: int | None
    outside_bytes: int | None
    neighbours: list[OtherProcess] | None


class OwnerSection(TypedDict, total=False):
    """Memory of the device by owner."""

    owned_bytes: dict[str, int]
    trainable_bytes: int
    waiting_bytes: int
    copy_of: str | None
    copy_bytes: int | None
    copy_waiting_bytes: int | None
    largest_parameter_bytes: int
    gradients_at_once_bytes: int | None
    bucket_bytes: int
    narrow_bytes: int
    kept_models: int
    holders: list[ModuleBytes]
    optimizer_kind: str | None
    superseded_state_bytes: int
    surplus_state_bytes: int | None
    frozen_gradients_bytes: int
    state_bytes_per_parameter_byte: float | None
    update: Update | None
    copies: DataHolder | None


class LayoutSection(TypedDict, total=False):
    """Segments and blocks of the allocator, and its settings."""

    settings: str
    settings_in_force: dict[str, int | float | bool | str | None]
    pools: list[tuple[int, int]]
    layout: Layout
    weight_sized_bytes: int


class TimelineSection(TypedDict, total=False):
    """Samples, steps and inputs up to the error."""

    phase: str | None
    forwards: int
    evaluates: bool
    counters_before: dict[str, int]
    peak_allocated_bytes: int | None
    allocated_before_forward_bytes: int | None
    before_forward_in_last_step_bytes: int | None
    allocated_before_update_bytes: int | None
    samples: dict[str, bytes]
    losses: dict[str, bytes]
    last_step: dict[str, int]
    steps: dict[str, bytes]
    batch_size: int | None
    input_shape: list[int]
    input_shape_before: list[int]
    input_sizes: list[tuple[list[int], int]]


class ContextSection(TypedDict, total=False):
    """Running code, host, techniques and versions."""

    module: str | None
    node: str | None
    progress: float | None
    to_come_bytes: int | None
    forward_bytes: int | None
    no_graph_yet: bool
    computes: bool | None
    process_rss_bytes: int | None
    host_used_bytes: int | None
    host_total_bytes: int | None
    host_kills: int | None
    techniques: list[Technique]
    torch: str
    hip: str | None


class WindowSection(TypedDict, total=False):
    """The recording of allocator history."""

    window: str | None


class LeakSection(TypedDict, total=False):
    """Leaks that are known, and late suspects."""

    leaks: list[Leak]
    last_look: list[Leak]
    data: DataHolder | None
    unused_graph: DataHolder | None
