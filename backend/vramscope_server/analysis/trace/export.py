"""Exports events and allocations of a window: CSV, Parquet, and Perfetto's JSON.

All formats are written in parts, so a window of any size takes little memory.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.spreadsheet_text import csv_cell
from vramscope_server.analysis.timeline.axis_spans import every_span
from vramscope_server.analysis.timeline.curve import allocation_curve

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

COLUMNS: Final = (
    "event", "time_ns", "action", "address", "size_bytes", "stream", "pool", "step", "phase", "module", "stack",
    "user_metadata", "compile_context",
)  # fmt: skip
MAX_SLICES: Final = 20_000
"""Maximum number of allocations that are drawn for Perfetto: the largest by bytes times events. Counters include all."""
_ROWS: Final = 20_000
_OOM: Final = ACTIONS.index("oom")


def as_csv(trace: Trace, first: int, end: int) -> Iterator[bytes]:
    """Yield events from ``first`` to below ``end`` as CSV. Unknown is empty; frames are joined by ``;``, innermost first."""
    yield (",".join(COLUMNS) + "\r\n").encode()
    for low in range(first, end, _ROWS):
        out = io.StringIO()
        rows = _rows(trace, low, min(low + _ROWS, end))
        columns = [[csv_cell(value) for value in rows[name]] for name in COLUMNS]
        csv.writer(out, lineterminator="\r\n").writerows(zip(*columns, strict=True))
        yield out.getvalue().encode()


def can_write_parquet() -> bool:
    """Whether pyarrow is installed. Does not import it."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(trace: Trace, first: int, end: int, file: Any) -> None:
    """Write events as Parquet; unknown is null. Raises ImportError if pyarrow is not installed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = pa.dictionary(pa.int32(), pa.string())
    types = {name: pa.int64() for name in ("event", "time_ns", "size_bytes", "stream", "step")}
    types["address"] = pa.uint64()
    schema = pa.schema([(name, types.get(name, words)) for name in COLUMNS])
    with pq.ParquetWriter(file, schema) as writer:
        for low in range(first, max(end, first + 1), 10 * _ROWS):
            rows = _rows(trace, low, max(low, min(low + 10 * _ROWS, end)))
            columns = [pa.array(rows[field.name], pa.string()).dictionary_encode() if field.type == words
                       else pa.array(rows[field.name], field.type) for field in schema]  # fmt: skip
            writer.write_table(pa.table(columns, schema=schema))


def as_perfetto(trace: Trace, first: int, end: int) -> Iterator[bytes]:
    """Yield Chrome's trace format: counters of allocated and reserved bytes, ranges of steps, phases, modules and annotations,
    and the largest allocations as slices.

    Times are microseconds since the first event, or event numbers if times are unknown. Omissions are listed in ``otherData``
    and next to the process's name.
    """
    curve, events, lives = allocation_curve(trace), trace.events, trace.lives
    at = _microseconds(trace)
    slices = _largest(trace, first, end)
    overlapping = int(np.count_nonzero((lives.alloc_event < end) & (lives.free_requested_event >= first)))
    left_out = {"allocations not drawn": overlapping - len(slices)} if overlapping > len(slices) else {}
    other_data = {
        "device": trace.device, "settings": trace.parsed_settings[0].text, "events": end - first, "allocations": overlapping,
        "allocations drawn": len(slices), "clock": "time" if len(events) and events.time_ns[0] >= 0 else "events", **left_out,
    }  # fmt: skip
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other_data)},"traceEvents":[\n'.encode()
    name = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"CUDA allocator, device {trace.device}"}}
    yield json.dumps(name).encode()
    if left_out:  # shown next to the name
        labels = "; ".join(f"{what}: {count}" for what, count in left_out.items())
        yield b",\n" + json.dumps({"ph": "M", "pid": 1, "name": "process_labels", "args": {"labels": labels}}).encode()
    for track, (lane, span_name, low, high) in every_span(trace, first, end):
        row = {
            "ph": "X",
            "pid": 1,
            "tid": track,
            "name": f"{lane} {span_name}",
            "ts": at[low],
            "dur": at[high] - at[low],
        }
        yield b",\n" + json.dumps(row, default=float).encode()
    for row_at in slices.tolist():
        began = at[max(int(lives.alloc_event[row_at]), first)]
        ended = at[min(int(lives.free_requested_event[row_at]), end)]
        stack = _stack_text(trace, int(lives.stack[row_at]))
        about = {
            "bytes": int(lives.size_bytes[row_at]), "asked for": int(lives.requested_bytes[row_at]),
            "address": hex(int(lives.address[row_at]) % (1 << 64)), "stack": stack,
        }  # fmt: skip
        label = stack.partition(";")[0] or "no stack"
        common = {"pid": 1, "cat": "allocation", "id": row_at, "name": label}
        for phase, moment, more in (("b", began, {"args": about}), ("e", ended, {})):
            yield b",\n" + json.dumps({"ph": phase, "ts": moment, **common, **more}, default=float).encode()
    # A counter is drawn where it changes.
    values = np.stack([curve.allocated[first + 1 : end + 1], curve.reserved[first + 1 : end + 1]])
    changed = np.flatnonzero(np.any(np.diff(values, axis=1, prepend=-1) != 0, axis=0))
    for low in range(0, len(changed), _ROWS):
        part = changed[low : low + _ROWS]
        rows = zip(at[first + part].tolist(), values[0, part].tolist(), values[1, part].tolist(), strict=True)
        yield b"".join(
            b',\n{"ph":"C","pid":1,"name":"bytes","ts":%g,"args":{"allocated":%d,"free in reserved":%d}}'
            % (moment, allocated, max(reserved - allocated, 0))
            for moment, allocated, reserved in rows
        )
    yield b"\n]}\n"


def _microseconds(trace: Trace) -> Any:
    """Time of each event and one after the last, never falling."""
    time = trace.events.time_ns
    if not len(time) or int(time.min()) < 0:
        return np.arange(len(time) + 1, dtype=np.float64)
    rising = np.maximum.accumulate(time - time[0]) / 1000
    return np.append(rising, rising[-1] + 1)


def _largest(trace: Trace, first: int, end: int) -> Any:
    lives = trace.lives
    inside = np.flatnonzero((lives.alloc_event < end) & (lives.free_requested_event >= first))
    if len(inside) <= MAX_SLICES:
        return inside
    duration = np.minimum(lives.free_requested_event[inside], end) - np.maximum(lives.alloc_event[inside], first)
    area = lives.size_bytes[inside].astype(np.float64) * np.maximum(duration, 1)
    return np.sort(inside[np.argpartition(area, -MAX_SLICES)[-MAX_SLICES:]])


def _rows(trace: Trace, low: int, high: int) -> dict[str, list[Any]]:
    """Columns of some events as plain values; None if unknown."""
    events = trace.events
    stacks = {code: _stack_text(trace, code) for code in np.unique(events.stack[low:high]).tolist()}
    pools = {at: f"{first},{second}" for at, (first, second) in enumerate(trace.pools)}

    def known(column: Any) -> list[Any]:
        return [value if value >= 0 else None for value in column[low:high].tolist()]

    return {
        "event": list(range(low, high)),
        "time_ns": known(events.time_ns),
        "action": [ACTIONS[code] for code in events.action[low:high].tolist()],
        "address": _addresses(events.action[low:high], events.address[low:high]),
        "size_bytes": events.size_bytes[low:high].tolist(),
        "stream": events.stream[low:high].tolist(),
        "pool": [pools.get(code) for code in events.pool[low:high].tolist()],
        "step": known(events.step),
        "phase": [PHASES[code] if code >= 0 else None for code in events.phase[low:high].tolist()],
        "module": [trace.modules[code] if code >= 0 else None for code in events.module[low:high].tolist()],
        "stack": [stacks[code] or None for code in events.stack[low:high].tolist()],
        **{name: _labels(trace, name, low, high) for name in ("user_metadata", "compile_context")},
    }


def _addresses(action: Any, address: Any) -> list[int | None]:
    """Unsigned addresses; for an out-of-memory error the free bytes, if known."""
    return [
        None if code == _OOM and place < 0 else place % (1 << 64)
        for code, place in zip(action.tolist(), address.tolist(), strict=True)
    ]


def _labels(trace: Trace, name: str, low: int, high: int) -> list[str | None]:
    column = trace.labels.get(name)
    if column is None:
        return [None] * (high - low)
    return [trace.words[word] if word >= 0 else None for word in column[low:high].tolist()]


def _stack_text(trace: Trace, stack: int) -> str:
    if not 0 <= stack < len(trace.stacks):
        return ""
    file, line, function = trace.frames["file"], trace.frames["line"], trace.frames["function"]
    return ";".join(f"{trace.words[file[at]]}:{line[at]} {trace.words[function[at]]}" for at in trace.stacks[stack])
