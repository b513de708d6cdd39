"""``vramscope snapshot FILE``: summary of a snapshot file, or upload to a server."""

from __future__ import annotations

import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import UNKNOWN, amount, count, duration, percent
from vramscope_server.answers.snapshots import SnapshotRow, UploadedSnapshot
from vramscope_server.cli.client import Failure, ask, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.format import plain
from vramscope_server.cli.progress import Bar
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.cli.trace_source import readable
from vramscope_server.cli.upload import upload_file

if TYPE_CHECKING:
    from vramscope_server.analysis.snapshot_format.reader import Snapshot
    from vramscope_server.analysis.trace.trace import Trace

SHOWN: Final = 12
_LOOK_SECONDS: Final = 0.3
_COLUMNS: Final = (
    Column("BYTES", number=True),
    Column("OF THE PEAK", needed=2, number=True),
    Column("ALLOCATIONS", needed=1, number=True),
    Column("FROM"),
    Column("FUNCTION", needed=3),
)


class _SourceLine(TypedDict):
    """Memory of a source line at the peak."""

    bytes: int
    allocations: int
    file: str | None
    line: int | None
    function: str
    module: str | None


class _ReservedParts(TypedDict):
    """Parts of the reserved memory at its peak."""

    requested_bytes: int
    rounding_bytes: int
    usable_bytes: int
    unusable_bytes: int


class _DeviceSummary(TypedDict):
    """Summary of a device of a snapshot; None is unknown."""

    device: int
    events: int
    seconds: float | None
    allocations: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_event: int
    looked_at_event: int
    looked_at_bytes: int
    out_of_memory: int
    strip: _ReservedParts
    categories: dict[str, int] | None
    sites: list[_SourceLine]
    end_reserved_bytes: int
    end_allocated_bytes: int
    segments: int
    private_pools: list[list[int]]
    settings: str
    settings_given: str
    settings_in_force: dict[str, int | float | bool | str | None]
    torch: str
    notes: list[str]


class SnapshotReport(TypedDict):
    """Summary of a snapshot file."""

    file: str
    bytes: int
    devices: list[_DeviceSummary]
    notes: list[str]


def show(path: Path, as_json: bool, server: str | None) -> None:
    """Print a summary of each device, or JSON; or upload to a server and print the page's address. Raises client.Failure."""
    readable(path)
    if server is not None:
        _upload(path, as_json, server)
        return
    report = report_of(path)
    if as_json:
        print_json(report)
        return
    out = console()
    for device in report["devices"]:
        _print(out, device)
    for note in report["notes"]:
        out.print(Text(plain(note), style="dim"))


def report_of(path: Path) -> SnapshotReport:
    """Summarize a snapshot file. It is read and never executed. Raises client.Failure."""
    readable(path)
    snapshot = snapshot_of(path)
    try:
        with Bar("computing lifetimes and peaks", of_bytes=False) as tell:
            devices: list[_DeviceSummary] = []
            for trace in snapshot.devices:
                if len(snapshot.devices) > 1:
                    tell(len(devices), len(snapshot.devices))
                devices.append(summary(trace))
    except (ArithmeticError, LookupError, ValueError, MemoryError) as fault:
        words = f"inconsistent events ({type(fault).__name__})"
        raise Failure(f"{plain(str(path))}: {words}", BAD_ARGUMENTS) from None
    return {"file": str(path), "bytes": path.stat().st_size, "devices": devices, "notes": snapshot.notes}


def snapshot_of(path: Path) -> Snapshot:
    """Read a snapshot file, with a progress bar. Raises client.Failure."""
    from vramscope_server.analysis.snapshot_format.reader import BadSnapshot, read

    try:
        with Bar("reading") as tell:
            return read(path, progress=tell)
    except BadSnapshot as fault:
        raise Failure(f"{plain(str(path))} is not a readable snapshot: {plain(str(fault))}", BAD_ARGUMENTS) from None
    except OSError as fault:
        raise Failure(f"{plain(str(path))} cannot be read: {fault.strerror}", BAD_ARGUMENTS) from None


def summary(trace: Trace) -> _DeviceSummary:
    """Summarize a device: its peak, the source lines at the peak, parts of reserved memory. Bytes; null is unknown."""
    from vramscope.protocol.window import ACTIONS
    from vramscope_server.analysis.diff.holdings import peak_allocations_of
    from vramscope_server.analysis.fragmentation.breakdown import breakdown_of
    from vramscope_server.analysis.trace.missing_events import missing_event_notes
    from vramscope_server.analysis.trace.notable_events import notable_events_of

    moments, made, held = notable_events_of(trace), breakdown_of(trace, 1), peak_allocations_of(trace)
    time_ns = trace.events.time_ns
    timed = time_ns[time_ns >= 0]
    kinds: dict[str, int] = {}
    for one in held.lines.values():
        for kind, size in one.categories.items():
            kinds[kind] = kinds.get(kind, 0) + size
    sites = sorted(held.lines.items(), key=lambda pair: -pair[1].bytes)
    return {
        "device": trace.device,
        "events": len(trace.events),
        "seconds": float(timed[-1] - timed[0]) / 1e9 if len(timed) > 1 else None,
        "allocations": len(trace.lives),
        "peak_reserved_bytes": moments.peak_reserved_bytes,
        "peak_allocated_bytes": held.peak_bytes,
        "peak_event": moments.peak_event,
        "looked_at_event": held.moment["event"],
        "looked_at_bytes": held.allocated_bytes,
        "out_of_memory": int((trace.events.action == ACTIONS.index("oom")).sum()),
        "strip": {
            "requested_bytes": int(made.requested[made.peak]), "rounding_bytes": int(made.rounding[made.peak]),
            "usable_bytes": int(made.usable[made.peak]), "unusable_bytes": int(made.unusable[made.peak]),
        },
        "categories": kinds if set(kinds) - {"unknown"} else None,
        "sites": [
            {
                "bytes": one.bytes, "allocations": one.allocations, "file": site.file or None,
                "line": site.line if site.file else None, "function": site.function, "module": site.module or None,
            }
            for site, one in sites
        ],
        "end_reserved_bytes": trace.end.reserved_bytes,
        "end_allocated_bytes": trace.end.allocated_bytes,
        "segments": len(trace.end.segments),
        "private_pools": [list(trace.pools[at]) for at in sorted({*trace.end.segments.pool.tolist()}) if at > 0],
        "settings": trace.parsed_settings[0].text,
        "settings_given": trace.settings,
        "settings_in_force": trace.settings_in_force,
        "torch": trace.torch,
        "notes": [*trace.notes, *missing_event_notes(trace)],
    }  # fmt: skip


def _print(out: Console, summary: _DeviceSummary) -> None:
    span = f" in {duration(summary['seconds'])}" if summary["seconds"] is not None else ""
    head = (
        f"GPU {summary['device']}: {count(summary['events'])} events{span}, {count(summary['allocations'])} allocations"
    )
    out.print(Text(head, style="bold"))
    given = (
        ""
        if summary["settings"] == summary["settings_given"]
        else f" (configured: {plain(summary['settings_given']) or 'none'})"
    )
    out.print(Text(f"allocator settings: {plain(summary['settings']) or 'default'}{given}"))
    if summary["settings_in_force"]:
        in_force = ", ".join(
            f"{name} {_setting(value)}" for name, value in sorted(summary["settings_in_force"].items())
        )
        out.print(Text(f"reported by PyTorch: {plain(in_force)}", style="dim"))
    oom = f", {count(summary['out_of_memory'])} out-of-memory errors" if summary["out_of_memory"] else ""
    peak = amount(summary["peak_reserved_bytes"])
    out.print(Text(f"peak: {peak} reserved, {amount(summary['peak_allocated_bytes'])} allocated{oom}"))
    parts = summary["strip"]
    named = (
        (parts["requested_bytes"], "requested"),
        (parts["rounding_bytes"], "rounding"),
        (parts["usable_bytes"], "free"),
        (parts["unusable_bytes"], "unusable"),
    )
    reserved = sum(size for size, _ in named)
    shares = [f"{amount(size)} {word} ({_share(size, reserved)})" for size, word in named]
    out.print(Text("at peak reserved: " + ", ".join(shares)))
    if summary["categories"]:
        kinds = sorted(summary["categories"].items(), key=lambda pair: -pair[1])
        out.print(Text("categories: " + ", ".join(f"{amount(size)} {kind}" for kind, size in kinds)))
    if summary["private_pools"]:
        pools = "; ".join(",".join(map(str, pool)) for pool in summary["private_pools"][:6])
        out.print(Text(f"private pools (CUDA graphs or MemPool): {count(len(summary['private_pools']))}: {pools}"))
    if summary["sites"]:
        where = summary["looked_at_event"]
        moment = f"{amount(summary['looked_at_bytes'])} allocated " + (
            f"at event {count(where)}" if where >= 0 else "then"
        )
        out.print(Text(f"source lines of {moment}:", style="dim"))
        rows = [
            (
                amount(site["bytes"]), _share(site["bytes"], summary["looked_at_bytes"]), count(site["allocations"]),
                plain(f"{site['file']}:{site['line']}" if site["file"] else site["function"]),
                plain(site["function"]) if site["file"] else "",
            )
            for site in summary["sites"][:SHOWN]
        ]  # fmt: skip
        print_table(out, _COLUMNS, rows)
        if len(summary["sites"]) > SHOWN:
            rest = sum(site["bytes"] for site in summary["sites"][SHOWN:])
            out.print(Text(f"{count(len(summary['sites']) - SHOWN)} more source lines: {amount(rest)}", style="dim"))
    for note in summary["notes"]:
        out.print(Text(plain(note), style="dim"))
    out.print()


def _setting(value: int | float | bool | str | None) -> str:
    """Format a value as in PyTorch's configuration."""
    return UNKNOWN if value is None else str(value)


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else UNKNOWN


# ---- to a server ----


def _upload(path: Path, as_json: bool, server: str) -> None:
    with Bar("sending") as tell:
        answer: UploadedSnapshot = upload_file(server, path, tell)
    base = server.strip().rstrip("/")
    address = f"{base}/snapshots/{urllib.parse.quote(answer['snapshot'])}"
    with Bar("server is reading") as tell:
        while answer["state"] in ("waiting", "converting"):
            tell(answer["done_bytes"], answer["total_bytes"])
            time.sleep(_LOOK_SECONDS)
            row: SnapshotRow = ask(server, f"/snapshots/{answer['snapshot']}")
            answer = {**row, "known": answer["known"]}
    if answer["state"] == "failed":
        raise Failure(f"{plain(str(path))}: {plain(str(answer['problem']))}", BAD_ARGUMENTS)
    if as_json:
        print_json({**answer, "address": address})
        return
    if answer["known"]:
        print("The server already has this file.")
    print(address)
