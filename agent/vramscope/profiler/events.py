"""Reads the result of PyTorch's profiler: a tree of operations, Python calls and allocations, flattened into plain columns.

The tree is read in slices of about a millisecond, because each of its objects is made under the interpreter's lock. An
operation of the backward is linked to the forward operation that recorded it by its sequence number. So it also counts for
the module and line of that operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from vramscope.profiler.module_marks import MARK
from vramscope.profiler.rows import NONE, Allocation, Kernel, ProfiledLine, SharedStacks
from vramscope.profiler.unrecorded_frees import MEMORY, MemoryEvent, addresses_of
from vramscope.protocol.series import UNKNOWN

SLICE: Final = 128
DEVICE_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")
"""PyTorch's names of work on the device; its annotations there only repeat those of the CPU."""
BEGINNING: Final = "vramscope begins"
"""Name of a mark that the training thread sets first, to identify that thread."""
HELPERS: Final = frozenset(
    (
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
    )
)
"""Operations that allocate for other operations: their memory counts for those."""


class ProfileEvents:
    """Events of a profile. Operations and marks of modules are rows; a parent is before its children."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Names of operations; "" for a mark."""
        self.starts: list[int] = []
        self.durations: list[int] = []
        self.threads: list[int] = []
        self.parents: list[int] = []
        """Row of the enclosing event; NONE."""
        self.modules: list[int] = []
        """Node of module_chains; NONE."""
        self.lines: list[int] = []
        """Node of line_chains; NONE."""
        self.shapes: list[str] = []
        """Shapes of the arguments; "" if not recorded."""
        self.module_chains, self.line_chains = SharedStacks(), SharedStacks()
        self.allocations: list[Allocation] = []
        self.kernels: list[Kernel] = []
        self.main_thread = 0
        """Thread that opened the profiler."""
        self.kinds: dict[int, str] = {}
        """Class names of modules by id, as far as PyTorch reported them."""
        self._sequences: list[int] = []
        self._rows: dict[int, int] = {}  # correlation id -> row
        self._memory_events: list[MemoryEvent] = []
        self._read = 0

    def read(self, profiler: Any, end_ns: int, pause: Callable[[], None]) -> None:
        """Read all events of a closed ``torch.profiler.profile``."""
        results = profiler.profiler.kineto_results
        self._pause = pause
        self._end_ns = end_ns
        for root in results.experimental_event_tree():
            self._walk(root)
        self._link(self._read_flat(results.events()))
        self.allocations.sort(key=lambda event: event.time_ns)
        self.allocations += [
            Allocation(
                module_info.time_ns,
                NONE,
                module_info.thread,
                module_info.device,
                address,
                module_info.size_bytes,
                UNKNOWN,
                NONE,
            )
            for module_info, address in addresses_of(self._memory_events, self.allocations, pause)
        ]
        self.allocations.sort(key=lambda event: event.time_ns)

    # -- the tree ------------------------------------------------------------------------------------------------------

    def _walk(self, root: Any) -> None:
        # (event, row around it, module node, line node)
        waiting: list[tuple[Any, int, int, int]] = [(root, NONE, NONE, NONE)]
        while waiting:
            self._read += 1
            if self._read % SLICE == 0:
                self._pause()
            event, row, module, line = waiting.pop()
            kind, fields = event.typed
            tag = kind.name
            if tag == "TorchOp":
                row, module = self._operation(event, fields, row, module, line)
            elif tag == "PyCall" and fields.module is not None:
                row, module = self._module(event, fields.module, row, module, line)
            elif tag == "Allocation":
                self._allocation(event, fields, row, line)
            children = event.children
            if not children:
                continue
            own = _frame_of(fields) if tag == "PyCall" else None
            if own is None:
                waiting += [(child, row, module, self._line_of(child, line)) for child in reversed(children)]
            else:
                waiting += self._in_frame(children, own, row, module, line)

    def _in_frame(
        self, children: list[Any], frame: tuple[str, str, int], row: int, module: int, line: int
    ) -> list[tuple[Any, int, int, int]]:
        """Assign lines to the children of a user's frame: calls have a line, operators only the calls before and after
        them."""
        file, function, first_line = frame
        called = [_call_line(child) for child in children]
        after: list[int] = []
        following = NONE
        for line_number in reversed(called):
            following = following if line_number is None else line_number
            after.append(following)
        after.reverse()
        before = first_line
        found = []
        for child, line_number, following in zip(children, called, after, strict=True):
            if line_number is not None:
                before = line_number
                node = self._line_of(child, line)
            elif following < before:  # the frame's end, or a loop's next iteration
                node = self.line_chains.node(line, ProfiledLine(file, before, NONE, function))
            else:
                node = self.line_chains.node(line, ProfiledLine(file, before, following, function))
            found.append((child, row, module, node))
        found.reverse()
        return found

    def _line_of(self, event: Any, line: int) -> int:
        """Return the line node of an event: that of the call, if a line of the user calls."""
        kind, fields = event.typed
        if kind.name not in ("PyCall", "PyCCall"):
            return line
        caller = fields.caller
        if not is_users_file(caller.file_name):
            return line
        line_number = caller.line_number
        return self.line_chains.node(
            line, ProfiledLine(caller.file_name, line_number, line_number, caller.function_name)
        )

    def _operation(self, event: Any, fields: Any, row: int, module: int, line: int) -> tuple[int, int]:
        name = event.name
        if name == BEGINNING:
            self.main_thread = event.start_tid
            return row, module
        if name.startswith(MARK):
            module = self.module_chains.node(module, int(name[len(MARK) :]))
            return self._row(event, "", NONE, row, module, line), module
        number = self._row(event, name, fields.sequence_number, row, module, line)
        self._rows[event.correlation_id] = number
        return number, module

    def _module(self, event: Any, module_info: Any, row: int, module: int, line: int) -> tuple[int, int]:
        self.kinds[module_info.self_ptr] = module_info.cls_name
        module = self.module_chains.node(module, module_info.self_ptr)
        return self._row(event, "", NONE, row, module, line), module

    def _row(self, event: Any, name: str, sequence: int, parent: int, module: int, line: int) -> int:
        start, duration = event.start_time_ns, event.duration_time_ns
        if not 0 <= duration <= self._end_ns - start:  # still open when the profiler was closed
            duration = max(0, self._end_ns - start)
        self.names.append(name)
        self.starts.append(start)
        self.durations.append(duration)
        self.threads.append(event.start_tid)
        self.parents.append(parent)
        self.modules.append(module)
        self.lines.append(line)
        self.shapes.append("")
        self._sequences.append(sequence)
        return len(self.names) - 1

    def _allocation(self, event: Any, fields: Any, row: int, line: int) -> None:
        device = fields.device
        outer = row
        while outer != NONE and self.names[outer] in HELPERS:
            outer = self.parents[outer]
        row = row if outer == NONE or not self.names[outer] else outer
        if fields.ptr:
            self.allocations.append(
                Allocation(
                    event.start_time_ns,
                    row,
                    event.start_tid,
                    (device.index or 0) if device.type != "cpu" else NONE,
                    fields.ptr,
                    fields.alloc_size,
                    fields.total_allocated,
                    line,
                )
            )

    # -- the flat events -----------------------------------------------------------------------------------------------

    def _read_flat(self, events: list[Any]) -> dict[int, int]:
        """Read kernels and shapes. Returns for each row of the backward the thread of its forward."""
        forward_threads: dict[int, int] = {}
        rows = self._rows
        for number, event in enumerate(events):
            if number % (4 * SLICE) == 0:
                self._pause()
            if event.device_type().name != "CPU":
                if _is_device_work(event):
                    row = rows.get(event.linked_correlation_id(), NONE)
                    self.kernels.append(Kernel(event.start_ns(), event.duration_ns(), row))
                elif event.name() == MEMORY:
                    self._memory_events.append(
                        MemoryEvent(event.start_ns(), event.nbytes(), event.device_index(), event.start_thread_id())
                    )
                continue
            row = rows.get(event.correlation_id(), NONE)
            if row == NONE:
                continue
            thread = event.fwd_thread_id()
            if thread:
                forward_threads[row] = thread
            shapes = event.shapes()
            if shapes:
                self.shapes[row] = ", ".join("x".join(map(str, shape)) for shape in shapes if shape)
        return forward_threads

    def _link(self, forward_threads: dict[int, int]) -> None:
        """Assign the module and line of its forward to each operation of the backward and to its children."""
        made_by: dict[int, int] = {}
        newest: dict[tuple[int, int], int] = {}
        for row in sorted(range(len(self.names)), key=self.starts.__getitem__):
            sequence = self._sequences[row]
            if sequence >= 0 and row in forward_threads:
                made_by[row] = newest.get((forward_threads[row], sequence), NONE)
            elif sequence >= 0:
                # The last operation with a number made the node; those before it made none.
                newest[self.threads[row], sequence] = row
        own_lines = list(self.lines)
        for row, parent in enumerate(self.parents):
            made = made_by.get(row, NONE)
            if made == NONE and parent in made_by:
                # Recomputed operations of a checkpointed block have their own modules and lines.
                made = made_by[parent] if own_lines[row] == own_lines[parent] else NONE
            if made == NONE:
                continue
            made_by[row] = made
            if self.modules[row] == NONE:
                self.modules[row] = self.modules[made]
            if self.lines[made] != NONE:
                self.lines[row] = self.lines[made]


def mark_beginning() -> None:
    """Set the first mark on the training thread, when the profiler has just been opened."""
    import torch

    with torch._C._profiler._RecordFunctionFast(BEGINNING):
        pass


def _is_device_work(event: Any) -> bool:
    """Return whether an event of a device is work, not a note of memory or of waiting."""
    kind = getattr(event, "activity_type", None)
    if kind is not None:
        return kind() in DEVICE_WORK
    # torch 2.6 has no activity type. Its names of waiting: "Stream Wait Event", "Event Sync", "Context Sync"
    name = event.name()
    return name != MEMORY and not event.is_user_annotation() and not name.endswith((" Sync", " Wait Event"))


def _frame_of(fields: Any) -> tuple[str, str, int] | None:
    """Return (file, function, first line) of a Python call in the user's code, else None."""
    site = fields.callsite
    if not is_users_file(site.file_name):
        return None
    return site.file_name, site.function_name, site.line_number


def _call_line(event: Any) -> int | None:
    kind, fields = event.typed
    return fields.caller.line_number if kind.name in ("PyCall", "PyCCall") else None


_known_files: dict[str, bool] = {}


def is_users_file(file: str) -> bool:
    """Return whether a file is not PyTorch's, the standard library's or the agent's. PyTorch reports paths below sys.path."""
    known = _known_files.get(file)
    if known is None:
        top = file.partition("/")[0].removesuffix(".py")
        known = not (
            top in ("torch", "vramscope")
            or file.startswith("<")
            or (top in sys.stdlib_module_names and top != "__main__")
        )
        _known_files[file] = known
    return known
