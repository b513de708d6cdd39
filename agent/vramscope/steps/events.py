"""What the clock tells of phases and steps, and to whom; any of these may not be there. All calls are on the training thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vramscope.memory.peak_counters import Interval
    from vramscope.recording.leaked_addresses import ScannedLeak
    from vramscope.steps.clock import Stretch
    from vramscope.steps.records import Held, Split


class Anatomy(Protocol):
    """Counts tensors by category in some of the steps (memory/breakdown.py)."""

    def begin(self, phase: int, devices: tuple[int, ...], cuts: list[Interval]) -> None: ...
    def evaluated(self) -> None: ...  # in a step whose phases are not read
    def end_step(self, stretches: list[Stretch], devices: tuple[int, ...]) -> list[tuple[Split, Split]]: ...


class Graphs(Protocol):
    """Watches what outlives its step (leaks/detector.py)."""

    def end_step(self, stretches: list[Stretch]) -> Held: ...


class Windows(Protocol):
    """Records windows of allocator history (recording/recorder.py)."""

    @property
    def window(self) -> object | None: ...  # that is being recorded; None: none is
    def entered(self) -> None: ...
    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def end_step(self, stretches: list[Stretch]) -> None: ...
    def renumbered(self, by: int) -> None: ...
    @property
    def asks_who_holds(self) -> bool: ...
    def held(self, seen: Iterable[ScannedLeak]) -> None: ...
    def needed(self, addresses: Iterable[int]) -> None: ...


class TechniqueListener(Protocol):
    """Detects how the run is trained (techniques/detector.py)."""

    hears_walks: bool

    def before_walk(self, root: Any) -> None: ...
    def end_step(self, backwards: int) -> None: ...


class Losses(Protocol):
    """Notes the loss of each step (metrics/loss.py)."""

    def end_step(self, number: int, at_ns: int) -> None: ...


class Profiles(Protocol):
    """Records profiles of single steps (profiler/recorder.py)."""

    @property
    def window(self) -> object | None: ...  # the profile that is being recorded; None: none is
    def entered(self) -> None: ...
    def goes_on(self) -> None: ...
    def end_step(self, stretches: list[Stretch]) -> None: ...
