"""Methods that the mirror calls on a tracker, all on the tracker's own thread except ``remove``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """One tool. No method imports it: it is used only where the program has imported it."""

    name: str
    """Name in VRAMSCOPE_MIRROR."""
    title: str
    modules: tuple[str, ...]
    """The tool is in use once one of these modules is imported."""
    takes_files: bool
    """False if the tool has no place for files."""

    def find(self) -> bool:
        """Find the active run, for the calls that follow. False: there is none."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers in the active run. ``step``: number of the optimizer step, for a tool without steps of its own."""
        ...

    def note(self, name: str, text: str) -> None:
        """Store a text in the active run."""
        ...

    def add_file(self, path: Path) -> bool:
        """Attach a file to the active run. It may be deleted as soon as this returns. False: it was not taken."""
        ...

    def address(self) -> str:
        """Address or folder of the active run without a password; empty if it has none."""
        ...

    def release(self) -> None:
        """Drop the reference to the active run."""
        ...

    def remove(self) -> None:
        """Undo what ``find`` has changed in the tool. The thread may still be within another method."""
        ...
