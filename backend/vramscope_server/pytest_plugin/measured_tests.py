"""What marked tests needed, and their baselines: a file with a line of JSON for each test."""

from __future__ import annotations

import fcntl
from pathlib import Path

import msgspec

from vramscope_server.pytest_plugin.baselines import Baseline


class MeasuredTest(msgspec.Struct, frozen=True):
    """One test."""

    test: str
    """Node id of pytest."""
    folder: str
    """Folder of the test file, to which the files of its lines are relative."""
    limit_bytes: int | None
    """Peak above which it fails; None: any peak passes."""
    before: Baseline | None
    """Stored baseline; None: there is none."""
    now: Baseline
    """What it needed."""

    @property
    def failed(self) -> bool:
        """Whether it needed more than its limit."""
        return self.limit_bytes is not None and self.now.peak_allocated_bytes > self.limit_bytes


def write(file: Path, test: MeasuredTest) -> None:
    """Append a test. Several processes may do so at once."""
    with file.open("ab") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        out.write(msgspec.json.encode(test) + b"\n")


def read(file: Path) -> list[MeasuredTest]:
    """Return all tests, sorted by name; of a test that ran twice the last result. Raises ValueError for a damaged file."""
    try:
        found = [msgspec.json.decode(line, type=MeasuredTest) for line in file.read_bytes().splitlines()]
    except msgspec.MsgspecError as damage:
        raise ValueError(f"{file} cannot be read: {damage}") from damage
    return [test for _, test in sorted({one.test: one for one in found}.items())]
