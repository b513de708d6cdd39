"""Reads files of ``torch.cuda.memory._dump_snapshot``, gzipped or not, into traces. It executes nothing in the file.

The vramscope pickle interpreter (``pickle_vm/machine.py``) reads the file as a stream and writes columns instead of objects.
It takes up to about 110 bytes of memory per event, and half a second per million events. The format is described in PyTorch's
documentation ("Understanding CUDA Memory Usage"), and was checked with files of torch 2.11 and 2.13.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from vramscope.protocol.window import BadWindow
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.number_format import times
from vramscope_server.analysis.simulator.timed_settings import in_words
from vramscope_server.analysis.snapshot_format import stream
from vramscope_server.analysis.snapshot_format.event_columns import events_of, known_events
from vramscope_server.analysis.snapshot_format.items import NOUNS, Items, is_dict, is_list
from vramscope_server.analysis.snapshot_format.odd_values import OddValues
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    ANNOTATION,
    ANNOTATIONS,
    BEYOND_KIND,
    EVENTS,
    LABELS,
    NEW,
    POOLS,
    SEGMENT,
    STACKS,
    UNKNOWN,
    WORD_NUMBER,
    Tables,
    words_of,
)
from vramscope_server.analysis.snapshot_format.segment_layout import layout_of
from vramscope_server.analysis.snapshot_format.stream import BadSnapshot, Progress
from vramscope_server.analysis.trace.annotations import Annotations, annotations_of
from vramscope_server.analysis.trace.counting_sort import distinct
from vramscope_server.analysis.trace.event_pools import pools_at
from vramscope_server.analysis.trace.forward_stacks import with_texts
from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Events, Ids

__all__ = ["BadSnapshot", "Progress", "Snapshot", "read"]

MAX_BYTES: Final = 16 << 30
"""Maximum size of the unpacked pickle."""
MAX_EVENTS: Final = 100_000_000
MAX_SEGMENTS: Final = 10_000_000
MAX_MEMORY_BYTES: Final = min(16 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
"""Maximum memory while reading: enough for 100 million events, or half of the machine's memory if that is less."""
_FILE_FIELDS: Final = {"segments", "device_traces", "allocator_settings", "external_annotations"}
_HOST_FIELDS: Final = {"host_segments", "host_traces"}
"""Pinned host memory, from PyTorch 2.15 on. It is not shown."""
_LABELS: Final = {
    "user_metadata": "user_metadata", "compile_context": "compile_context", "forward_frames": "forward_stack",
}  # fmt: skip
"""Optional fields of events, and the columns of trace.LABELS to which they are converted."""


@dataclass(frozen=True)
class Snapshot:
    """Contents of a snapshot file: one trace per used device."""

    devices: list[Trace]
    notes: list[str]
    """Notes on the whole file."""


def read(
    source: Path | str | bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_events: int = MAX_EVENTS,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Snapshot:
    """Read a snapshot from a file, or from its bytes. Raises BadSnapshot, or OSError if the file cannot be opened.

    progress   called with (bytes read, bytes in total) every few MiB; an exception in it ends the reading
    """
    tables, item = stream.run(
        source if isinstance(source, bytes) else Path(source),
        max_bytes=max_bytes,
        max_table_bytes=max_memory_bytes,
        progress=progress,
    )
    try:
        return _Converter(tables, max_events).convert(item)
    except BadWindow as fault:
        raise BadSnapshot(str(fault)) from None
    except MemoryError:
        raise BadSnapshot("the snapshot is larger than this machine's memory") from None


class _Converter:
    """Converts the tables of a file to traces."""

    def __init__(self, tables: Tables, max_events: int) -> None:
        self.tables = tables
        self.max_events = max_events
        self.odd = OddValues()
        count = tables.count
        self.pools = [(int(first), int(second)) for first, second in tables.pools[: count[POOLS]]]
        self.items = Items(tables)
        self.stacks = _stacks(tables.flat, tables.stacks[: count[STACKS]])
        self.labels = tables.labels[: count[LABELS]]
        frames = tables.frames[: int(self.stacks.flat.max(initial=-1)) + 1]
        label_words = self.labels[self.labels[:, 1] != WORD_NUMBER["forward_frames"], 2]
        names = tables.annotations[: count[ANNOTATIONS], 3]
        self.used = distinct(np.concatenate([frames[:, 0], frames[:, 2], label_words, names[names >= 0]]))
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

    def _word(self, numbers: IntArray) -> Any:
        """Return the positions in ``words`` of these word numbers of the tables."""
        return np.searchsorted(self.used, numbers).astype(np.int32)

    def convert(self, item: int) -> Snapshot:
        file = self._file(item)
        settings = file.get("allocator_settings")
        in_force: Any = {} if settings is None else self.items.plain_dict(settings, "allocator_settings")
        segments = self.items.of_kind(
            self.items.inside(file["segments"], "segments", MAX_SEGMENTS), SEGMENT, "segments"
        )
        traces = self.items.event_lists(file["device_traces"], self.max_events) if "device_traces" in file else []
        self.annotations = self._annotations(file.get("external_annotations"))
        rows = self.tables.segments[segments]
        used = sorted({*rows[:, 0].tolist(), *(device for device, rows in enumerate(traces) if len(rows))})
        made = [
            self._device(
                device, rows[rows[:, 0] == device], traces[device] if device < len(traces) else range(0), in_force
            )
            for device in used
        ]
        if not made:
            raise BadSnapshot("the snapshot is empty: no device had a segment or an event")
        return Snapshot(made, self._notes(file))

    def _file(self, item: int) -> dict[str, int]:
        """Return the items of the file by name."""
        if is_list(item):  # torch.cuda.memory_snapshot() returns only the segments
            codes = self.items.inside(item, "segments", MAX_SEGMENTS)
            if len(codes) and not len(self.items.kept(codes, SEGMENT)):
                raise BadSnapshot("not a PyTorch snapshot: it is a list, and nothing in it is a segment")
            return {"segments": item}
        file = self.items.pairs(item) if is_dict(item) else {}
        if "segments" not in file:
            raise BadSnapshot("not a PyTorch snapshot: it is no dict with a key 'segments'")
        return file

    def _device(self, device: int, segments: Any, rows: range | IntArray, settings: dict[str, Any]) -> Trace:
        layout = layout_of(segments, self.tables, self.items, self.odd)
        which = known_events(rows, self.tables, self.odd)
        events, has_pools = events_of(which, self.tables, self.odd)
        events = replace(events, pool=pools_at(events.pool, events.action, events.address, layout.segments))
        newer = "max_round_threshold" in settings or has_pools
        notes = [
            "A snapshot file does not contain PyTorch's version. Its fields are those of PyTorch "
            + ("2.13 or newer." if newer else "2.12 or older.")
        ]
        if not len(events):
            notes.insert(
                0, "There is no history in the file: record one with torch.cuda.memory._record_memory_history()."
            )
        raw = settings.get("PYTORCH_CUDA_ALLOC_CONF", settings.get("PYTORCH_ALLOC_CONF"))
        return Trace(
            device=device, device_name="", device_total_bytes=None, device_free_bytes=None, limit_bytes=None,
            torch="2.13 or newer" if newer else "2.12 or older", cuda=None, backend="native",
            settings=raw if isinstance(raw, str) else "", settings_in_force=in_words(settings), reason="snapshot file",
            first_step=-1, last_step=-1, start=None, end=layout, events=events, lost_events=None,
            pools=self.pools, modules=[], words=self.words, frames=self.frames, stacks=self.stacks, notes=notes,
            labels=self._labels_of(which), annotations=self._annotations_of(device, events),
        )  # fmt: skip

    def _labels_of(self, which: Any) -> dict[str, Ids]:
        """Return the columns of trace.LABELS that at least one of these events has."""
        if not len(self.labels):
            return {}
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

    def _annotations(self, item: int | None) -> IntArray:
        """Return the rows of the file's annotations. Other items in the list, and incomplete ones, are left out."""
        rows: Any = []
        if item is not None and is_list(item):
            rows = self.items.kept(self.items.inside(item, "external_annotations", MAX_EVENTS), ANNOTATION)
        found: IntArray = self.tables.annotations[np.asarray(rows, np.int64)]
        return found[(found >= 0).all(axis=1)]

    def _annotations_of(self, device: int, events: Events) -> Annotations:
        own = self.annotations[self.annotations[:, 1] == device]
        return annotations_of(own[:, 0], own[:, 2], self._word(own[:, 3]), events.time_ns)

    def _notes(self, file: dict[str, int]) -> list[str]:
        found = {f"the field {key:.40} of the file": 1 for key in file.keys() - _FILE_FIELDS - _HOST_FIELDS}
        for kind, word, often in self.tables.unknown[: self.tables.count[UNKNOWN]].tolist():
            text = f"{words_of(self.tables, [word])[0]:.40}"
            if kind > BEYOND_KIND:
                self.odd.out_of_range(text, kind - BEYOND_KIND, often)
            else:
                found[f"the action {text}" if kind == NEW else f"the field {text} of {NOUNS[kind]}"] = often
        return [
            *(f"{name}: unknown to this version, left out ({times(often)})" for name, often in sorted(found.items())),
            *self.odd.lines(),
        ]


def _stacks(flat: Any, rows: Any) -> Stacks:
    """Return the stacks with their frames in one array without gaps."""
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
