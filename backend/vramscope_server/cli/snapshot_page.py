"""``vramscope snapshot FILE --html PAGE``: one self-contained page of a snapshot file, which needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from vramscope_server.analysis.number_format import amount, count
from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.format import plain
from vramscope_server.cli.progress import Bar
from vramscope_server.cli.snapshot import show as print_or_upload
from vramscope_server.cli.snapshot import snapshot_of, summary
from vramscope_server.cli.trace_source import readable

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

SHOWN: Final = 25
"""Source lines of a device at most."""


def show(path: Path, as_json: bool, server: str | None, page: Path | None) -> None:
    """Write the page of a snapshot file, or print the summary, or upload it. Raises client.Failure."""
    if page is None:
        print_or_upload(path, as_json, server)
        return
    if as_json or server is not None:
        raise Failure("--html cannot be used with --json or --server", BAD_ARGUMENTS)
    if page.resolve() == path.resolve():
        raise Failure(f"--html {plain(str(page))} is the snapshot file itself", BAD_ARGUMENTS)
    _write(path, page)


def _write(path: Path, page: Path) -> None:
    """Write the page of a snapshot file and print where it is. Raises client.Failure."""
    from vramscope_server.figures.html_file import html_file, section

    readable(path)
    opened = snapshot_of(path)
    parts: list[str] = []
    try:
        with Bar("drawing", of_bytes=False) as tell:
            for number, trace in enumerate(opened.devices):
                tell(number, len(opened.devices))
                parts.append(section(f"GPU {trace.device}", *_device(trace)))
    except (ArithmeticError, LookupError, ValueError, MemoryError) as fault:
        words = f"inconsistent events ({type(fault).__name__})"
        raise Failure(f"{plain(str(path))}: {words}", BAD_ARGUMENTS) from None
    try:
        page.write_text(html_file(path.name, parts), encoding="utf-8")
    except OSError as fault:
        raise Failure(f"{plain(str(page))} cannot be written: {fault.strerror}", BAD_ARGUMENTS) from None
    print(f"Written to {plain(str(page))}.")


def _device(trace: Trace) -> list[str]:
    """Timeline, flamegraph and source lines of a device, as HTML."""
    from vramscope.protocol.window import ACTIONS
    from vramscope_server.analysis.timeline.curve import allocation_curve
    from vramscope_server.analysis.timeline.grouping import grouping_of
    from vramscope_server.analysis.timeline.source_lines import sites_of
    from vramscope_server.figures.html_file import section, table
    from vramscope_server.figures.snapshot_report import ReportedWindow, parts_of

    curve = allocation_curve(trace)
    failed = (trace.events.action == ACTIONS.index("oom")).nonzero()[0].tolist()
    window = ReportedWindow(
        trace, curve, grouping_of(trace, curve, "site"), sites_of(trace), failed, 0, len(trace.events)
    )
    facts = summary(trace)
    rows = [
        (
            amount(site["bytes"]),
            count(site["allocations"]),
            f"{site['file']}:{site['line']}" if site["file"] else site["function"],
        )
        for site in facts["sites"][:SHOWN]
    ]
    lines = section(
        f"Source lines of {amount(facts['looked_at_bytes'])} allocated",
        table(("memory", "allocations", "line"), rows),
    )
    return [*parts_of(window), lines]
