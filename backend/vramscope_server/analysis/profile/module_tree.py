"""Modules of a profile as nested boxes whose width is their share of a quantity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramscope_server.analysis.profile.tables import Table

MAX_BOXES: Final = 600


@dataclass
class ModuleBox:
    """Box of a module."""

    name: str
    kind: str
    total: int
    own: int
    calls: int
    level: int = 0
    first: int = 0
    """Left edge in the unit of the quantity."""


def boxes_of(table: Table, quantity: str) -> tuple[list[ModuleBox], int]:
    """Boxes, and the number of omitted ones. ``quantity`` is without ``self_``.

    A module's box is below that of its parent by name (``blocks.0`` of ``blocks.0.mlp``). A root is named after its class. If
    there is one root, all other boxes are below it.
    """
    totals, owns = table.columns[quantity], table.columns[f"self_{quantity}"]
    kinds = table.texts("kind")
    found = {
        name: ModuleBox(name, kinds[row], int(totals[row]), int(owns[row]), int(table.columns["calls"][row]))
        for row, name in enumerate(table.names)
        if totals[row] > 0
    }
    special = {name for row, name in enumerate(table.names) if table.special[row]}
    roots = [box.name for box in found.values() if box.name == box.kind and box.name not in special]
    root = roots[0] if len(roots) == 1 else None
    children: dict[str | None, list[ModuleBox]] = {}
    for box in found.values():
        children.setdefault(_parent_of(box.name, found, root, special), []).append(box)
    placed: list[ModuleBox] = []
    at = 0
    for box in sorted(children.get(None, []), key=lambda box: -box.total):
        _place(box, 0, at, children, placed)
        at += box.total
    placed.sort(key=lambda box: -box.total)
    return placed[:MAX_BOXES], max(0, len(placed) - MAX_BOXES)


def _parent_of(name: str, found: dict[str, ModuleBox], root: str | None, special: set[str]) -> str | None:
    if name in special or name == root:
        return None
    outer = name
    while "." in outer:
        outer = outer.rpartition(".")[0]
        if outer in found:
            return outer
    return root


def _place(
    box: ModuleBox, level: int, first: int, children: dict[str | None, list[ModuleBox]], placed: list[ModuleBox]
) -> None:
    pending = [(box, level, first)]
    while pending:
        box, level, first = pending.pop()
        box.level, box.first = level, first
        placed.append(box)
        at = first
        for child in children.get(box.name, []):
            pending.append((child, level + 1, at))
            at += child.total
