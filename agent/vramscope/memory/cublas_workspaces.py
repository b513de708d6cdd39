"""Finds the cuBLAS workspaces of this process, from PyTorch's own tables.

PyTorch allocates a workspace for each cuBLAS handle and stream at the first matrix product, and keeps it. From 2.15 on it frees
each after its product, and the tables are empty, unless TORCH_CUBLAS_WORKSPACE_CACHE is 1. The size of a block proves nothing: a
weight of the same size is no workspace. PyTorch's tables of workspaces do, two ``std::map`` in libtorch_cuda.so. They are read
through ``/proc/self/mem``, where an invalid address is an error and not a crash. Nothing is allocated, freed or locked. Where the
tables do not have the expected layout, workspaces are unknown.

PyTorch 2.13 has the sizes in the tables. Before that they come from the allocator's blocks, and are unknown while the
allocator records its history: a snapshot is an event of the history, which may be the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.memory.peak_counters import block_bytes
from vramscope.memory.pytorch_snapshot import SnapshotBlock, SnapshotSegment
from vramscope.memory.unusable import layout
from vramscope.protocol.series import UNKNOWN

FUNCTIONS: Final = (
    "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv",
    "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
)
"""C++ functions that return the tables of cuBLAS and of cuBLASLt."""
SIZES: Final = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
"""Functions of PyTorch with the size of a new workspace of each table. Versions that have them have sizes in the tables."""
MOST_NODES: Final = 1024
"""Maximum number of workspaces in one table. Each stream has one per thread that uses it."""
MOST_LAYOUTS: Final = 32
"""Maximum number of readings of the allocator's blocks. One is needed when a workspace is new."""

HEADER: Final = struct.Struct("=16xQQQQ")
"""Header of a ``std::map`` of libstdc++: root, first and last node, number of nodes."""
NODE: Final = struct.Struct("=8xQQQ16xQ8xQbb6xQ")
"""A node: parent, left and right child; behind the key (handle, stream) the address of the workspace, the context that is
freed with it (the same address), type and index of the device, and the size."""
HEADER_NODE: Final = 8
"""Offset of the header's node, which is the parent of the root."""
CUDA: Final = 1
"""PyTorch's number of this type of devices."""


class Workspace(NamedTuple):
    """One workspace."""

    address: int
    device: int
    size_bytes: int
    """Requested size; not valid in versions of PyTorch without ``SIZES``."""


class CublasWorkspaces:
    """Workspaces of all devices. A reading of two costs about 11 µs; used by one thread."""

    def __init__(self) -> None:
        self._tables: tuple[int, ...] | None = None
        self._size_of: list[Callable[[], int]] = []
        self._sizes: set[int] = set()
        """Sizes that PyTorch reported for new workspaces."""
        self._headers: list[ctypes.Array[ctypes.c_char]] = []
        """Memory of the tables' headers, which exist as long as the process; none before the first valid reading."""
        self._seen: list[bytes] = []
        self._addresses: frozenset[int] = frozenset()
        self._bytes: dict[int, int] | None = {}
        self._layouts_left = MOST_LAYOUTS

    def bytes_on(self, device: int) -> int:
        """Return the bytes of all workspaces on a device; UNKNOWN where it is not known which blocks they are."""
        found = self.read()
        if found is None:
            return UNKNOWN
        if self._size_of:
            if not self._are_sizes_known(found):
                return UNKNOWN
            return sum(block_bytes(one.size_bytes) for one in found if one.device == device)
        addresses = frozenset(one.address for one in found)
        if addresses != self._addresses and not self._learn(addresses):
            return UNKNOWN
        return UNKNOWN if self._bytes is None else self._bytes.get(device, 0)

    def read(self) -> list[Workspace] | None:
        """Return the workspaces in PyTorch's tables; None if they cannot be read."""
        if self._tables is None:
            self._tables, self._size_of = tables(), size_functions()
        if not self._tables:
            return None
        found: list[Workspace] = []
        try:
            memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            seen = [os.pread(memory, HEADER.size, table) for table in self._tables]
            for number, (table, header) in enumerate(zip(self._tables, seen, strict=True)):
                listed = _workspaces_in(memory, table, header)
                if listed and number < len(self._size_of):  # before the first one, PyTorch would read its settings
                    self._sizes.add(self._size_of[number]())
                found += listed
        except (OSError, OverflowError, ValueError, struct.error):
            return None
        finally:
            os.close(memory)
        self._seen = seen
        self._headers = self._headers or [(ctypes.c_char * HEADER.size).from_address(one) for one in self._tables]
        return found

    def requested_bytes(self) -> int | None:
        """Return the bytes that PyTorch requested for all workspaces of all devices; None where they are unknown."""
        found = self.read()
        if found is None:
            return None
        if self._size_of:
            return sum(one.size_bytes for one in found) if self._are_sizes_known(found) else None
        blocks: list[tuple[int, SnapshotBlock]] | None = None
        with contextlib.suppress(RuntimeError):  # another allocator than PyTorch's own
            segments = layout() if found else []
            blocks = None if segments is None else active_blocks(segments, frozenset(one.address for one in found))
        return None if blocks is None else sum(block.get("requested_size", block["size"]) for _, block in blocks)

    def has_changed(self) -> bool:
        """Return whether the tables have changed since the last reading. Costs less than 1 µs."""
        return any(header.raw != seen for header, seen in zip(self._headers, self._seen, strict=True))

    def _are_sizes_known(self, found: list[Workspace]) -> bool:
        """Return whether PyTorch itself reported each of these sizes."""
        return {one.size_bytes for one in found} <= self._sizes

    def _learn(self, addresses: frozenset[int]) -> bool:
        """Read the sizes of the blocks at these addresses. Return False if that is not possible now."""
        if not self._layouts_left:
            return False
        try:
            segments = layout() if addresses else []
        except RuntimeError:  # another allocator than PyTorch's own
            self._layouts_left = 0
            return False
        if segments is None:
            return False
        self._layouts_left -= 1
        self._addresses, self._bytes = addresses, active_bytes(segments, addresses)
        return True


def active_bytes(segments: Iterable[SnapshotSegment], addresses: frozenset[int]) -> dict[int, int] | None:
    """Return the bytes of the active blocks that begin at these addresses, by device; None if one of them is no such block."""
    blocks = active_blocks(segments, addresses)
    if blocks is None:
        return None
    found: Counter[int] = Counter()
    for device, block in blocks:
        found[device] += block["size"]
    return dict(found)


def active_blocks(
    segments: Iterable[SnapshotSegment], addresses: frozenset[int]
) -> list[tuple[int, SnapshotBlock]] | None:
    """Return the active blocks that begin at these addresses, with their devices; None if one of them is no such block."""
    found: list[tuple[int, SnapshotBlock]] = []
    missing = set(addresses)
    for segment in segments:
        address, size = segment["address"], segment["total_size"]
        if not any(address <= one < address + size for one in missing):
            continue
        for block in segment["blocks"]:
            if address in missing and block["state"] == "active_allocated":
                missing.discard(address)
                found.append((segment["device"], block))
            address += block["size"]
    return None if missing else found


def tables() -> tuple[int, ...]:
    """Addresses of the tables in this process; none where this PyTorch does not export them."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    found: list[int] = []
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        for name in FUNCTIONS:
            function = library[name]
            function.restype = ctypes.c_void_p
            found.append(function())
    return tuple(found)


def size_functions() -> list[Callable[[], int]]:
    """Functions with the size of a new workspace of each table; empty where the tables have no sizes."""
    import torch

    return [getattr(torch._C, name) for name in SIZES if hasattr(torch._C, name)]


def _workspaces_in(memory: int, table: int, header: bytes) -> list[Workspace]:
    """Workspaces in one table. ValueError if it is no map in order, or changes meanwhile."""
    root, first, last, size = HEADER.unpack(header)
    end = table + HEADER_NODE
    if not root:
        if size or first != end or last != end:
            raise ValueError("not an empty map")
        return []
    if not 0 < size <= MOST_NODES:
        raise ValueError("not the number of nodes of a map")
    found: dict[int, Workspace] = {}
    waiting = [(root, end)]
    while waiting and len(found) <= size:
        node, above = waiting.pop()
        values = NODE.unpack(os.pread(memory, NODE.size, node))
        parent, left, right, address, context, device_type, device, size_bytes = values
        if parent != above or address != context or device_type != CUDA:
            raise ValueError("not a node of this map")
        found[node] = Workspace(address, device, size_bytes)
        waiting += [(child, node) for child in (left, right) if child]
    if len(found) != size or first not in found or last not in found:
        raise ValueError("not all nodes of this map")
    return list(found.values())
