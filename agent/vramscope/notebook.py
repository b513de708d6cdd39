"""``%load_ext vramscope``: the magics ``%%vram`` of a cell and ``%vram live`` for IPython and notebooks.

``%%vram`` prints the peak of a cell, what it retains, and GPU tensors that the notebook itself retains: results in ``Out``, and
variables of a failed cell in ``sys.last_traceback``.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.measurement import Measurement, measure
from vramscope.notebook_view import LiveView, memory_text
from vramscope.process.frames import locals_of
from vramscope.protocol.number_format import amount

MAGIC: Final = "vram"
RELEASE_OUTPUTS: Final = (
    "get_ipython().displayhook.flush(); get_ipython().push(dict(_=None, __=None, ___=None), interactive=False)"
)
"""Clears ``Out`` and its variables. IPython has ``_`` in a second namespace, which flush leaves as it is."""
RELEASE_ERROR: Final = "import sys, traceback; traceback.clear_frames(sys.last_traceback)"
"""IPython has more references to the traceback than those in ``sys``, so that its frames must be cleared."""
LEAST_BYTES: Final = 1 << 20
"""Smallest tensor that is listed."""
MOST_LINES: Final = 5
MOST_OUTPUTS: Final = 1_000
DEEPEST: Final = 2
"""Levels of lists, tuples and dicts in a result that are searched."""


class Retained(NamedTuple):
    """A GPU tensor that the notebook retains."""

    name: str
    size_bytes: int
    release: str
    """Code that releases it."""


def load(shell: Any) -> None:
    """Register the magics in an IPython shell."""
    shell.register_magic_function(lambda line, cell: run_cell(shell, line, cell), "cell", MAGIC)
    shell.register_magic_function(LineMagic(shell), "line", MAGIC)


class LineMagic:
    """``%vram live [DEVICE]``, ``%vram stop``, and ``%vram``, which prints the memory once."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._view: LiveView | None = None

    @guarded("the line magic")
    def __call__(self, line: str) -> None:
        command, _, device = line.strip().partition(" ")
        device = device.strip()
        if command not in ("", "live", "stop") or (device and not (command == "live" and device.isdecimal())):
            print(f"vramscope: write %{MAGIC} live, %{MAGIC} live 0 for device 0, or %{MAGIC} stop.")
            return
        if self._view is not None and command:
            self._view.stop()
            self._view = None
        if command == "live" and hasattr(self._shell, "kernel"):
            self._view = LiveView(self._shell, int(device) if device else None)
        elif command != "stop":  # a terminal cannot renew what it has printed
            print(memory_text(int(device) if device else None))


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell and print its memory. ``line``: index of a device, or nothing."""
    device = line.strip()
    if device and not device.isdecimal():
        print(f"vramscope: %%{MAGIC} takes the index of a CUDA device, such as 0, and was given {device!r}.")
        return
    with measure(int(device) if device else None, report=lambda measured: _report(shell, measured)):
        result = shell.run_cell(cell)
    error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
    del result  # the traceback of the error would retain it
    if error is not None:
        # The shell has shown it. Raised again, it ends "run all", and stays the last error.
        error._render_traceback_ = _Once(error)
        try:
            raise error
        finally:
            del error


class _Once:
    """Shows nothing of an error that was shown already, once."""

    def __init__(self, error: Any) -> None:
        self._of = weakref.ref(error) if type(error).__weakrefoffset__ else None

    def __call__(self) -> list[str]:
        error = None if self._of is None else self._of()
        if error is not None:
            error.__dict__.pop("_render_traceback_", None)
        return []


@guarded("the report of a cell")
def _report(shell: Any, measured: Measurement) -> None:
    print(f"vramscope: {measured.words}.")
    if measured.device is None:
        return
    found = sorted(retained_by_notebook(shell), key=lambda one: -one.size_bytes)
    for one in found[:MOST_LINES]:
        print(f"  {one.name} retains {amount(one.size_bytes)}; release it with: {one.release}")
    if len(found) > MOST_LINES:
        print(f"  and {len(found) - MOST_LINES:,} more")


def retained_by_notebook(shell: Any) -> Iterator[Retained]:
    """GPU tensors in the notebook's results and in the variables of its last error, each once."""
    seen: set[int] = set()
    outputs = shell.user_ns.get("Out")
    if isinstance(outputs, dict):
        for number, value in list(outputs.items())[-MOST_OUTPUTS:]:
            size = sum(tensor.nbytes for tensor in _tensors_in(value, seen))
            if size >= LEAST_BYTES:
                yield Retained(f"Out[{number}]", size, RELEASE_OUTPUTS)
    trace = getattr(sys, "last_traceback", None)
    for frame in _frames_of(trace):
        for name, value in locals_of(frame).items():
            if frame.f_globals is shell.user_ns and name in shell.user_ns:
                continue  # a variable of the notebook, which exists anyway
            size = sum(tensor.nbytes for tensor in _tensors_in(value, seen))
            if size >= LEAST_BYTES:
                where = f"{name} of {frame.f_code.co_name}() in the last error"
                yield Retained(where, size, RELEASE_ERROR)


def _frames_of(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _tensors_in(value: Any, seen: set[int], depth: int = DEEPEST) -> Iterator[Any]:
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        storage = (
            value.untyped_storage().data_ptr() if value.is_cuda and kind in (torch.Tensor, torch.nn.Parameter) else 0
        )
        if storage and storage not in seen:
            seen.add(storage)
            yield value
    elif depth and kind in (list, tuple, dict):
        for part in list(value.values() if kind is dict else value)[:MOST_OUTPUTS]:
            yield from _tensors_in(part, seen, depth - 1)
