"""Typed causes of an out-of-memory error: a kind, and the numbers that prove it. ``rules`` finds the cause, ``prose``
describes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class CauseKind(str, Enum):  # StrEnum needs Python 3.11
    """Kinds of causes, as the API and ``vramscope oom --json`` have them. UNKNOWN is null there."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    DATA = "data"
    FRAGMENTATION = "fragmentation"
    LEAK = "leak"
    OTHER_PROCESS = "other_process"
    LIMIT = "limit"
    OUTSIDE_PYTORCH = "outside_pytorch"
    UNKNOWN = ""

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class RetainedLeak:
    """A known leak retains enough."""

    holder: str
    line: str
    retained_bytes: int


@dataclass(frozen=True, slots=True)
class GrowthLeak:
    """Memory after each step, or within one evaluation, has grown by enough."""

    growth_bytes: int
    holder: str
    """Empty where it is not known."""
    line: str
    in_evaluation: bool


@dataclass(frozen=True, slots=True)
class SupersededState:
    """Earlier optimizers still have state for weights that a later one updates, and that is enough."""

    state_bytes: int


@dataclass(frozen=True, slots=True)
class FrozenGradients:
    """Weights that are frozen by now still have the gradients of their training, and that is enough."""

    gradients_bytes: int


@dataclass(frozen=True, slots=True)
class FreeBlocks:
    """Reserved memory is free, in blocks too small for the request."""

    idle_bytes: int
    used_bytes: int
    asked_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class WeightCopy:
    """A copy of the model's weights is enough: without it the request and the step fit, as far as it is known."""

    holder: str
    line: str
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The process may not reserve more."""

    free_bytes: int | None
    limit_bytes: int | None
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class RefusedByFraction:
    """PyTorch refused the request before trying, because of the memory fraction."""


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Other processes use enough of the device."""

    used_bytes: int


@dataclass(frozen=True, slots=True)
class UsedElsewhere:
    """Device memory that neither PyTorch in this process has nor a named process: of whom is not known."""

    used_bytes: int


@dataclass(frozen=True, slots=True)
class OtherSoftware:
    """The error is not of PyTorch's allocator, and its kind says all that is known."""


@dataclass(frozen=True, slots=True)
class GrownOutside:
    """Memory of this process outside PyTorch has grown by enough."""

    outside_bytes: int
    growth_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryRequest:
    """A library's own request failed; ``pinned``: the call pins the host's memory, or most of the device was free."""

    pinned: bool


@dataclass(frozen=True, slots=True)
class HostMemoryFull:
    """The host's memory ran out."""


class Limiting(Enum):
    """Reason why a part of the training's own memory is the cause."""

    FIXED = auto()
    """Weights, gradients and state alone exceed the available memory."""
    UPDATE = auto()
    """The optimizer's update failed."""
    LOADING = auto()
    """A model, or a file of weights, was being moved to the device."""
    OUTSIDE = auto()
    """Tensors that the program made after the last step."""
    BEFORE = auto()
    """Tensors that the program made before the first step, outside of its model."""
    STEP = auto()
    """The step as a whole needs too much; its largest part is the cause."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The training's own memory, by part."""

    reason: Limiting
    parameters_bytes: int
    waiting_bytes: int
    """Parameters that are still on the host."""
    buffers_bytes: int
    other_models_bytes: int
    gradients_bytes: int
    bucket_bytes: int
    state_bytes: int
    data_bytes: int
    """The program's own data, in the variable with most of it; not among the working bytes."""
    working_bytes: int
    asked_bytes: int
    """0 where the request is one of the waiting parameters."""
    likely_bytes: int
    rest_is_known: bool
    """False: ``likely_bytes`` is extrapolated from layers that say little of the rest."""
    available_bytes: int
    outside_bytes: int = 0
    """Made since the last step, or before the first step; not among the working bytes."""

    @property
    def fixed_bytes(self) -> int:
        """Everything that does not depend on the batch."""
        weights = self.parameters_bytes + self.waiting_bytes + self.buffers_bytes + self.other_models_bytes
        return weights + self.gradients_bytes + self.bucket_bytes + self.state_bytes


class Missing(Enum):
    """Reason why no cause is known."""

    NUMBERS = auto()
    """The message has too few numbers."""
    FREE_WAS_ENOUGH = auto()
    """The device reported more free memory than was requested."""
    PARTS = auto()
    """The need exceeds the available memory; of what it consists is not known."""
    LARGER_THAN_DEVICE = auto()
    """The request in a text is larger than the device."""
    WORKER_NOT_KILLED = auto()
    """A DataLoader worker ended, but Linux has ended no process."""


@dataclass(frozen=True, slots=True)
class NotKnown:
    """No cause is known."""

    missing: Missing
    available_bytes: int | None = None
    exceeds: bool = True
    """Allocated and requested memory exceed the available memory."""


Details = (
    RetainedLeak
    | GrowthLeak
    | SupersededState
    | FrozenGradients
    | FreeBlocks
    | WeightCopy
    | MemoryLimit
    | RefusedByFraction
    | OtherProcesses
    | UsedElsewhere
    | OtherSoftware
    | GrownOutside
    | LibraryRequest
    | HostMemoryFull
    | MemoryParts
    | NotKnown
)


@dataclass(frozen=True, slots=True)
class Cause:
    """CauseKind of the cause, and the numbers that prove it."""

    kind: CauseKind
    details: Details
