"""Finds the cuBLAS workspaces of this process, from PyTorch's own tables.

PyTorch allocates a workspace for each cuBLAS handle and stream at the first matrix product, and keeps it. The size of a block
proves nothing: a weight of the same size is no workspace. PyTorch's tables of workspaces do, two ``std::map`` in
libtorch_cuda.so. They are read through ``/proc/self/mem``, where an invalid address is an error and not a crash. Nothing is
allocated, freed or locked. An address counts only if the allocator reports an active block that begins there. Where the
tables do not have the expected layout, workspaces are unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.memory.unusable import layout
from vramscope.protocol.series import UNKNOWN

FUNCTIONS: Final = (
    "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv",
    "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
)
"""C++ functions that return the tables of cuBLAS and of cuBLASLt."""
MOST_NODES: Final = 1024
"""Maximum number of workspaces in one table. Each stream has one per thread that uses it."""
MOST_LAYOUTS: Final = 32
"""Maximum number of readings of the allocator's blocks. One is needed when a workspace is new."""

HEADER: Final = struct.Struct("=16xQQQQ")
"""Header of a ``std::map`` of libstdc++: root, first and last node, number of nodes."""
NODE: Final = struct.Struct("=8xQQQ16xQ")
"""A node: parent, left and right child; behind the key (handle, stream) the address of the workspace."""
HEADER_NODE: Final = 8
"""Offset of the header's node, which is the parent of the root."""


class CublasWorkspaces:
    """Bytes of the workspaces by device. A reading costs about 10 µs; used by one thread."""

    def __init__(self) -> None:
        self._tables: tuple[int, ...] | None = None
        self._headers: list[ctypes.Array[ctypes.c_char]] = []
        """Memory of the tables' headers, which exist as long as the process; none before the first valid reading."""
        self._seen: list[bytes] = []
        self._addresses: frozenset[int] = frozenset()
        self._bytes: dict[int, int] | None = {}
        self._layouts_left = MOST_LAYOUTS

    def bytes_on(self, device: int) -> int:
        """Return the bytes of all workspaces on a device; UNKNOWN where it is not known which blocks they are."""
        addresses = self.addresses()
        if addresses is None:
            return UNKNOWN
        if addresses != self._addresses and not self._learn(addresses):
            return UNKNOWN
        return UNKNOWN if self._bytes is None else self._bytes.get(device, 0)

    def addresses(self) -> frozenset[int] | None:
        """Return the addresses in PyTorch's tables, of all devices; None if they cannot be read."""
        if self._tables is None:
            self._tables = tables()
        if not self._tables:
            return None
        found: set[int] = set()
        try:
            memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            seen = [os.pread(memory, HEADER.size, table) for table in self._tables]
            for table, header in zip(self._tables, seen, strict=True):
                found |= _addresses_in(memory, table, header)
        except (OSError, OverflowError, ValueError, struct.error):
            return None
        finally:
            os.close(memory)
        self._seen = seen
        self._headers = self._headers or [(ctypes.c_char * HEADER.size).from_address(one) for one in self._tables]
        return frozenset(found)

    def has_changed(self) -> bool:
        """Return whether the tables have changed since the last reading. Costs less than 1 µs."""
        return any(header.raw != seen for header, seen in zip(self._headers, self._seen, strict=True))

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
    found: Counter[int] = Counter()
    missing = set(addresses)
    for segment in segments:
        address, size = segment["address"], segment["total_size"]
        if not any(address <= one < address + size for one in missing):
            continue
        for block in segment["blocks"]:
            if address in missing and block["state"] == "active_allocated":
                missing.discard(address)
                found[segment["device"]] += block["size"]
            address += block["size"]
    return None if missing else dict(found)


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


def _addresses_in(memory: int, table: int, header: bytes) -> set[int]:
    """Addresses in one table. ValueError if it is no map in order, or changes meanwhile."""
    root, first, last, size = HEADER.unpack(header)
    end = table + HEADER_NODE
    if not root:
        if size or first != end or last != end:
            raise ValueError("not an empty map")
        return set()
    if not 0 < size <= MOST_NODES:
        raise ValueError("not the number of nodes of a map")
    found: dict[int, int] = {}
    waiting = [(root, end)]
    while waiting and len(found) <= size:
        node, above = waiting.pop()
        parent, left, right, address = NODE.unpack(os.pread(memory, NODE.size, node))
        if parent != above:
            raise ValueError("not a node of this map")
        found[node] = address
        waiting += [(child, node) for child in (left, right) if child]
    if len(found) != size or first not in found or last not in found:
        raise ValueError("not all nodes of this map")
    return set(found.values())
