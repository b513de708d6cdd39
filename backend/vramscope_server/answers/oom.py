"""Out-of-memory errors: the list, and one explained."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from vramscope_server.answers.oom_record import (
    Culprit,
    FreePieces,
    NamedBytes,
    OomCounters,
    OomFrame,
    OomLastStep,
    OomLeak,
    OomLoss,
    OomMessage,
    OomModule,
    OomNow,
    OomSite,
    RemedyRow,
)
from vramscope_server.answers.other_processes import OtherProcessAtError


class OomError(TypedDict):
    """An out-of-memory error in the list."""

    record: str
    """Identifier of the record."""
    run_id: str
    """Identifier of the run."""
    rank: int
    """Rank that ran out of memory."""
    whole: bool
    """Whether all of the record's pieces have arrived."""
    time_seconds: float | None
    """Time of the error, since 1970."""
    device: int | None
    """Index of the device."""
    step: int | None
    """Number of steps that had finished."""
    phase: str | None
    """Phase of the step."""
    asked_bytes: int | None
    """Size of the request that failed."""
    file: str | None
    """Source file of the user's code."""
    line: int | None
    """Source line of the user's code."""
    survived: bool | None
    """Whether the run went on; null while that is open."""
    error_type: str | None
    """Type of the exception."""
    text: str | None
    """Text of the exception."""


class Vanished(TypedDict):
    """A run that fell silent while the host's memory was full or nearly so."""

    rank: int
    """Number of the rank."""
    cause: str
    """Cause."""
    sentence: str
    """Explanation."""
    first_aid: str
    """Proposed first action."""


class OomList(TypedDict):
    """Out-of-memory errors of a run."""

    run_id: str
    """Identifier of the run."""
    name: str
    """Name of the run."""
    state: str
    """State of the run."""
    errors: list[OomError]
    """Errors in order of time."""
    fatal: str | None
    """Record of the first error that was not survived, on any rank; else of the newest."""
    vanished: Vanished | None
    """How the run fell silent; null if it did not, or not for lack of host memory."""


class OomRank(TypedDict):
    """A rank when one of them ran out of memory."""

    rank: int
    """Number of the rank."""
    record: str | None
    """Record of the rank; null if it wrote none."""
    ran_out: bool | None
    """Whether it ran out of memory itself; null without a record."""
    asked_by: str | None
    """How a rank that did not run out was informed."""
    after_seconds: float | None
    """Time of its record after the error."""
    as_of_seconds: float | None
    """Time of its numbers after the error; negative is before it."""
    asked_bytes: int | None
    """Size of the request that failed."""
    step: int | None
    """Number of steps that had finished."""
    phase: str | None
    """Phase of the step."""
    module: str | None
    """Module that was running."""
    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    total_bytes: int | None
    """Memory of the device."""
    free_bytes: int | None
    """Free device memory."""
    allocated_bytes: int | None
    """Allocated memory."""
    reserved_bytes: int | None
    """Reserved memory."""
    parameters_bytes: int | None
    """Memory of parameters."""
    gradients_bytes: int | None
    """Memory of gradients."""
    optimizer_bytes: int | None
    """Memory of optimizer state."""
    buffers_bytes: int | None
    """Memory of buffers."""
    other_models_bytes: int | None
    """Memory of other models in the process."""


class OomExplained(OomError):
    """An out-of-memory error, explained."""

    run: str
    """Name of the run."""
    window: str | None
    """Recording that was open at the error, if it has arrived."""
    cause: str | None
    """`weights`, `optimizer`, `activations`, `data`, `fragmentation`, `leak`, `other_process`, `limit` or
    `outside_pytorch`; null is unknown."""
    sentence: str
    """The cause in words."""
    first_aid: str
    """Proposed first action."""
    culprit: Culprit
    """Source line to change."""
    node: str | None
    """Autograd node that was running."""
    message: OomMessage
    """Numbers of the error's text."""
    remedies: list[RemedyRow]
    """Proposed changes."""
    room_bytes: int | None
    """Memory that was available to PyTorch."""
    shortfall_bytes: int | None
    """Memory that was missing for the request."""
    needed_bytes: int | None
    """Memory that is certainly enough for the step."""
    needed_least_bytes: int | None
    """Memory below which it is certainly not enough."""
    need_words: str | None
    """Explanation of these two numbers."""
    pieces: FreePieces | None
    """Free blocks; null if the layout was not recorded."""
    by_category: list[NamedBytes]
    """Memory of the whole device by category."""
    by_module: list[OomModule]
    """Memory by module, largest first."""
    by_site: list[OomSite] | None
    """Memory by source line, largest first; null without an open window."""
    by_site_words: str | None
    """Reason why lines are missing; null if none are."""
    stack: list[OomFrame]
    """Stack of the failed request."""
    counters: OomCounters
    """Counters before and at the error."""
    now: OomNow
    """Memory at the error."""
    last_step: OomLastStep | None
    """The last finished step."""
    loss: OomLoss | None
    """Loss before the error; null if none was reported in the last minute."""
    neighbours: list[OtherProcessAtError] | None
    """Other processes on the device, the largest first; null is unknown."""
    neighbours_words: str | None
    """The one that grew most in the last minute, or else the largest one, in words; null if there is none."""
    settings: str | None
    """Allocator settings in force."""
    techniques: list[str]
    """Short names of the techniques."""
    leaks: list[OomLeak]
    """Leaks that were known at the error."""
    seconds: float | None
    """Time that the agent took to write the record."""
    notes: list[Any]
    """Limits of the record, in sentences."""
    pending: bool
    """Whether the open window is still expected or replayed: ask again."""
    ranks: list[OomRank]
    """Other ranks at the error; empty for a single rank."""


class OomTextExplained(TypedDict):
    """Explanation of the text of an error."""

    cause: str | None
    """As of an error; null if the text does not show it."""
    sentence: str | None
    """Explanation in words; null if the text has no known out-of-memory error."""
    first_aid: str | None
    """What to try first."""
    certain: bool
    """False where other errors use the same text."""
    errors: int
    """Number of errors in the text; the last of those that say most is explained."""
    numbers: list[NamedBytes]
    """Numbers of the text, and what follows from them."""
    kind: str
    """Allocator or library that reports the error, in words."""
    wording: str | None
    """PyTorch versions that use this text."""
