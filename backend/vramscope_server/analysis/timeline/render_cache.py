"""Caches the data of a trace's timeline on disk: the curve, and the groups of its allocations by line and by category.

Computing them takes seconds for ten million events. The files are in the folder of the trace (``column_store``), and are mapped
into memory.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope_server.analysis.timeline.curve import AllocationCurve, allocation_curve
from vramscope_server.analysis.timeline.grouping import By, Grouping, grouping_of
from vramscope_server.analysis.trace.column_store import mapped, save_column

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

KEPT: Final[tuple[By, ...]] = ("site", "category")
"""Cached groupings: those that the pages show first. Groupings by phase and by module are computed quickly."""


def save_pictures(trace: Trace, folder: Path) -> None:
    """Compute and save the data. Takes about 0.4 µs and 45 bytes of memory per event. Raises OSError if writing fails."""
    curve = allocation_curve(trace)
    for one in fields(AllocationCurve):
        save_column(folder / f"course.{one.name}.npy", getattr(curve, one.name))
    for by in KEPT:
        grouping = grouping_of(trace, curve, by)
        save_column(folder / f"group.{by}.npy", grouping.group)
        save_column(folder / f"rank.{by}.npy", grouping.rank)
        (folder / f"names.{by}.json").write_bytes(msgspec.json.encode(grouping.names))


def load_pictures(folder: Path) -> tuple[AllocationCurve, list[Grouping]] | None:
    """Load the saved data; None in folders of earlier versions, which have none. Raises OSError and ValueError, as
    column_store.load does."""
    if not (folder / f"names.{KEPT[-1]}.json").exists():
        return None
    curve = AllocationCurve(**{one.name: mapped(folder / f"course.{one.name}.npy") for one in fields(AllocationCurve)})
    return curve, [_grouping(folder, by) for by in KEPT]


def _grouping(folder: Path, by: By) -> Grouping:
    names: list[str] = msgspec.json.decode((folder / f"names.{by}.json").read_bytes())
    return Grouping(by, names, group=mapped(folder / f"group.{by}.npy"), rank=mapped(folder / f"rank.{by}.npy"))
