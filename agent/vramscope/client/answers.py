"""Answers of the server, typed. Sizes are bytes, times are seconds, None is unknown. Fields of a newer server are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of runs says of a run."""

    run_id: str
    name: str
    project: str
    state: str
    """``running``, ``finished``, ``failed`` or ``lost``; a newer agent may report another word."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """Plain text that somebody wrote on the page, or with ``PATCH /api/v1/runs/RUN``."""
    device: str | None = None
    """Name of the lowest rank's first device."""
    capacity_bytes: int | None = None
    """Memory of that device."""
    world_size: int | None = None
    """Number of ranks of the training."""
    steps: int | None = None
    """Number of optimizer steps."""
    started_seconds: float | None = None
    """Start of the run, since 1970."""
    ended_seconds: float | None = None
    """End of the run, since 1970; None while it runs."""
    peak_allocated_bytes: int | None = None
    """Highest allocated memory on any rank."""
    peak_reserved_bytes: int | None = None
    """Highest reserved memory on any rank."""
    peak_step: int | None = None
    """Step with the highest allocated memory."""
    step_seconds_median: float | None = None
    """Median duration of a step."""
    unusable_bytes: int | None = None
    """Free memory at peak reserved that this run cannot use; None until a window was recorded."""
    leaked_bytes: int | None = None
    """Memory that all leaks retain together, on the rank with most of it."""
    error_type: str | None = None
    """Type of the exception that ended the run."""
    error_line: str | None = None
    """Last line of that exception's text."""
    pinned: bool = False
    baseline: bool = False
    """True if the run is the baseline of its project."""


class RunPage(msgspec.Struct, frozen=True):
    """One page of the list of runs."""

    runs: list[RunFacts]
    total: int
    next_cursor: str | None = None


class LeakVerdict(msgspec.Struct, frozen=True):
    """Judgement over all leaks and the memory after each step."""

    level: str
    """``leak``, ``growth``, ``none`` or ``unknown``."""
    sentence: str


class Leak(msgspec.Struct, frozen=True, kw_only=True):
    """Memory from earlier iterations that a variable retains."""

    id: str
    kind: str
    name: str
    """Name of the variable."""
    held_bytes: int
    """Memory that is retained."""
    growth_bytes_per_step: float | None = None
    count: int
    """Number of objects that are retained."""
    file: str | None = None
    """Source file in which the variable receives the memory."""
    line: int | None = None
    function: str | None = None
    source: str = ""
    """Text of the source line; empty if it is unknown."""
    fixed: tuple[str, ...] = ()
    """Lines that take its place after the change; empty where the line alone does not tell."""
    advice: str = ""
    """Proposed change."""
    peak_effect_bytes: int | None = None
    """Bytes by which the peak falls when the memory is freed."""
    note: bool = False
    """True if it has a bound and raises the peak by little: no leak, but listed."""
    on_host: bool = False
    """True if only host memory is retained, although the training uses a device."""
    ranks: tuple[int, ...] = ()


class LeakReport(msgspec.Struct, frozen=True):
    """Leaks of a run, worst first."""

    verdict: LeakVerdict
    leaks: list[Leak]


class NextChange(msgspec.Struct, frozen=True):
    """The one change that is most worth trying, or the reason why none is known."""

    title: str | None = None
    """The change in a few words."""
    what: str | None = None
    """The change in one or two sentences, with its numbers; None if none is known."""
    saves_bytes: int | None = None
    """Bytes by which the peak falls, or that become free; None if unknown."""
    of: str | None = None
    """Name of the peak that falls: ``allocated``; None if the bytes are others."""
    source: str | None = None
    """Origin of the proposal: ``finding``, ``leak``, ``out-of-memory`` or ``recording``."""
    caution: str | None = None
    """Limit of the number."""
    reason: str | None = None
    """Why no change is proposed; None if one is."""
    pending: bool = False
    """True while the recording is replayed under other allocator settings: a later answer may be another."""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed change that avoids an out-of-memory error."""

    what: str
    saves_bytes: int | None = None
    enough: bool | None = None
    """True if it is enough; None is maybe."""
    source: str
    """Origin of the numbers: ``measured``, ``replayed``, ``formula`` or ``advice``."""
    cost: str = ""
    conf: str | None = None
    """Value of ``PYTORCH_CUDA_ALLOC_CONF``."""


class OutOfMemoryError(msgspec.Struct, frozen=True, kw_only=True):
    """An out-of-memory error, explained."""

    record: str
    rank: int
    time_seconds: float | None = None
    step: int | None = None
    """Number of steps that had finished."""
    phase: str | None = None
    asked_bytes: int | None = None
    """Size of the request that failed."""
    shortfall_bytes: int | None = None
    """Memory that was missing for the request."""
    file: str | None = None
    """Source file of the user's code."""
    line: int | None = None
    survived: bool | None = None
    """True if the run went on; None while that is open."""
    cause: str | None = None
    """``weights``, ``optimizer``, ``activations``, ``data``, ``fragmentation``, ``leak``, ``other_process``, ``limit`` or
    ``outside_pytorch``; None is unknown."""
    sentence: str = ""
    """The cause in words."""
    first_aid: str = ""
    """Proposed first action."""
    remedies: tuple[Remedy, ...] = ()
    pending: bool = False
    """True if evidence of the open recording is still expected: ask again."""


class ErrorRow(msgspec.Struct, frozen=True):
    """An out-of-memory error in the list of a run."""

    record: str
    whole: bool = True


class ErrorList(msgspec.Struct, frozen=True):
    """Out-of-memory errors of a run, by time."""

    errors: list[ErrorRow]


class SeriesPage(msgspec.Struct, frozen=True):
    """Columns of one window. ``envelope``: it has more rows than were asked for, and the values are no single rows."""

    x_values: list[float]
    rows: int
    envelope: bool
    series: dict[str, dict[str, list[Any]]]


class FigureAnswer(msgspec.Struct, frozen=True):
    """A Plotly figure without template and theme colours."""

    figure: dict[str, Any]


class Problem(msgspec.Struct, frozen=True):
    """A refusal (RFC 9457)."""

    type: str
    detail: str
    expected: str | None = None
    suggestions: tuple[str, ...] = ()


class TableColumn(msgspec.Struct, frozen=True):
    """Column of a table that can be downloaded."""

    name: str


class NamedTable(msgspec.Struct, frozen=True):
    """Table that can be downloaded."""

    name: str
    columns: list[TableColumn]
