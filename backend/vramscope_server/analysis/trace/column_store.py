"""Stores a trace with its lifetimes as a folder of columns, which opens at any size at once by memory mapping.

Each column is a ``.npy`` file; all else is in ``trace.json``. Stacks, frames and words are equal for all devices of a
snapshot and have a folder of their own. Pages of the files are read on use and never written back.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.fragmentation.breakdown import parts_of
from vramscope_server.analysis.fragmentation.usable import Parts
from vramscope_server.analysis.trace.annotations import Annotations, none
from vramscope_server.analysis.trace.lifetimes import AllocationLifetimes, SegmentLifetimes
from vramscope_server.analysis.trace.notable_events import NotableEvents, notable_events_of
from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.trace import LABELS, Trace
from vramscope_server.analysis.trace.types import Blocks, Events, Layout, Segments

FORMAT: Final = 1
PARTS: Final = ("requested", "rounding", "usable", "unusable")
_TABLES: Final[dict[str, Any]] = {
    "events": Events,
    "end.segments": Segments,
    "end.blocks": Blocks,
    "start.segments": Segments,
    "start.blocks": Blocks,
    "lives": AllocationLifetimes,
    "segment_lives": SegmentLifetimes,
    "annotations": Annotations,
}
_STORED_AS: Final = {"free_requested_event": "requested_event"}
"""Columns whose files have another name."""
_PLAIN: Final = (
    "device", "device_name", "device_total_bytes", "device_free_bytes", "limit_bytes", "torch", "cuda", "backend", "settings",
    "settings_in_force", "reason", "first_step", "last_step", "lost_events", "pools", "modules", "notes",
)  # fmt: skip


def save_stacks(trace: Trace, folder: Path) -> None:
    """Save the data that all devices of a snapshot share. Raises OSError if writing fails."""
    folder.mkdir(parents=True)
    save_column(folder / "flat.npy", trace.stacks.flat)
    save_column(folder / "offsets.npy", trace.stacks.offsets)
    for name, column in trace.frames.items():
        save_column(folder / f"frames.{name}.npy", column)
    (folder / "words.json").write_bytes(msgspec.json.encode(trace.words))


def save(trace: Trace, folder: Path) -> NotableEvents:
    """Save all other data and expensive results. About 2 µs and 150 bytes of additional memory per event.

    Raises OSError, BadWindow.
    """
    folder.mkdir(parents=True)
    tables = {
        "events": trace.events,
        "end.segments": trace.end.segments,
        "end.blocks": trace.end.blocks,
        **({"start.segments": trace.start.segments, "start.blocks": trace.start.blocks} if trace.start else {}),
        "segment_lives": trace.segment_lives,
        "lives": trace.lives,
        **({"annotations": trace.annotations} if len(trace.annotations) else {}),
    }
    for part, rows in tables.items():
        for name in _columns_of(_TABLES[part]):
            save_column(_file_of(folder, part, name), getattr(rows, name))
    for name, column in trace.labels.items():
        save_column(folder / f"labels.{name}.npy", column)
    parts = parts_of(trace)
    for name in PARTS:
        save_column(folder / f"parts.{name}.npy", getattr(parts, name))
    moments = notable_events_of(trace, parts)
    values = {name: getattr(trace, name) for name in _PLAIN} | {
        "format": FORMAT,
        "unended": trace.lives.unended,
        "counters": {"start": trace.start.counters if trace.start else None, "end": trace.end.counters},
        "moments": {one.name: getattr(moments, one.name) for one in fields(NotableEvents)},
        "misfits": parts.misfits,
    }
    (folder / "trace.json").write_bytes(msgspec.json.encode(values))
    return moments


def load(folder: Path, stacks: Path) -> tuple[Trace, NotableEvents, Parts | None]:
    """Load a saved trace; without parts if an older version saved it. A few milliseconds.

    Raises OSError if files are missing, ValueError if they are damaged.
    """
    values: dict[str, Any] = msgspec.json.decode((folder / "trace.json").read_bytes())
    if values["format"] != FORMAT:
        raise ValueError(f"unknown format {values['format']}; this version reads {FORMAT}")
    start = _layout(folder, "start", values) if (folder / "start.segments.address.npy").exists() else None
    trace = Trace(
        **{name: values[name] for name in _PLAIN if name != "pools"},
        pools=[(first, second) for first, second in values["pools"]],
        start=start,
        end=_layout(folder, "end", values),
        events=_table(folder, "events"),
        words=msgspec.json.decode((stacks / "words.json").read_bytes()),
        frames={name: mapped(stacks / f"frames.{name}.npy") for name in ("file", "line", "function")},
        stacks=Stacks(mapped(stacks / "flat.npy"), mapped(stacks / "offsets.npy")),
        labels={name: mapped(path) for name in LABELS if (path := folder / f"labels.{name}.npy").exists()},
        annotations=_table(folder, "annotations") if (folder / "annotations.first.npy").exists() else none(),
    )
    # functools.cached_property finds cached values under these names.
    vars(trace)["lives"] = _table(folder, "lives", unended=values["unended"])
    vars(trace)["segment_lives"] = _table(folder, "segment_lives")
    moments = values["moments"]
    moments["steps"] = [(step, event) for step, event in moments["steps"]]
    return trace, NotableEvents(**moments), _parts(folder, values)


def _parts(folder: Path, values: dict[str, Any]) -> Parts | None:
    if "misfits" not in values:
        return None
    return Parts(**{name: mapped(folder / f"parts.{name}.npy") for name in PARTS}, misfits=values["misfits"])


def _layout(folder: Path, which: str, values: dict[str, Any]) -> Layout:
    segments, blocks = _table(folder, f"{which}.segments"), _table(folder, f"{which}.blocks")
    return Layout(segments, blocks, values["counters"][which])


def _table(folder: Path, part: str, **more: Any) -> Any:
    kind = _TABLES[part]
    return kind(**{name: mapped(_file_of(folder, part, name)) for name in _columns_of(kind)}, **more)


def _file_of(folder: Path, part: str, name: str) -> Path:
    return folder / f"{part}.{_STORED_AS.get(name, name)}.npy"


def _columns_of(kind: Any) -> list[str]:
    return [one.name for one in fields(kind) if one.name != "unended"]


def save_column(path: Path, column: npt.NDArray[Any]) -> None:
    """Save a column as a numpy file. Raises OSError with the system's error number if writing fails."""
    # numpy.save writes to a C stream: on a full disk it loses the error number, or truncates the file silently.
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
        file.write(np.ascontiguousarray(column).data)


def mapped(path: Path) -> Any:
    """Map a column as an array. Its pages are read on use."""
    # Copy on write: compiled code sees the same array type as for other traces, and compiles once.
    return np.load(path, mmap_mode="c", allow_pickle=False).view(np.ndarray)
