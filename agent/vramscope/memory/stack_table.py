"""Python stacks of a window, each once: frames, files and functions are positions in lists."""

from __future__ import annotations

from array import array
from typing import Any, Final

from vramscope.memory.pytorch_snapshot import SnapshotFrame
from vramscope.protocol.series import UNKNOWN

MAX_FRAMES: Final = 64
"""Number of innermost frames of a stack that are kept."""
MAX_CHARACTERS: Final = 1000

Frames = list[SnapshotFrame]


class Stacks:
    """Numbers the stacks. PyTorch makes a list for each allocation, of frames that many of them share."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.stacks: list[list[int]] = []
        self._frames: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._word_numbers: dict[str, int] = {}
        self._frame_numbers: dict[tuple[int, int, int], int] = {}
        self._stack_numbers: dict[tuple[int, ...], int] = {}
        # By id first, which is fast. The lists are kept, so that no id is used again.
        self._numbers: dict[int, int] = {id(None): UNKNOWN}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._seen: list[Any] = []

    def numbers(self, stacks: list[Frames | None]) -> list[int]:
        """Return the position of each stack; UNKNOWN if none was recorded, or no Python ran (in autograd's threads)."""
        if stacks.count(None) == len(stacks):  # none recorded: a fifth of the time of the code below
            return [UNKNOWN] * len(stacks)
        known = self._numbers
        numbers = list(map(known.get, map(id, stacks)))
        if None in numbers:
            for position, frames in enumerate(stacks):
                if numbers[position] is None:
                    number = known.get(id(frames))  # the same list may occur twice
                    if number is None:
                        number = known[id(frames)] = self._number(frames) if frames else UNKNOWN
                        self._seen.append(frames)
                    numbers[position] = number
        return numbers  # type: ignore[return-value]  # no item is None

    def _number(self, frames: Frames) -> int:
        del frames[MAX_FRAMES:]
        by_identity = tuple(map(id, frames))
        number = self._by_frames.get(by_identity)
        if number is None:
            key = tuple(map(self._frame, frames))
            number = self._stack_numbers.setdefault(key, len(self.stacks))
            if number == len(self.stacks):
                self.stacks.append(list(key))
            self._by_frames[by_identity] = number
        return number

    @property
    def frames(self) -> dict[str, bytes]:
        """Columns of window.FRAMES."""
        return {
            name: array("q", column).tobytes()
            for name, column in zip(("file", "line", "function"), self._frames, strict=True)
        }

    def _frame(self, frame: SnapshotFrame) -> int:
        key = (self._word(frame["filename"]), int(frame["line"]), self._word(frame["name"]))
        number = self._frame_numbers.setdefault(key, len(self._frames[0]))
        if number == len(self._frames[0]):
            for column, value in zip(self._frames, key, strict=True):
                column.append(value)
        return number

    def _word(self, word: str) -> int:
        word = word[:MAX_CHARACTERS]
        number = self._word_numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number
