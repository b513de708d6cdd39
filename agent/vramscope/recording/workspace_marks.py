"""Addresses of cuBLAS workspaces at the boundaries of a window's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramscope.memory.cublas_workspaces import CublasWorkspaces


class WorkspaceMarks:
    """Addresses of one window, of all devices. They are kept when they differ from those at the mark before."""

    def __init__(self) -> None:
        self._workspaces = CublasWorkspaces()
        self._marks: list[tuple[int, frozenset[int]]] = []

    def read(self, mark: int) -> None:
        """Read the addresses at a mark. Costs about 10 µs."""
        addresses = frozenset(one.address for one in self._workspaces.read() or ())
        if addresses and (not self._marks or self._marks[-1][1] != addresses):
            self._marks.append((mark, addresses))

    def rows(self, bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the event and the address of each workspace. ``bounds``: the first event after each mark, and the end."""
        for mark, addresses in self._marks:
            for address in sorted(addresses):
                yield bounds[min(mark, len(bounds) - 1)], address
