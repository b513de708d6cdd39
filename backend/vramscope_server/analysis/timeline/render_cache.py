"""What the timeline of a trace is drawn from, kept in the folder of its columns (``column_store``) and mapped again.

Of ten million events it takes seconds to compute: the curve, and which group each allocation belongs to by line and by category.
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
"""What the pages ask first; by phase and by module it is quickly worked out."""


def save_pictures(trace: Trace, folder: Path) -> None:
    """Some 0.4 µs and 45 bytes of memory an event more. Raises OSError where the disk does not take it."""
    curve = allocation_curve(trace)
    for one in fields(AllocationCurve):
        save_column(folder / f"course.{one.name}.npy", getattr(curve, one.name))
    for by in KEPT:
        grouping = grouping_of(trace, curve, by)
        save_column(folder / f"group.{by}.npy", grouping.group)
        save_column(folder / f"rank.{by}.npy", grouping.rank)
        (folder / f"names.{by}.json").write_bytes(msgspec.json.encode(grouping.names))


def load_pictures(folder: Path) -> tuple[AllocationCurve, list[Grouping]] | None:
    """What was saved; None where it was not, in folders of earlier versions. Raises OSError, ValueError as column_store.load."""
    if not (folder / f"names.{KEPT[-1]}.json").exists():
        return None
    curve = AllocationCurve(**{one.name: mapped(folder / f"course.{one.name}.npy") for one in fields(AllocationCurve)})
    return curve, [_grouping(folder, by) for by in KEPT]


def _grouping(folder: Path, by: By) -> Grouping:
    names: list[str] = msgspec.json.decode((folder / f"names.{by}.json").read_bytes())
    return Grouping(by, names, group=mapped(folder / f"group.{by}.npy"), rank=mapped(folder / f"rank.{by}.npy"))
