"""Reads what ``torch.cuda.memory._dump_snapshot`` wrote, gzipped or not, into traces. Executes nothing that is in the file.

The file is read as a stream by a machine of our own (``snapshot_stream``), which writes columns in place of objects: some
110 bytes an event at its peak, and half a second for a million of them. Format: "Understanding CUDA Memory Usage" in
PyTorch's documentation, and the files of torch 2.11 and 2.13.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.window import ACTIONS, BadWindow
from vramscope_server.analysis.compiled import entry
from vramscope_server.analysis.history import snapshot_stream
from vramscope_server.analysis.history.annotations import Annotations, annotations_of
from vramscope_server.analysis.history.forward_stacks import with_texts
from vramscope_server.analysis.history.pickle_tables import (
    ANNOTATION,
    ANNOTATIONS,
    BLOCK,
    EVENTS,
    LABELS,
    MISSING,
    NEW,
    POOLS,
    SEGMENT,
    STACKS,
    UNKNOWN,
    WORD_NUMBER,
    Tables,
    words_of,
)  # fmt: skip
from vramscope_server.analysis.history.snapshot_items import NOUNS, Items, flattened, is_dict, is_list
from vramscope_server.analysis.history.snapshot_stream import BadSnapshot, Progress
from vramscope_server.analysis.history.stacks import Stacks
from vramscope_server.analysis.history.trace import (
    MAX_ADDRESS,
    Blocks,
    Events,
    Layout,
    Segments,
    Trace,
    checked,
    rows_of,
)

__all__ = ["BadSnapshot", "Progress", "Snapshot", "read"]

MAX_BYTES: Final = 16 << 30
"""of the pickle, unpacked"""
MAX_EVENTS: Final = 100_000_000
MAX_SEGMENTS: Final = 10_000_000
MAX_MEMORY_BYTES: Final = min(16 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
"""of what is kept while it is read: as much as 100 million events take, or half of the machine's where that is less"""
_FILE_FIELDS: Final = {"segments", "device_traces", "allocator_settings", "external_annotations"}
_HOST_FIELDS: Final = {"host_segments", "host_traces"}
"""from PyTorch 2.15 on: pinned memory of the host, which is no part of what is shown"""
_LABELS: Final = {
    "user_metadata": "user_metadata", "compile_context": "compile_context", "forward_frames": "forward_stack",
}  # fmt: skip
"""Fields of events that few have, and the columns of trace.LABELS that they become."""
_FOREIGN_ACTION: Final = 255
_OOM: Final = ACTIONS.index("oom")
MOST: Final = {"addr": MAX_ADDRESS, "size": 1 << 50}
"""of an event: beyond them sums would be wrong"""
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot file: one trace a device that was used."""

    devices: list[Trace]
    notes: list[str]
    """what a reader should know of the whole file"""


def read(
    source: Path | str | bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_events: int = MAX_EVENTS,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Snapshot:
    """The snapshot in a file, or in its bytes. Raises BadSnapshot, or OSError where the file cannot be read.

    progress   called with (bytes read, bytes in all) every few MiB; what it raises ends the reading
    """
    tables, item = snapshot_stream.run(
        source if isinstance(source, bytes) else Path(source),
        max_bytes=max_bytes,
        max_table_bytes=max_memory_bytes,
        progress=progress,
    )
    try:
        return _Snapshot(tables, max_events).made(item)
    except BadWindow as fault:
        raise BadSnapshot(str(fault)) from None
    except MemoryError:
        raise BadSnapshot("the snapshot is larger than this machine's memory") from None


class _Snapshot:
    """Tables into traces."""

    def __init__(self, tables: Tables, max_events: int) -> None:
        self.tables = tables
        self.max_events = max_events
        count = tables.count
        self.pools = [(int(first), int(second)) for first, second in tables.pools[: count[POOLS]]]
        self.items = Items(tables)
        self.stacks = _stacks(tables.flat, tables.stacks[: count[STACKS]])
        self.labels = tables.labels[: count[LABELS]]
        frames = tables.frames[: int(self.stacks.flat.max(initial=-1)) + 1]
        said = self.labels[self.labels[:, 1] != WORD_NUMBER["forward_frames"], 2]
        names = tables.annotations[: count[ANNOTATIONS], 3]
        self.used = np.unique(np.concatenate([frames[:, 0], frames[:, 2], said, names[names >= 0]]))
        self.words = words_of(tables, self.used)
        self.frames = {
            "file": self._word(frames[:, 0]),
            "line": frames[:, 1].copy(),
            "function": self._word(frames[:, 2]),
        }
        self.lists = np.unique(self.labels[self.labels[:, 1] == WORD_NUMBER["forward_frames"], 2])
        texts = (self.items.words(row) for row in self.lists.tolist())
        self.stacks, self.frames, places = with_texts(self.stacks, self.frames, self.words, texts)
        self.of_list = np.array(places, np.int32)

    def _word(self, numbers: Whole) -> Any:
        """Positions in ``words`` of words by their numbers in the tables."""
        return np.searchsorted(self.used, numbers).astype(np.int32)

    def made(self, item: int) -> Snapshot:
        file = self._file(item)
        settings = file.get("allocator_settings")
        told: Any = {} if settings is None else self.items.plain_dict(settings, "allocator_settings")
        segments = self.items.of_kind(
            self.items.inside(file["segments"], "segments", MAX_SEGMENTS), SEGMENT, "segments"
        )
        traces = self.items.event_lists(file["device_traces"], self.max_events) if "device_traces" in file else []
        self.annotations = self._annotations(file.get("external_annotations"))
        rows = self.tables.segments[segments]
        used = sorted({*rows[:, 0].tolist(), *(device for device, rows in enumerate(traces) if len(rows))})
        made = [
            self._device(device, rows[rows[:, 0] == device], traces[device] if device < len(traces) else range(0), told)
            for device in used
        ]
        if not made:
            raise BadSnapshot("the snapshot is empty: no device had a segment or an event")
        return Snapshot(made, self._notes(file))

    def _file(self, item: int) -> dict[str, int]:
        """The items of the whole."""
        if is_list(item):  # torch.cuda.memory_snapshot() gives the segments alone
            codes = self.items.inside(item, "segments", MAX_SEGMENTS)
            if len(codes) and not len(self.items.kept(codes, SEGMENT)):
                raise BadSnapshot("no snapshot of PyTorch's: a list, and nothing in it is a segment")
            return {"segments": item}
        file = self.items.pairs(item) if is_dict(item) else {}
        if "segments" not in file:
            raise BadSnapshot("no snapshot of PyTorch's: it is no dict with a key 'segments'")
        return file

    def _device(self, device: int, segments: Any, rows: range | Whole, settings: dict[str, Any]) -> Trace:
        layout = self._layout(segments)
        events, has_pools = self._columns(rows)
        newer = "max_round_threshold" in settings or has_pools
        notes = [
            "A snapshot file does not tell PyTorch's version; its fields are those of "
            + ("2.13 or newer." if newer else "2.12 or older.")
        ]
        if not len(events):
            notes.append("There is no history in the file: record one with torch.cuda.memory._record_memory_history().")
        raw = settings.get("PYTORCH_CUDA_ALLOC_CONF", settings.get("PYTORCH_ALLOC_CONF"))
        plain = {key: value for key, value in settings.items() if type(value) in (int, float, bool, str)}
        return Trace(
            device=device, device_name="", device_total_bytes=None, device_free_bytes=None, limit_bytes=None,
            torch="2.13" if newer else "2.11", cuda=None, backend="native",
            settings=raw if isinstance(raw, str) else "", settings_in_force=plain, reason="snapshot file",
            first_step=-1, last_step=-1, start=None, end=layout, events=events, lost_events=None,
            pools=self.pools, modules=[], words=self.words, frames=self.frames, stacks=self.stacks, notes=notes,
            labels=self._labels_of(rows), annotations=self._annotations_of(device, events),
        )  # fmt: skip

    def _layout(self, segments: Any) -> Layout:
        segments = segments[np.argsort(segments[:, 1], kind="stable")]
        for at, field in ((1, "address"), (2, "total_size"), (4, "segment_type"), (7, "blocks")):
            if len(segments) and segments[:, at].min() == (-1 if at == 7 else MISSING):
                raise BadSnapshot(f"{field} of a segment: missing")
        if len(segments) and (int(segments[:, 1].max()) > MAX_ADDRESS or int(segments[:, 2].max()) > MOST["size"]):
            raise BadSnapshot("address or total_size of a segment: more than there can be")
        codes, lengths = flattened(self.tables.lists, self.tables.runs, segments[:, 7])
        blocks = self.tables.blocks[self.items.of_kind(codes, BLOCK, "a block")]
        if len(blocks) and blocks[:, 1].min() == MISSING:
            raise BadSnapshot("size of a block: missing, where a whole number can be")
        size = blocks[:, 1]
        home = np.repeat(np.arange(len(segments)), lengths)
        # Older versions give no address of a block: blocks fill their segment in order.
        before = np.cumsum(size) - size
        first = np.cumsum(lengths) - lengths
        begun = before[np.minimum(first, max(len(size) - 1, 0))] if len(size) else np.zeros(len(segments), np.int64)
        rows = {
            "address": segments[:, 1], "size_bytes": segments[:, 2], "stream": segments[:, 3], "large": segments[:, 4],
            "expandable": segments[:, 6], "pool": segments[:, 5],
        }  # fmt: skip
        told = {
            "segment": home,
            "address": rows["address"][home] + before - begun[home],
            "size_bytes": size,
            "requested_bytes": np.where(blocks[:, 2] < 0, size, blocks[:, 2]),
            "state": blocks[:, 3],
            "stack": blocks[:, 4],
        }
        return checked(Layout(rows_of(Segments, rows), rows_of(Blocks, told)), "snapshot")

    def _columns(self, rows: range | Whole) -> tuple[Events, bool]:
        """The events of one device, and whether they tell of pools. Rows that follow each other are not copied."""
        tables, which = self.tables, self._known(rows)
        told: dict[str, Any] = {
            name: getattr(tables, "stack_of" if name == "stack" else name)[which]
            for name in ("action", "address", "size_bytes", "stream", "time_ns", "pool", "stack")
        }
        for name, field in (("address", "addr"), ("size_bytes", "size")):
            if not len(told[name]):
                continue
            if told[name].min() == MISSING:
                raise BadSnapshot(f"{field} of an event: missing, where a whole number can be")
            too_large = (told[name] > MOST[field]) & (told["action"] != _OOM)  # a program may ask for any size
            if too_large.any():
                raise BadSnapshot(f"{field} of an event: {int(told[name][too_large][0]):,}, more than there can be")
        if told["size_bytes"].sum(where=told["action"] != _OOM, dtype=np.float64) > MAX_ADDRESS:
            raise BadSnapshot("size of the events: more together than can be counted")
        count = len(told["action"])
        unknown: dict[str, Any] = {"step": np.full(count, -1, np.int32), "phase": np.full(count, -1, np.int8)}
        events = Events(**told, **unknown, module=np.full(count, -1, np.int32))
        return events, bool(count and told["pool"][0] >= 0)

    def _known(self, rows: range | Whole) -> Any:
        """Those of these events whose actions are known here; a slice where all are and follow each other."""
        which: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        if len(foreign := np.flatnonzero(self.tables.action[which] == _FOREIGN_ACTION)):
            which = np.delete(np.arange(len(self.tables.action))[which], foreign)
        return which

    def _labels_of(self, rows: range | Whole) -> dict[str, Any]:
        """Columns of trace.LABELS, as far as any of these events has one."""
        if not len(self.labels) or not len(rows):
            return {}
        which = self._known(rows)
        found = {}
        for field, name in _LABELS.items():
            row, _, number = self.labels[self.labels[:, 1] == WORD_NUMBER[field]].T
            of_event = np.full(self.tables.count[EVENTS], -1, np.int32)
            of_event[row] = (
                self.of_list[np.searchsorted(self.lists, number)] if name == "forward_stack" else self._word(number)
            )
            if (of_event[which] >= 0).any():
                found[name] = of_event[which]
        return found

    def _annotations(self, item: int | None) -> Whole:
        """Rows of the tables that the file tells as its own; other things among them are left out."""
        rows: Any = []
        if item is not None and is_list(item):
            rows = self.items.kept(self.items.inside(item, "external_annotations", MAX_EVENTS), ANNOTATION)
        told: Whole = self.tables.annotations[np.asarray(rows, np.int64)]
        return told[(told >= 0).all(axis=1)]

    def _annotations_of(self, device: int, events: Events) -> Annotations:
        told = self.annotations[self.annotations[:, 1] == device]
        return annotations_of(told[:, 0], told[:, 2], self._word(told[:, 3]), events.time_ns)

    def _notes(self, file: dict[str, int]) -> list[str]:
        found = {f"the field {key:.40} of the file": 1 for key in file.keys() - _FILE_FIELDS - _HOST_FIELDS}
        for kind, word, times in self.tables.unknown[: self.tables.count[UNKNOWN]].tolist():
            said = f"{words_of(self.tables, [word])[0]:.40}"
            found[f"the action {said}" if kind == NEW else f"the field {said} of {NOUNS[kind]}"] = times
        return [f"{name}: not known here, left out ({times:,} times)" for name, times in sorted(found.items())]


def _stacks(flat: Any, rows: Any) -> Stacks:
    """Stacks without what lies between them."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(rows[:, 1], out=offsets[1:])
    return Stacks(_gathered(flat, rows, int(offsets[-1])), offsets)


@entry
def _gathered(flat: Any, rows: Any, size: int) -> Any:
    found = np.empty(size, np.int32)
    at = 0
    for row in range(len(rows)):
        for frame in range(rows[row, 0], rows[row, 0] + rows[row, 1]):
            found[at] = flat[frame]
            at += 1
    return found
