"""``%load_ext vramscope``: the magics ``%%vram`` of a cell and ``%vram live`` for IPython and notebooks.

``%%vram`` prints the peak of a cell, what it retains, and GPU tensors that the notebook itself retains: results in ``Out``, and
variables of a failed cell in ``sys.last_traceback``.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.leaks.notebook_references import retained_by_notebook
from vramscope.measurement import Measurement, measure
from vramscope.notebook_view import LiveView, memory_text
from vramscope.protocol.number_format import amount

MAGIC: Final = "vram"
LEAST_BYTES: Final = 1 << 20
"""Smallest tensor that is listed."""
MOST_LINES: Final = 5


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
    found = retained_by_notebook(shell, LEAST_BYTES)
    for one in found[:MOST_LINES]:
        print(f"  {one.name} retains {amount(one.size_bytes)}; release it with: {one.release}")
    if len(found) > MOST_LINES:
        print(f"  and {len(found) - MOST_LINES:,} more")
