"""``with vramscope.measure() as m:`` measures the GPU memory of a block of code, and ``@vramscope.measure()`` that of a function.

It needs no agent and no server. Beside an attached agent both are exact, and so are the counters that the user reads.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from vramscope.guard import guarded
from vramscope.memory.peak_counters import Peaks, share_peak_counters
from vramscope.protocol.number_format import amount, duration

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result", covariant=True)
RUNNING: Final = "this measurement has not ended"


class Measured(Protocol[_Given, _Result]):
    """A function whose memory is measured at each call."""

    measured: Measurement | None
    """Measurement of the call that ended last; None before the first."""

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result: ...


class Measurement:
    """Memory of one block on one device. All sizes are bytes, exact, from PyTorch's own counters.

    They count what the whole process allocates on the device, other threads included. None: there is no CUDA device, or PyTorch
    uses the allocator cudaMallocAsync, which has no such counters.
    """

    def __init__(self, device: int | None = None) -> None:
        self.device: int | None = device
        """Index of the device."""
        self.seconds: float | None = None
        """Duration. CUDA works asynchronously: kernels may still run."""
        self.start_bytes: int | None = None
        """Allocated when the block began."""
        self.end_bytes: int | None = None
        """Allocated when it ended."""
        self.peak_bytes: int | None = None
        """Highest allocated."""
        self.peak_reserved_bytes: int | None = None
        """Highest reserved."""
        self.failed: bool | None = None
        """Whether an exception ended the block."""

    @property
    def added_bytes(self) -> int | None:
        """By how much the block raised the allocated memory at its highest."""
        return _difference(self.peak_bytes, self.start_bytes)

    @property
    def retained_bytes(self) -> int | None:
        """What is allocated after the block and was not before. Negative: it freed more."""
        return _difference(self.end_bytes, self.start_bytes)

    @property
    def words(self) -> str:
        """The same in a line."""
        if self.seconds is None:
            return RUNNING
        if self.peak_bytes is None:
            return f"no counters of a CUDA device; {duration(self.seconds)}"
        kept = self.retained_bytes or 0
        change = f"{amount(kept)} stay allocated" if kept >= 0 else f"{amount(-kept)} were freed"
        return (
            f"peak {amount(self.peak_bytes)} on cuda:{self.device}, {amount(self.added_bytes)} above the start; {change}; "
            f"{duration(self.seconds)}"
        )

    def __repr__(self) -> str:
        return f"<vramscope: {self.words}>"


class measure:  # noqa: N801 - it is used like a function
    """Context manager and decorator that measures exactly, also nested and in several threads at once.

    Args:
        device: Index of the CUDA device, or a torch.device; by default the current one when the block begins.
        report: Is called with the Measurement when a block has ended, also after an exception.

    A block costs about 36 µs in a tight loop. The block's exceptions pass. One object measures one block at a time; as a
    decorator it makes a new one for each call.
    """

    def __init__(self, device: Any = None, *, report: Callable[[Measurement], object] | None = None) -> None:
        self._wanted, self._report = device, report
        self._now: Measurement | None = None
        self._peaks: Peaks | None = None
        self._began = 0.0

    def __enter__(self) -> Measurement:
        if self._now is not None:
            raise RuntimeError(f"{RUNNING}: use another vramscope.measure() within it")
        device = _index_of(self._wanted)
        now = Measurement(device)
        if device is not None:
            self._peaks, stats = share_peak_counters().watch(device).begin()
            now.start_bytes = stats["allocated_bytes"]["all"]["current"]
        self._now = now
        self._began = time.perf_counter()
        return now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now, peaks = self._now, self._peaks
        self._now = self._peaks = None
        if now is None:
            return
        now.seconds, now.failed = time.perf_counter() - self._began, kind is not None
        if peaks is not None and now.device is not None:
            stats = share_peak_counters().watch(now.device).end(peaks)
            now.end_bytes = stats["allocated_bytes"]["all"]["current"]
            now.peak_bytes, now.peak_reserved_bytes = peaks.allocated_bytes, peaks.reserved_bytes
        if self._report is not None and kind is None:
            self._report(now)
        elif self._report is not None:
            with guarded("the report of a measurement"):  # the block's own exception passes
                self._report(now)

    def __call__(self, function: Callable[_Given, _Result]) -> Measured[_Given, _Result]:
        for refused, kind in (
            (inspect.isgeneratorfunction, "a generator"),
            (inspect.iscoroutinefunction, "a coroutine"),
            (inspect.isasyncgenfunction, "an asynchronous generator"),
        ):
            if refused(function):
                raise TypeError(f"{function.__qualname__} is {kind}: measure a block in it instead")

        @functools.wraps(function)
        def measured(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
            now = None
            try:
                with measure(self._wanted, report=self._report) as now:
                    return function(*args, **kwargs)
            finally:
                result.measured = now

        result = cast("Measured[_Given, _Result]", measured)
        result.measured = None
        return result


def _index_of(device: Any) -> int | None:
    """Index of a CUDA device; None where there is none. Raises ValueError for a device of another kind."""
    torch = sys.modules.get("torch")
    if torch is None:
        import torch  # type: ignore[no-redef]
    assert torch is not None
    if isinstance(device, int) and not isinstance(device, bool):
        kind, index = "cuda", device
    elif device is None:
        kind, index = "cuda", None
    else:
        named = torch.device(device)
        kind, index = named.type, named.index
    if kind != "cuda":
        raise ValueError(f"device is {device!r}; it must be a CUDA device, such as 0 or 'cuda:0'")
    if not torch.cuda.is_available() or torch.cuda.get_allocator_backend() != "native":
        return None
    torch.cuda.init()
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if index is None else index
    if not 0 <= index < count:
        raise ValueError(f"device is {device!r}; this process sees {count} CUDA devices, 0 to {count - 1}")
    return int(index)


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier
