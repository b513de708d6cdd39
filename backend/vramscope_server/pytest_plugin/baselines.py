"""Stored peaks of marked tests: ``gpu_memory.json`` beside each test file, to be committed."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "gpu_memory.json"
MOST_LINES: Final = 20


class BaselineLine(msgspec.Struct, frozen=True):
    """Memory of one source line at the peak. Its number is not stored: it changes with each edit above it."""

    file: str
    """Relative to the folder of the test."""
    function: str
    source: str
    bytes: int


class Baseline(msgspec.Struct, frozen=True):
    """Stored peak of one test."""

    card: str
    torch: str
    peak_allocated_bytes: int
    lines: list[BaselineLine] = []


@dataclass(frozen=True)
class Baselines:
    """Baselines of the tests in one folder."""

    folder: Path

    def read(self, test: str) -> Baseline | None:
        """Baseline of a test; None if none is stored. Raises ValueError for a damaged file."""
        return self._all().get(test)

    def store(self, test: str, baseline: Baseline) -> None:
        """Store a baseline beside the others; several processes may do so at once."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            found = {**self._all(), test: baseline}
            text = msgspec.json.format(msgspec.json.encode(dict(sorted(found.items()))), indent=1)
            new = self.folder / f".{FILE}.new"
            new.write_bytes(text + b"\n")
            new.replace(self.folder / FILE)
        finally:
            os.close(folder)

    def _all(self) -> dict[str, Baseline]:
        file = self.folder / FILE
        if not file.exists():
            return {}
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Baseline])
        except msgspec.MsgspecError as damage:
            raise ValueError(f"{file} cannot be read: {damage}; remove it and run with --gpu-memory-update") from damage
