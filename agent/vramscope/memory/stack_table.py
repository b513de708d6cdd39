"""The Python stacks of a window, each once: frames, files and functions as positions in lists."""

from __future__ import annotations

from array import array
from typing import Any, Final

from vramscope.protocol.series import UNKNOWN

MOST_FRAMES: Final = 64
"""innermost frames of a stack that are kept"""
MOST_CHARACTERS: Final = 1000

Frames = list[dict[str, Any]]


class Stacks:
    """Gives each stack its number. PyTorch makes a list for each allocation, of frames that many of them share."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.stacks: list[list[int]] = []
        self._frames: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._word_numbers: dict[str, int] = {}
        self._frame_numbers: dict[tuple[int, int, int], int] = {}
        self._stack_numbers: dict[tuple[int, ...], int] = {}
        # By identity first, which is fast; what was seen is kept, so that no identity is used again.
        self._numbers: dict[int, int] = {id(None): UNKNOWN}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._seen: list[Any] = []

    def numbers(self, stacks: list[Frames | None]) -> list[int]:
        """Position of each stack; UNKNOWN where none was recorded, or no Python ran (in autograd's threads)."""
        if stacks.count(None) == len(stacks):  # none recorded: a fifth of the time of what follows
            return [UNKNOWN] * len(stacks)
        known = self._numbers
        numbers = list(map(known.get, map(id, stacks)))
        if None in numbers:
            for place, frames in enumerate(stacks):
                if numbers[place] is None:
                    number = known.get(id(frames))  # the same list may stand twice in here
                    if number is None:
                        number = known[id(frames)] = self._number(frames) if frames else UNKNOWN
                        self._seen.append(frames)
                    numbers[place] = number
        return numbers  # type: ignore[return-value]  # none is None

    def _number(self, frames: Frames) -> int:
        del frames[MOST_FRAMES:]
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

    def _frame(self, frame: dict[str, Any]) -> int:
        key = (self._word(frame["filename"]), int(frame["line"]), self._word(frame["name"]))
        number = self._frame_numbers.setdefault(key, len(self._frames[0]))
        if number == len(self._frames[0]):
            for column, value in zip(self._frames, key, strict=True):
                column.append(value)
        return number

    def _word(self, word: str) -> int:
        word = word[:MOST_CHARACTERS]
        number = self._word_numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number
