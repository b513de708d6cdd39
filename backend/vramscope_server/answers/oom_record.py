"""Parts of an explained out-of-memory error."""

from __future__ import annotations

from typing_extensions import NotRequired, TypedDict


class Culprit(TypedDict):
    """Source line to change."""

    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    module: str | None
    """Module that was running."""


class ProcessBytes(TypedDict):
    """Device memory of a process."""

    pid: int | None
    """Process id."""
    used_bytes: int | None
    """Device memory."""
    mine: NotRequired[bool | None]
    """Whether it is the process of the training."""


class OomMessage(TypedDict):
    """Numbers of the error's text; the record's exact numbers replace those of the text."""

    text: str | None
    """Text of the exception."""
    kind: NotRequired[str]
    """Kind of the message."""
    kind_words: NotRequired[str]
    """Kind of the message in words."""
    certain: NotRequired[bool]
    """Whether the text is certainly an out-of-memory error."""
    device: int | None
    """Index of the device."""
    asked_bytes: int | None
    """Size of the request that failed."""
    total_bytes: int | None
    """Memory of the device."""
    free_bytes: int | None
    """Free device memory."""
    limit_bytes: int | None
    """Limit that the program set for PyTorch."""
    process_bytes: NotRequired[int | None]
    """Device memory of this process."""
    allocated_bytes: int | None
    """Allocated memory."""
    private_pools_bytes: NotRequired[int | None]
    """Memory in private pools."""
    reserved_bytes: int | None
    """Reserved memory."""
    unallocated_bytes: int | None
    """Reserved minus allocated memory."""
    worker: NotRequired[int | str | None]
    """Worker process of a DataLoader in which the error occurred."""
    wording: NotRequired[str | None]
    """Version of PyTorch's wording."""
    shortened: NotRequired[bool]
    """Whether the text was shortened."""
    errors: NotRequired[int]
    """Number of errors in the text."""
    processes: NotRequired[list[ProcessBytes]]
    """Processes that the text names."""
    rounding_bytes: NotRequired[dict[str, int]]
    """Rounding error of the numbers in the text, by field."""


class RemedyRow(TypedDict):
    """A proposed change that avoids the error."""

    what: str
    """The proposal."""
    saves_bytes: int | None
    """Bytes that it saves."""
    enough: bool | None
    """Whether it is enough; null is maybe."""
    source: str
    """Origin of the numbers: `measured`, `replayed`, `formula` or `advice`."""
    source_words: str
    """Origin of the numbers in words."""
    cost: str
    """Cost of the change."""
    rank: int
    """Effort for the user: 0 is an environment variable, 9 another device."""
    variable: str | None
    """Environment variable of the allocator: `PYTORCH_CUDA_ALLOC_CONF`, or that of PyTorch for ROCm."""
    conf: str | None
    """Value of `variable`."""
    technique: str | None
    """Technique, as in the wire contract."""
    micro_batches: int | None
    """Number of micro-batches."""
    card_bytes: int | None
    """Memory of a sufficient device."""
    run_id: str | None
    """Run that was measured."""


class FreePieces(TypedDict):
    """Free blocks when memory ran out."""

    free_pieces: int
    """Number of free blocks."""
    free_bytes: int
    """Memory in free blocks."""
    largest_free_bytes: int
    """Size of the largest free block."""
    blocks: int
    """Number of blocks."""
    segments: int
    """Number of segments."""


class NamedBytes(TypedDict):
    """Memory with a name."""

    name: str
    """Name."""
    bytes: int
    """Memory."""


class OomModule(TypedDict):
    """Memory of a module."""

    module: str
    """Name of the module."""
    bytes: int
    """Memory."""
    parameters: NotRequired[int]
    """Bytes of parameters."""
    gradients: NotRequired[int]
    """Bytes of gradients."""
    optimizer: NotRequired[int]
    """Bytes of optimizer state."""
    buffers: NotRequired[int]
    """Bytes of buffers."""


class OomSite(TypedDict):
    """Memory of a source line."""

    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    function: str | None
    """Function."""
    category: str | None
    """Category; null in the row of all further lines."""
    bytes: int
    """Memory."""
    count: int
    """Number of allocations."""


class OomFrame(TypedDict):
    """A frame of the failed request's stack."""

    file: str
    """Source file."""
    line: int
    """Source line."""
    function: str
    """Function."""
    own: bool
    """Whether it is the user's code."""


class CounterRow(TypedDict):
    """A counter before and at the error."""

    name: str
    """Name, as in the samples of the wire contract."""
    before: int | None
    """Value in the newest sample before the error."""
    at: int | None
    """Value at the error."""


class OomCounters(TypedDict):
    """Counters before and at the error."""

    before_seconds: float | None
    """Age of the newest sample before the error."""
    rows: list[CounterRow]
    """Counters."""


class OomNow(TypedDict):
    """Memory at the error."""

    allocated_bytes: int | None
    """Allocated memory."""
    reserved_bytes: int | None
    """Reserved memory."""
    peak_allocated_bytes: int | None
    """Highest allocated memory so far."""
    requested_bytes: int | None
    """Memory that the program requested, before rounding."""
    retries: int | None
    """Number of allocations that succeeded only after the cache was emptied."""
    process_rss_bytes: int | None
    """Host memory of the process."""


class OomLastStep(TypedDict, total=False):
    """The last finished step; unknown values are left out."""

    step: int
    """Number of the step."""
    peak_allocated_bytes: int
    """Highest allocated memory."""
    peak_reserved_bytes: int
    """Highest reserved memory."""
    end_allocated_bytes: int
    """Allocated memory at its end."""
    end_reserved_bytes: int
    """Reserved memory at its end."""
    micro_steps: int
    """Number of backward passes."""


class OomLoss(TypedDict):
    """Loss before the error."""

    name: str
    """Name of the series."""
    source: str
    """Origin of the values."""
    count: int
    """Number of values."""
    last: float | None
    """Newest value; null if it is not finite."""
    last_step: int
    """Step of the newest value."""
    first_not_finite_step: int | None
    """Step of the first value that is not finite."""


class OomLeak(TypedDict):
    """A leak that was known at the error."""

    name: str
    """Variable that retains the memory."""
    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    held_bytes: int
    """Memory that is retained."""
