"""Reads what ``torch.cuda.memory._dump_snapshot`` wrote, gzipped or not, into traces. Executes nothing that is in the file.

The whole pickle is loaded (some 800 bytes an event) and turned into columns at once; ``read`` refuses what is larger than
its bounds. Format: "Understanding CUDA Memory Usage" in PyTorch's documentation, and the files of torch 2.11 and 2.13.
"""

from __future__ import annotations

import gc
import gzip
import io
import pickle
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from vramscope.window import ACTIONS, STATES, BadWindow
from vramscope_server.analysis.history import pickle_bounds
from vramscope_server.analysis.history.trace import Blocks, Events, Layout, Segments, Trace, checked, rows_of

MAX_BYTES: Final = 1 << 30
"""of the pickle, unpacked"""
MAX_EVENTS: Final = 20_000_000
MAX_BLOCKS: Final = 10_000_000
MAX_FRAMES: Final = 20_000_000
DEFAULT_POOL: Final = (0, 0)
_FIELDS: Final = {
    "the file": {"segments", "device_traces", "allocator_settings", "external_annotations"},
    "a segment": {
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
        "segment_pool_id", "is_expandable", "frames", "blocks",
    },
    "a block": {"address", "size", "requested_size", "state", "frames"},
    "an event": {
        "action", "addr", "device_free", "size", "stream", "time_us", "compile_context", "user_metadata", "frames",
        "forward_frames", "pool_id",
    },
}  # fmt: skip
"""Known here; others are named in the notes."""
_STATES: Final = {word: code for code, word in enumerate(STATES)} | {
    "active_awaiting_free": STATES.index("active_pending_free")
}


class BadSnapshot(ValueError):
    """This file is no snapshot of PyTorch's that can be read. Says why."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot file: one trace a device that was used."""

    devices: list[Trace]
    notes: list[str]
    """what a reader should know of the whole file"""


def read(source: Path | str | bytes, *, max_bytes: int = MAX_BYTES, max_events: int = MAX_EVENTS) -> Snapshot:
    """The snapshot in a file, or in its bytes. Raises BadSnapshot, or OSError where the file cannot be read.

    Pauses the garbage collector while it loads: a million events take a second so, and two and a half with it.
    """
    data = source if isinstance(source, bytes) else _bytes_of(Path(source), max_bytes)
    if data[:2] == b"\x1f\x8b":
        data = _unzipped(data, max_bytes)
    if len(data) > max_bytes:
        raise BadSnapshot(f"a snapshot of {len(data):,} bytes; up to {max_bytes:,} can be read")
    if not data:
        raise BadSnapshot("the file is empty")
    try:
        pickle_bounds.check(data)
    except pickle_bounds.Refused as refusal:
        raise BadSnapshot(str(refusal)) from None
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Reader(max_events).snapshot(_load(data))
    except BadWindow as fault:
        raise BadSnapshot(str(fault)) from None
    finally:
        if collecting:
            gc.enable()


def _bytes_of(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadSnapshot(f"a file of {path.stat().st_size:,} bytes; up to {max_bytes:,} can be read")
    return data


def _unzipped(data: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(max_bytes + 1)
    except EOFError:
        raise BadSnapshot("the file is cut off: its gzip stream has no end") from None
    except (OSError, zlib.error) as fault:
        raise BadSnapshot(f"damaged: {fault}") from None


class _Plain(pickle.Unpickler):
    """Makes plain objects only; a file that asks for anything else is refused, and says for what."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadSnapshot(f"the pickle asks for the global {module}.{name}; a snapshot has none. Nothing was executed.")

    def persistent_load(self, pid: Any) -> Any:
        raise BadSnapshot("the pickle asks for an object outside of it; a snapshot has none. Nothing was executed.")


def _load(data: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(data)).load()
    except BadSnapshot:
        raise
    except MemoryError:
        raise BadSnapshot("the snapshot is larger than this machine's memory") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
            ImportError, UnicodeError, RecursionError) as fault:  # fmt: skip
        raise BadSnapshot(f"the pickle is damaged: {fault}") from None


Rows = TypeVar("Rows", Events, Segments, Blocks)


class _Reader:
    """Plain objects into traces. Everything that the devices share, and what was met on the way."""

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.words: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: list[list[int]] = []
        self.stack_of: dict[int, int] = {}
        """id() of a list of frames, which events share -> stack. The lists live as long as the snapshot does."""
        self.stack_of_frames: dict[tuple[int, ...], int] = {}
        self.pools: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
        self.unknown: Counter[str] = Counter()
        self.frames_read = 0

    def snapshot(self, told: Any) -> Snapshot:
        if isinstance(told, list):  # torch.cuda.memory_snapshot() gives the segments alone
            told = {"segments": told}
        if not isinstance(told, dict) or "segments" not in told:
            raise BadSnapshot("no snapshot of PyTorch's: it is no dict with a key 'segments'")
        self._look("the file", [told])
        segments = _list(told["segments"], "segments")
        traces = _list(told.get("device_traces", []), "device_traces")
        settings = told.get("allocator_settings", {})
        if not isinstance(settings, dict):
            raise BadSnapshot("allocator_settings: no dict")
        if sum(len(_list(trace, "device_traces")) for trace in traces) > self.max_events:
            raise BadSnapshot(f"more than {self.max_events:,} events")
        on_device: dict[int, list[dict[str, Any]]] = {}
        for at, segment in enumerate(segments):
            if not isinstance(segment, dict):
                raise BadSnapshot(f"segments[{at}]: no dict")
            device = segment.get("device", 0)
            if type(device) is not int or not 0 <= device < 1024:
                raise BadSnapshot(f"segments[{at}].device: {device!r:.40}, where 0 to 1023 can be")
            on_device.setdefault(device, []).append(segment)
        used = sorted(set(on_device) | {device for device, trace in enumerate(traces) if trace})
        made = [
            self._device(device, on_device.get(device, []), traces[device] if device < len(traces) else [], settings)
            for device in used
        ]
        notes = [f"{name}: not known here, left out ({times:,} times)" for name, times in sorted(self.unknown.items())]
        if not made:
            raise BadSnapshot("the snapshot is empty: no device had a segment or an event")
        return Snapshot(made, notes)

    def _device(self, device: int, segments: list[Any], trace: list[Any], settings: dict[str, Any]) -> Trace:
        layout = self._layout(segments)
        events = self._events(trace)
        newer = "max_round_threshold" in settings or any("pool_id" in entry for entry in trace[:1])
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
            pools=list(self.pools), modules=[], words=list(self.words),
            frames=dict(zip(("file", "line", "function"), self._frame_columns(), strict=True)),
            stacks=self.stacks, notes=notes,
        )  # fmt: skip

    # ---- columns ----

    def _layout(self, segments: list[dict[str, Any]]) -> Layout:
        self._look("a segment", segments)
        blocks = [_list(segment.get("blocks"), "blocks of a segment") for segment in segments]
        if sum(map(len, blocks)) > MAX_BLOCKS:
            raise BadSnapshot(f"more than {MAX_BLOCKS:,} blocks")
        address = _numbers(segments, "address", "a segment")
        order = np.argsort(address, kind="stable")
        segments, blocks = [segments[at] for at in order], [blocks[at] for at in order]
        kinds = [segment.get("segment_type") for segment in segments]
        if strange := [kind for kind in kinds if kind not in ("small", "large")]:
            raise BadSnapshot(f"segment_type of a segment: {strange[0]!r:.40}, where small or large can be")
        rows = {
            "address": address[order],
            "size_bytes": _numbers(segments, "total_size", "a segment"),
            "stream": _numbers(segments, "stream", "a segment", 0),
            "large": np.array([kind == "large" for kind in kinds], np.int64),
            "expandable": np.array([bool(segment.get("is_expandable", False)) for segment in segments], np.int64),
            "pool": np.array(
                [self._pool(segment.get("segment_pool_id", DEFAULT_POOL)) for segment in segments], np.int64
            ),
        }
        flat: list[Any] = [block for inside in blocks for block in inside]
        self._look("a block", flat)
        states = [_STATES.get(word) if type(word := block.get("state")) is str else None for block in flat]
        if None in states:
            raise BadSnapshot(
                f"state of a block: {flat[states.index(None)].get('state')!r:.40}, where one of {STATES} can be"
            )
        size = _numbers(flat, "size", "a block")
        lengths = np.array([len(inside) for inside in blocks], np.int64)
        home = np.repeat(np.arange(len(segments)), lengths)
        # Older versions give no address of a block: blocks fill their segment in order.
        before = np.cumsum(size) - size
        first = np.cumsum(lengths) - lengths
        begun = before[np.minimum(first, max(len(size) - 1, 0))] if len(size) else np.zeros(len(segments), np.int64)
        place = rows["address"][home] + before - begun[home]
        told = {
            "segment": home,
            "address": place,
            "size_bytes": size,
            "requested_bytes": _numbers(flat, "requested_size", "a block", -1),
            "state": np.array(states, np.int64),
            "stack": self._stacks(flat),
        }
        unknown = told["requested_bytes"] < 0
        told["requested_bytes"][unknown] = size[unknown]
        return checked(Layout(rows_of(Segments, rows), rows_of(Blocks, told)), "snapshot")

    def _events(self, trace: list[Any]) -> Events:
        self._look("an event", trace)
        codes = {word: code for code, word in enumerate(ACTIONS)}
        action = [entry.get("action") for entry in trace]
        if strange := [word for word in action if type(word) is not str]:
            raise BadSnapshot(f"action of an event: {strange[0]!r:.40}, where a word can be")
        if foreign := Counter(word for word in action if word not in codes):
            self.unknown.update({f"the action {word:.40}": times for word, times in foreign.items()})
            trace = [entry for entry in trace if entry["action"] in codes]
            action = [entry["action"] for entry in trace]
        kind = np.array([codes[word] for word in action], np.int64)
        place = "device_free", "addr"
        rows = {
            "action": kind,
            "address": _integers([e.get(place[1], e.get(place[0])) for e in trace], "addr of an event"),
            "size_bytes": _numbers(trace, "size", "an event"),
            "stream": _numbers(trace, "stream", "an event", 0),
            "time_ns": _numbers(trace, "time_us", "an event", -1),
            "pool": np.array([self._pool(entry.get("pool_id")) for entry in trace], np.int64),
            "stack": self._stacks(trace),
        }
        timed = rows["time_ns"] >= 0
        if np.any(rows["time_ns"] > (1 << 62) // 1000):
            raise BadSnapshot("time_us of an event: later than can be")
        rows["time_ns"][timed] *= 1000
        if np.any(rows["size_bytes"] < 0) or np.any(rows["address"] < 0):
            raise BadSnapshot("an event: its size or address is below 0")
        unknown = np.full(len(trace), -1)
        return rows_of(Events, {**rows, **dict.fromkeys(("step", "phase", "module"), unknown)})

    def _frame_columns(self) -> Any:
        return np.array(list(self.frames), np.int32).reshape(-1, 3).T

    def _pool(self, told: Any) -> int:
        """-1: not told (PyTorch up to 2.12)."""
        if told is None:
            return -1
        if not (isinstance(told, (tuple, list)) and len(told) == 2 and all(type(part) is int for part in told)):
            raise BadSnapshot(f"the id of a pool: {told!r:.40}, where two whole numbers can be")
        return self.pools.setdefault((told[0], told[1]), len(self.pools))

    def _stacks(self, rows: list[dict[str, Any]]) -> Any:
        return np.array([self._stack(row.get("frames")) for row in rows], np.int64)

    def _stack(self, frames: Any) -> int:
        if not frames:
            return -1
        known = self.stack_of.get(id(frames))
        if known is not None:
            return known
        self.frames_read += len(_list(frames, "frames"))
        if self.frames_read > MAX_FRAMES:
            raise BadSnapshot(f"more than {MAX_FRAMES:,} frames")
        positions = tuple(self._frame(frame) for frame in frames)
        stack = self.stack_of_frames.setdefault(positions, len(self.stacks))
        if stack == len(self.stacks):
            self.stacks.append(list(positions))
        self.stack_of[id(frames)] = stack
        return stack

    def _frame(self, frame: Any) -> int:
        if not isinstance(frame, dict):
            raise BadSnapshot("frames: a frame that is no dict")
        line = frame.get("line", 0)
        file, function = (self._word(frame.get(key, "")) for key in ("filename", "name"))
        key = (file, line if type(line) is int and 0 <= line < 1 << 31 else 0, function)
        return self.frames.setdefault(key, len(self.frames))

    def _word(self, word: Any) -> int:
        return self.words.setdefault(word if type(word) is str else "", len(self.words))

    def _look(self, what: str, rows: Sequence[Any]) -> None:
        """Raises BadSnapshot where a row is no dict; counts the fields that are not known here."""
        known = _FIELDS[what]
        for row in rows:
            if type(row) is not dict:
                raise BadSnapshot(f"{what}: no dict")
            if not row.keys() <= known:
                self.unknown.update(f"the field {key!s:.40} of {what}" for key in row.keys() - known)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadSnapshot(f"{name}: no list")
    return value


def _numbers(rows: list[Any], key: str, where: str, absent: int | None = None) -> Any:
    return _integers([row.get(key, absent) for row in rows], f"{key} of {where}")


def _integers(values: list[Any], name: str) -> Any:
    """An int64 array. Raises BadSnapshot where a value is no whole number of 63 bits, or is missing."""
    if not values:
        return np.empty(0, np.int64)
    try:
        column = np.array(values)
    except (ValueError, OverflowError):
        column = np.empty(0, object)
    if column.dtype.kind not in "iu" or column.ndim != 1 or column.dtype == np.uint64:
        wrong = next((v for v in values if type(v) is not int or not -(1 << 63) <= v < 1 << 63), values[0])
        said = "missing" if wrong is None else f"{wrong!r:.40}"
        raise BadSnapshot(f"{name}: {said}, where a whole number can be")
    return column.astype(np.int64)
