"""Recordings: the list, and what one shows of fragmentation."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from typing_extensions import TypedDict

from vramscope_server.answers.shared_parts import ByteWindow, EventWindow, Frame, PlotlyFigure


class _Artifact(TypedDict):
    run_id: str | None
    """Run that it belongs to; null for a snapshot file."""
    rank: int
    """Rank that recorded it."""
    whole: bool
    """Whether all pieces have arrived, so that it can be read."""
    pieces: int
    """Number of its pieces."""
    pieces_received: int
    """Number of pieces that have arrived."""
    bytes: int
    """Size of the pieces that have arrived."""
    received_seconds: float | None
    """Arrival of the newest piece, since 1970."""
    about: dict[str, Any]
    """Facts that the agent sent with it: `device`, `first_step`, `last_step`, `reason`, `events` and others."""


class RecordingRow(_Artifact):
    """A recording: a stretch of the allocator's history. A run keeps its newest 64, and at most 512 MiB of them."""

    recording: str
    """Identifier of the recording."""


class RecordingList(TypedDict):
    """Recordings of a run."""

    run_id: str
    """Identifier of the run."""
    state: str
    """State of the run."""
    recordings: list[RecordingRow]
    """Recordings, newest first."""


class StepStart(TypedDict):
    """First event of a step."""

    step: int
    """Number of the step, from 1."""
    event: int
    """Number of the event, from 0."""


class RecordingMoments(RecordingRow):
    """An opened recording: its facts, and the events of interest."""

    device: int
    """Index of the device."""
    device_name: str
    """Name of the device."""
    device_total_bytes: int | None
    """Memory of the device."""
    device_free_bytes: int | None
    """Free device memory when the recording started."""
    limit_bytes: int | None
    """Limit that the program set for PyTorch."""
    torch: str
    """Version of PyTorch."""
    backend: str
    """Allocator of PyTorch."""
    settings: str
    """Allocator settings in force."""
    reason: str
    """Cause of the recording."""
    first_step: int | None
    """First step in the recording."""
    last_step: int | None
    """Last step in the recording."""
    events: int
    """Number of events."""
    lost_events: int | None
    """Number of events that PyTorch's ring buffer lost."""
    peak_event: int
    """Event after which most memory was reserved, and of several the one with most allocated."""
    growth_event: int
    """Event after which the reserved memory reached its highest value first."""
    peak_reserved_bytes: int
    """Highest reserved memory."""
    out_of_memory_events: list[int]
    """Events of failed requests."""
    steps: list[StepStart]
    """First event of each step."""
    notes: list[str]
    """Limits of the recording, in sentences."""


class Reserved(TypedDict):
    """Parts of the reserved memory after an event."""

    event: int
    """Number of the event."""
    reserved_bytes: int
    """Reserved memory."""
    requested_bytes: int
    """Memory that the program requested, before rounding."""
    rounding_bytes: int
    """Allocated memory minus requested memory."""
    usable_bytes: int
    """Free memory that this run can use."""
    unusable_bytes: int
    """Free memory that this run cannot use."""


class ReservedInStep(Reserved):
    """Parts of the reserved memory after an event, with its step."""

    step: int
    """Step of the event; -1 is unknown."""


class FailedRequest(Reserved):
    """Parts of the reserved memory when a request failed."""

    asked_bytes: int
    """Size of the request, after rounding."""


class ReservedOutline(TypedDict):
    """Memory over the whole recording, thinned."""

    event: list[int]
    """Events."""
    in_use_bytes: list[int]
    """Memory in use after each of them."""
    reserved_bytes: list[int]
    """Reserved memory after each of them."""


class _StripAnswer(TypedDict):
    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    events: int
    """Number of events of the recording."""
    highest: ReservedInStep
    """Highest reserved memory in the window."""
    peak: Reserved
    """Highest reserved memory in the recording."""
    out_of_memory: list[FailedRequest]
    """Failed requests in the recording."""
    misfits: int
    """Number of events that contradict the history; with any, the parts are not exact."""
    outline: ReservedOutline
    """Memory over the whole recording, thinned."""


class StripAnswer(_StripAnswer, EventWindow):
    """Reserved memory in its parts, over the events of a window."""


class _Map(TypedDict):
    figure: PlotlyFigure | None
    """Plotly figure without template and theme colours; null if nothing is reserved."""
    exact: bool
    """Whether each block is drawn; a large view is drawn as cells of equal size."""
    reserved_bytes: int
    """Reserved memory: the length of all segments end to end."""
    segments: int
    """Number of segments."""
    blocks: int
    """Number of blocks."""
    allocated_bytes: int
    """Allocated memory."""
    pending_bytes: int
    """Freed memory that waits for a stream."""
    free_bytes: int
    """Free memory inside segments."""
    free_pieces: int
    """Number of free blocks."""
    largest_free_bytes: int
    """Size of the largest free block."""


class SegmentMap(_Map, ByteWindow):
    """Segments end to end; `from` and `to` are offsets in bytes."""


class RecordedMap(SegmentMap):
    """Segments of a recording after an event."""

    event: int
    """Number of the event."""
    step: int | None
    """Step of the event; -1 is unknown."""


class _MapParts(TypedDict, total=False):
    exact: bool
    """Whether each block is drawn."""
    reserved_bytes: int
    """Reserved memory."""
    segments: int
    """Number of segments."""
    blocks: int
    """Number of blocks."""
    allocated_bytes: int
    """Allocated memory."""
    pending_bytes: int
    """Freed memory that waits for a stream."""
    free_bytes: int
    """Free memory inside segments."""
    free_pieces: int
    """Number of free blocks."""
    largest_free_bytes: int
    """Size of the largest free block."""


_SomeBytes = TypedDict(
    "_SomeBytes",
    {
        "from": Annotated[int, Meta(description="Offset of the first byte.")],
        "to": Annotated[int, Meta(description="Offset of the end, not included.")],
    },
    total=False,
)


class MapAtError(_MapParts, _SomeBytes):
    """Segments when memory ran out; all other fields are left out if the layout was not recorded."""

    read: bool
    """Whether the layout was recorded."""
    figure: PlotlyFigure | None
    """Plotly figure without template and theme colours."""


class Segment(TypedDict):
    """A segment: memory that PyTorch took from the device at once."""

    address: int | str | None
    """Address; text from 2^53 on."""
    size_bytes: int
    """Size."""
    pool: str
    """`large` or `small`."""
    private_pool: list[int] | None
    """Identifier of the private pool, of a CUDA graph for example."""
    expandable: bool
    """Whether it is an expandable segment."""
    stream: int
    """Stream that it belongs to."""


class Block(TypedDict):
    """A block of a segment."""

    address: int | str | None
    """Address; text from 2^53 on."""
    size_bytes: int
    """Size."""
    requested_bytes: int | None
    """Memory that the program requested; null for a free block."""
    state: str
    """State of the block, as PyTorch names it."""
    stack: list[Frame]
    """Stack of its allocation, innermost frame first."""
    segment: Segment
    """Segment that contains it."""


class SizesAnswer(TypedDict):
    """Requests and free blocks by size class."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    event: int
    """Event after which the free blocks are shown."""


class Pool(TypedDict):
    """A memory pool of a recording."""

    pool: int
    """Position of the pool, for the parameter `pool`."""
    id: list[int]
    """PyTorch's identifier of the pool."""


class EventRow(TypedDict):
    """An event of a recording."""

    event: int
    """Number of the event, from 0."""
    seconds: float | None
    """Time since the first event."""
    action: str
    """What the allocator did."""
    address: int | str | None
    """Address; text from 2^53 on. Of a failed request the free device memory in bytes."""
    size_bytes: int
    """Size."""
    stream: int
    """Stream."""
    pool: int | None
    """Position of the pool among `pools`."""
    step: int | None
    """Optimizer step, from 1."""
    phase: str | None
    """Phase of the step."""
    module: str | None
    """Module whose forward or backward pass was running."""
    stack: list[Frame]
    """Stack, innermost frame first."""
    user_metadata: str | None
    """Metadata that the program attached."""
    compile_context: str | None
    """Context of torch.compile."""
    allocation: int | None
    """Number of the allocation that began, for `life`."""


class EventsAnswer(TypedDict):
    """A page of the events of a recording."""

    events: int
    """Number of events of the recording."""
    matching: int
    """Number of events that match the query."""
    offset: int
    """Number of matching events before this page."""
    frees_told: bool
    """Whether the recording has stacks of frees; if not, a free shows the stack of its allocation."""
    pools: list[Pool]
    """Pools of the recording."""
    rows: list[EventRow]
    """Events of this page."""


class ProfileTrace(TypedDict):
    """Trace of a profile."""

    whole: bool
    """Whether all of its pieces have arrived."""
    bytes: int
    """Size of the pieces that have arrived."""


class ProfileRow(_Artifact):
    """A profile in the list."""

    profile: str
    """Identifier of the profile."""
    trace: ProfileTrace | None
    """PyTorch's trace of the same steps; null if it was not requested."""
