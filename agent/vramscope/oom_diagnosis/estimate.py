"""Estimate of the memory that a training needs: bytes by how they depend on the batch, and their error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

FRAGMENTATION_MARGIN: Final = 0.05
"""Reserved bytes needed beyond allocated bytes, as a share of the bytes needed."""
EXACT_ERROR: Final = 0.05
"""Error up to which a saving is promised. Extrapolated ones were off by up to 28 %, and those of a backward in progress, in which
an input may still get a gradient, by up to 13 % (tests/oom/PROMISES.md)."""


class Basis(Enum):
    """Evidence that an estimate is based on. ``estimate_prose.basis_words`` has the sentences."""

    STATE_UNKNOWN = auto()
    OTHER_THREAD = auto()
    FORWARDS_WITHOUT_BACKWARD = auto()
    EVALUATION_GRAPHS = auto()
    GRAPH = auto()
    PROGRESS = auto()
    FORWARD_DONE = auto()
    BACKWARD_DONE = auto()
    EARLIER_STEP = auto()
    SMALLER_INPUT = auto()
    MORE_ROWS = auto()
    SQUARE_OF_INPUT = auto()
    OTHER_SIZES = auto()
    BETWEEN_STEPS = auto()
    BETWEEN_STEPS_NOT_THE_BATCH = auto()
    BETWEEN_STEPS_UNKNOWN = auto()
    FORWARD_REST_UNKNOWN = auto()
    NO_FORWARD = auto()


UPPER_BOUNDS: Final = frozenset({Basis.MORE_ROWS, Basis.SQUARE_OF_INPUT, Basis.OTHER_SIZES})
"""Evidence of what a step needs at most. It may need half of that."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that PyTorch would have needed."""

    fixed_bytes: int
    constant_bytes: int
    working_bytes: int | None
    """Bytes that scale with the batch; None: how much was still to come is not known."""
    error_bytes: int
    """Bytes by which ``working_bytes`` may be too small."""
    low_bytes: int
    likely_bytes: int
    """Need of the whole step without error and margin; ``low_bytes`` where that is not known."""
    basis: Basis
    update_bytes: int = 0
    """Temporaries of the optimizer's update: copies that ``foreach`` makes of all that it updates. No batch changes them."""
    beside_update_bytes: int = 0
    """Bytes without an owner, beside ``constant_bytes``, when the update began: the temporaries came in addition."""
    unscaled_bytes: int = 0
    """Part of ``working_bytes`` that may not scale with the batch: what is computed from the weights."""
    in_update: bool = False
    """The optimizer failed: the batch is not what has to shrink."""
    absent_gradients_bytes: int = 0
    """Bytes that ``working_bytes`` may lack, because gradients came when activations were freed. Micro-batches begin with them."""
    workspace_bytes: int = 0
    """Workspaces of cuBLAS that the first step may still allocate."""
    in_flight_bytes: int = 0
    """One more gradient where micro-batches accumulate: it is made before it is added."""
    is_crude: bool = False
    """``working_bytes`` is extrapolated from layers that say little of the rest."""
    may_grow: bool = False
    """Something that keeps growing was in progress: a copy of weights, or graphs that an evaluation keeps."""

    @property
    def is_exact(self) -> bool:
        """Whether ``working_bytes`` is known well enough to promise how much less a smaller batch needs."""
        bounded = self.basis in UPPER_BOUNDS
        return not bounded and self.working_bytes is not None and self.error_bytes <= EXACT_ERROR * self.working_bytes

    def saved_by(self, share: float) -> int | None:
        """Bytes by which the peak is lower with this share of the batch; None where that is not known well enough.

        Copies of the update are the peak where they are larger than what scales with the batch.
        """
        if self.working_bytes is None or not self.is_exact or self.is_crude or self.may_grow:
            return None
        before = max(self.working_bytes, self.in_update_bytes)
        return before - max(int(self._scaled(self.working_bytes, share)), self.in_update_bytes)

    @property
    def in_update_bytes(self) -> int:
        """Bytes in the optimizer's update beside ``fixed_bytes`` and ``constant_bytes``."""
        return self.beside_update_bytes + self.update_bytes

    @property
    def high_bytes(self) -> int | None:
        """Upper bound for the whole batch; None where it is not known."""
        return self.high_with()

    def high_with(self, share: float = 1.0, *, less: int = 0, without_growth: bool = False) -> int | None:
        """Upper bound with this share of the batch and these bytes less, error and fragmentation margin included.

        without_growth   ``less`` is all that keeps growing, so that no more of it comes
        """
        if self.working_bytes is None or self.is_crude or (self.may_grow and not without_growth):
            return None
        absent = self.absent_gradients_bytes if share < 1 else 0
        working = max(self._scaled(self.working_bytes + self.error_bytes + absent, share), self.in_update_bytes)
        more = self.workspace_bytes + (self.in_flight_bytes if share < 1 else 0)
        most = self.fixed_bytes + self.constant_bytes + more + working - less
        return int(max(most, 0) * (1 + FRAGMENTATION_MARGIN))

    def _scaled(self, working_bytes: int, share: float) -> float:
        return self.unscaled_bytes + (working_bytes - self.unscaled_bytes) * share

    def fits(
        self, available_bytes: int, share: float = 1.0, *, less: int = 0, without_growth: bool = False
    ) -> bool | None:
        """Whether so much memory is enough; None: it may be."""
        high = self.high_with(share, less=less, without_growth=without_growth)
        if high is not None and high <= available_bytes:
            return True
        low = self.low_bytes - less
        return False if share == 1.0 and low > available_bytes else None

    def largest_share(self, available_bytes: int) -> float | None:
        """Largest share of the batch that certainly fits; above 1 a larger batch does. None: none, or not known."""
        if self.working_bytes is None or self.is_crude or self.in_update:
            return None
        left = available_bytes / (1 + FRAGMENTATION_MARGIN) - self.fixed_bytes - self.constant_bytes
        left -= self.workspace_bytes
        if left < self.update_bytes:
            return None
        left -= self.in_flight_bytes + self.unscaled_bytes
        working = self.working_bytes + self.error_bytes + self.absent_gradients_bytes - self.unscaled_bytes
        return left / working if left > 0 and working > 0 else None
