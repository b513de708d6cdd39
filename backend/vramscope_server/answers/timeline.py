"""Timeline of a recording: allocations over its events."""

from __future__ import annotations

from typing_extensions import TypedDict

from vramscope_server.answers.shared_parts import EventWindow, Frame, Moment, PlotlyFigure


class MomentWithBytes(Moment):
    """The point after an event, with the allocated memory."""

    allocated_bytes: int
    """Allocated memory."""


class SeriesRow(TypedDict):
    """A series of the stacked picture."""

    name: str
    """Name of the series."""
    colour: str
    """Key of its colour."""
    peak_bytes: int
    """Allocated memory of the series at the window's peak."""


class RulerDepth(TypedDict):
    """Levels of a lane above the picture."""

    told: int
    """Number of levels that are drawn."""
    there: int
    """Number of levels in the recording."""


class RulerFacts(TypedDict):
    """What is not drawn above the picture."""

    left_out: dict[str, int]
    """Number of spans that are not drawn, by lane: `step`, `phase`, `module`, `range`."""
    depth: dict[str, RulerDepth]
    """Levels of nested modules and ranges, by lane."""


class TimelineOutline(TypedDict):
    """Memory over the window, thinned."""

    event: list[int]
    """Events."""
    allocated_bytes: list[int]
    """Allocated memory after each of them."""
    reserved_bytes: list[int]
    """Reserved memory after each of them."""


class _Picture(EventWindow):
    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    by: str
    """Grouping: `category`, `site`, `module` or `phase`."""
    events: int
    """Number of events of the recording."""
    peak: MomentWithBytes
    """Peak of the window."""
    series: list[SeriesRow]
    """Series from the bottom of the stack up, at most 20."""
    joined: int
    """Number of groups that are joined in the series `other`."""
    ruler: RulerFacts
    """What is not drawn above the picture."""


class TimelineAnswer(_Picture):
    """Allocated memory over the events of a window, stacked; the top of the stack is exact."""

    look_at: Moment
    """Peak, or a point nearly as high from which on stacks were recorded."""
    outline: TimelineOutline
    """Memory over the window."""


class AllocationsAnswer(_Picture):
    """The largest allocations of a window, one by one, and all others as one band for each series."""

    drawn: int
    """Number of allocations that are drawn."""
    left_out: int
    """Number of allocations that are in the bands."""
    left_out_peak_bytes: int
    """Highest memory of all bands together."""


class Life(TypedDict):
    """An allocation. Null, or an empty stack, is unknown."""

    allocation: int
    """Number of the allocation in the recording."""
    requested_bytes: int | None
    """Memory that the program requested."""
    size_bytes: int
    """Memory that was allocated, rounding included."""
    category: str
    """Category of the tensor."""
    owner: str | None
    """Name that the program has for the tensor, as `gradient of h.0.weight`."""
    born: Moment | None
    """Allocation; null if it was before the recording."""
    freed: Moment | None
    """Free; null if it was after the recording."""
    usable_event: int | None
    """Event from which on the memory could be used again."""
    events: int | None
    """Number of events between allocation and free."""
    seconds: float | None
    """Time between allocation and free."""
    site: str | None
    """Frame of the stack that says most: the user's own if there is one."""
    stack: list[Frame]
    """Stack of the allocation, innermost frame first."""
    freed_by: list[Frame]
    """Stack of the free."""
    frees_told: bool
    """Whether the recording has stacks of frees."""
    forward_stack: list[Frame]
    """Stack of the forward pass that belongs to a backward pass, with anomaly detection."""
    ranges: list[str]
    """Ranges of `record_function` around the allocation, outermost first."""
    user_metadata: str | None
    """Metadata that the program attached."""
    compile_context: str | None
    """Context of torch.compile."""
    address: int | str | None
    """Address; text from 2^53 on."""
    private_pool: list[int] | None
    """Identifier of the private pool."""
    stream: int
    """Stream."""
    stacks_from: int | None
    """First event of the recording that has a stack."""


class SeriesName(TypedDict):
    """A series."""

    name: str
    """Name of the series."""
    colour: str
    """Key of its colour."""


class Band(TypedDict):
    """Allocations that are not drawn one by one."""

    allocations: int
    """Number of them."""
    bytes: int
    """Their memory."""


class AtAnswer(TypedDict):
    """The allocation at a point of the picture."""

    moment: Moment
    """Position on the axis."""
    allocated_bytes: int
    """Allocated memory there."""
    reserved_bytes: int
    """Reserved memory there."""
    series: SeriesName | None
    """Series at that height; null above the stack."""
    allocation: Life | None
    """Allocation at that height; null above the stack."""
    in_band: bool
    """Whether the point is in a band of allocations that are not drawn."""
    band: Band | None
    """The band of that series, or all bands if the point is in none; null if no height was given."""


class FlameAnswer(TypedDict):
    """Memory that was alive after an event, as a flamegraph."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    moment: Moment
    """Event that is shown."""
    total_bytes: int
    """Allocated memory."""
    focus_bytes: int
    """Memory of the box in focus."""
    focus_names: list[str]
    """Names of the boxes from the root to the focus."""
    drawn: int
    """Number of boxes that are drawn."""
    left_out: int
    """Number of boxes that are too small, or beyond 2000."""
    without_stack_bytes: int
    """Memory without a recorded stack."""
    focus_lost: bool
    """Whether the requested focus is not alive there, so that everything is shown."""
    stacks_from: int | None
    """First event of the recording that has a stack."""


class BetweenMoment(MomentWithBytes):
    """One of the two points that are compared."""

    allocations: int
    """Number of allocations that are alive."""


class ChangedGroup(TypedDict):
    """Allocations of one group."""

    name: str
    """Name of the group."""
    bytes: int
    """Memory of the group."""
    allocations: int
    """Number of allocations."""
    largest_bytes: int
    """Size of the largest of them."""
    first: int
    """Number of one of them, for `life`."""


class ChangedRest(TypedDict):
    """Groups that are left out."""

    groups: int
    """Number of groups."""
    bytes: int
    """Their memory."""


class Changed(TypedDict):
    """Allocations that are alive at one of two points only."""

    bytes: int
    """Their memory."""
    allocations: int
    """Number of them."""
    rows: list[ChangedGroup]
    """Groups, largest first, at most 200."""
    left_out: ChangedRest
    """Further groups."""


class BetweenAnswer(TypedDict):
    """Comparison of two points of a recording."""

    a: BetweenMoment
    """First point."""
    b: BetweenMoment
    """Second point."""
    appeared: Changed
    """Alive at `b` and not at `a`."""
    gone: Changed
    """Alive at `a` and not at `b`."""
    both_bytes: int
    """Memory of allocations that are alive at both."""
