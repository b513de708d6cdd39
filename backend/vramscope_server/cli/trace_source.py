"""Allocator history for a command: a snapshot file, or the newest recording of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vramscope.protocol.window import BadWindow, unpack
from vramscope_server.answers.recordings import RecordingList
from vramscope_server.answers.run_detail import RunAnswer, RunInFull
from vramscope_server.cli.client import Failure, ask, fetch, path_of
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, NOT_FOUND
from vramscope_server.cli.format import has_no_device, plain
from vramscope_server.cli.progress import Bar

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

_FILE_ENDINGS: Final = (".pickle", ".pkl", ".pt", ".gz", ".snapshot", ".bin")


def is_file(target: str) -> bool:
    """Return True if the argument means a file, which may not exist, and not a run."""
    path = Path(target)
    try:
        there = path.exists() or (path.parent != Path() and path.parent.is_dir())
    except OSError:  # an impossible file name, or a folder without access
        there = False
    return there or target.endswith(_FILE_ENDINGS)


def of_file(path: Path) -> list[Trace]:
    """Return the devices of a snapshot file that have a history, or all if none has. Raises Failure."""
    from vramscope_server.analysis.snapshot_format.reader import BadSnapshot, read

    readable(path)
    try:
        with Bar(f"reading {plain(path.name)}") as tell:
            snapshot = read(path, progress=tell)
    except BadSnapshot as fault:
        raise Failure(f"{plain(str(path))} is not a readable snapshot: {plain(str(fault))}", BAD_ARGUMENTS) from None
    except OSError as fault:
        raise Failure(f"{plain(str(path))} cannot be read: {fault.strerror}", BAD_ARGUMENTS) from None
    for note in snapshot.notes:
        print(f"vramscope: {plain(note)}", file=sys.stderr)
    traced = [trace for trace in snapshot.devices if len(trace.events)]
    return traced or snapshot.devices


def readable(path: Path) -> None:
    """Raise Failure if a path is not a readable file."""
    try:
        there = path.exists()
    except OSError as fault:
        raise Failure(f"{plain(str(path))} cannot be read: {fault.strerror}.", BAD_ARGUMENTS) from None
    if not there:
        raise Failure(f"file not found: {plain(str(path))}.", NOT_FOUND)
    if path.is_dir():
        raise Failure(f"{plain(str(path))} is a folder, not a snapshot file.", BAD_ARGUMENTS)


def _how_to_record(run: RunInFull) -> str:
    """Describe how to record a run, if possible."""
    if has_no_device(run):
        return "It used no CUDA device. Recordings need PyTorch's CUDA allocator."
    if run["state"] == "running":
        return "Record a window on its page."
    return "It has ended. Runs record their first steps unless VRAMSCOPE_WINDOWS=0."


def newest_recording(server: str, run: str, purpose: str) -> str:
    """Return the id of the newest complete recording of a run. Raises Failure: nothing to ``replay``, say."""
    path = path_of(server, run)
    listed: RecordingList = ask(server, f"/runs/{path}/recordings")
    newest = next((one["recording"] for one in listed["recordings"] if one["whole"]), None)
    if newest is None:
        problem = "no complete recording yet" if listed["recordings"] else "no recording"
        detail: RunAnswer = ask(server, f"/runs/{path}")
        raise Failure(f"{plain(run)}: {problem}, nothing to {purpose}. {_how_to_record(detail)}", NOT_FOUND)
    return newest


def of_run(server: str, run: str) -> Trace:
    """Return the newest complete recording of a run. Raises Failure."""
    from vramscope_server.analysis.trace.from_window import from_window

    newest = newest_recording(server, run, "replay")
    try:
        return from_window(unpack(fetch(server, f"/recordings/{newest}/data")))
    except BadWindow as fault:
        raise Failure(f"the newest recording of {plain(run)} is damaged: {plain(str(fault))}", BAD_ARGUMENTS) from None
