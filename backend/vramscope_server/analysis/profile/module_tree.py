"""The modules of a profile as boxes beside and below each other, as wide as what they took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramscope_server.analysis.profile.tables import Table

MOST_BOXES: Final = 600


@dataclass
class ModuleBox:
    """A module, with what it called inside of it."""

    name: str
    kind: str
    total: int
    own: int
    calls: int
    level: int = 0
    first: int = 0
    """where it begins, in the quantity's unit from the left"""


def boxes_of(table: Table, quantity: str) -> tuple[list[ModuleBox], int]:
    """(boxes, how many are left out). ``quantity``: without its ``self_``.

    A module's box lies below that of the module whose name its own continues (``blocks.0`` of ``blocks.0.mlp``); a root has a
    class for its name, and all others lie below it where there is one root.
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
    return placed[:MOST_BOXES], max(0, len(placed) - MOST_BOXES)


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
    waiting = [(box, level, first)]
    while waiting:
        box, level, first = waiting.pop()
        box.level, box.first = level, first
        placed.append(box)
        at = first
        for child in children.get(box.name, []):
            waiting.append((child, level + 1, at))
            at += child.total
