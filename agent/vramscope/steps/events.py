"""Events of the step clock and of the loop hooks, and the interfaces of those that receive them.

The clock publishes phases and steps to any number of listeners. The hooks call the detector, the loss and the techniques directly,
because they pass on PyTorch's own arguments. All calls are on the training thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vramscope.memory.peak_counters import Interval
from vramscope.steps.records import AfterStep, CategoryBytes, PhaseInterval, StepRecord

if TYPE_CHECKING:
    import torch


class Order(IntEnum):
    """Order in which listeners receive an event."""

    RECORDING = 0
    PROFILE = 1
    TECHNIQUES = 2
    LOSS = 3
    DRY_RUN = 4


class StepListener:
    """Receives events of the step clock. A subclass overrides the methods that it needs; only those are called."""

    order: ClassVar[Order]

    @property
    def needs_detail(self) -> bool:
        """True while the listener needs all hooks in each step."""
        return False

    def phase_entered(self) -> None:
        """A phase has begun; the counters of the one before have just been read."""

    def phase_continued(self) -> None:
        """A forward pass began within the running phase, or in a step whose phases are not read."""

    def phase_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The root module is called with these arguments, at the start of a phase."""

    def step_ended(self, step: StepRecord) -> None:
        """An optimizer step has ended."""

    def steps_renumbered(self, by: int) -> None:
        """The number of the running step rose by ``by``: the run was resumed."""


class BreakdownSource(Protocol):
    """Counts bytes by category in some of the steps (memory/category_split.py)."""

    def begin(self, phase: int, devices: tuple[int, ...], cuts: list[Interval]) -> None: ...
    def evaluated(self) -> None: ...
    def end_step(
        self, intervals: list[PhaseInterval], devices: tuple[int, ...]
    ) -> list[tuple[CategoryBytes, CategoryBytes]]: ...
    def end(self) -> None:
        """End all reading, in the midst of a step too."""


class RetentionSource(Protocol):
    """Knows what is still alive after a step (leaks/detector.py)."""

    def plain_steps_ended(self, sequence_numbers: list[int]) -> None:
        """Plain steps have ended, for which nothing was read."""

    def end_step(self, intervals: list[PhaseInterval]) -> AfterStep: ...


class GraphListener(RetentionSource, Protocol):
    """What the loop hooks pass on to the leak detector."""

    @property
    def is_due(self) -> bool: ...
    @property
    def is_calm(self) -> bool: ...
    def before_forward(self, training: bool) -> None: ...
    def before_inference(self, args: Any, kwargs: Any, training: bool) -> None: ...
    def after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None: ...
    def before_walk(self, roots_: Any, retain_graph: bool = False, create_graph: bool = False) -> None: ...
    def before_batch(self) -> None: ...
    def after_batches(self, number: int = 0, may_be_epoch: bool = True) -> None: ...
    def stepped(self, optimizer: object) -> None: ...
    def end_epoch(self) -> None: ...
    def close(self) -> None: ...


class LossListener(Protocol):
    """What the loop hooks pass on to the loss (metrics/loss.py)."""

    forward_began: bool
    off: bool

    def forward(self) -> None: ...
    def backward(self, args: Any, kwargs: Any) -> None: ...
    def other_stepped(self) -> None: ...
    def scaled(self, given: Any, result: Any) -> None: ...
    def scaler_steps(self, optimizer: Any) -> bool: ...
    def skipped(self) -> None: ...


class WalkListener(Protocol):
    """What the loop hooks pass on to the detector of techniques."""

    reads_graphs: bool

    def before_walk(self, root: Any) -> None: ...


class RetentionRecording(Protocol):
    """A recording of allocator history that asks what the known leaks retain (recording/recorder.py)."""

    @property
    def is_open(self) -> bool: ...
    @property
    def asks_who_holds(self) -> bool: ...
    def held(self, seen: Iterable[Any]) -> None: ...
    def needed(self, addresses: Iterable[int]) -> None: ...


class LoopExtension(Protocol):
    """A framework whose optimizer steps differ from PyTorch's (integrations/deepspeed.py, integrations/lomo.py)."""

    package: str
    """Name of the framework's package."""

    def listen(self) -> None:
        """A backward pass is about to begin; the framework may have been imported since."""

    def found_root(self, module: torch.nn.Module) -> None:
        """A root module was found."""

    def takes_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if the framework reports this optimizer's step itself, later."""
