"""Values that a user names for reads of an emulated device: ``train.py:12=true``, ``moe.py:40=balanced``."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, Literal

ASSUME_VARIABLE: Final = "VRAMSCOPE_DRY_RUN_ASSUME"
"""Environment variable with the values, separated by spaces."""
FORM: Final = re.compile(
    r"(?P<file>[^\s:=]+):(?P<line>[1-9]\d*)=(?P<value>true|false|balanced|-?\d+(\.\d+)?([eE]-?\d+)?)"
)
BALANCED: Final = "balanced"
"""Value of a line that distributes rows to experts: each of them gets the same number."""
FLOATS: Final = {4: "<f", 8: "<d"}
"""Formats of floating-point numbers by size. Of 2 bytes the format is not known."""


@dataclass(frozen=True)
class AssumedValue:
    """The value that each read by one line of code receives."""

    file: str
    """End of the path of the file: ``train.py`` or ``src/train.py``."""
    line: int
    value: bool | int | float | Literal["balanced"]

    @property
    def is_balanced(self) -> bool:
        return self.value == BALANCED

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def is_for(self, file: str | None, line: int | None) -> bool:
        """Whether a line of code is meant."""
        return line == self.line and file is not None and f"/{file}".endswith(f"/{self.file}")

    def bits(self, size_bytes: int, is_float: bool) -> int | None:
        """Return the bytes that are read, as a number. None if a value of this size and type cannot be given."""
        return None if isinstance(self.value, str) else bits_of(self.value, size_bytes, is_float)


def bits_of(value: float, size_bytes: int, is_float: bool) -> int | None:
    """Return the bytes of a value, as a number. None if it does not fit into this size and type."""
    if not is_float:
        fits = size_bytes <= 8 and -(1 << 8 * size_bytes - 1) <= value < 1 << 8 * size_bytes
        return int(value) & (1 << 8 * size_bytes) - 1 if fits and value == int(value) else None
    form = FLOATS.get(size_bytes)
    try:
        return None if form is None else int.from_bytes(struct.pack(form, value), "little")
    except (OverflowError, struct.error):
        return None  # larger than every number of that size


def parse(text: str) -> AssumedValue:
    """Parse ``FILE:LINE=VALUE``. Raises ValueError if it has another form."""
    match = FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not of the form train.py:12=true, with true, false, balanced or a number")
    word = match["value"]
    value: bool | int | float | Literal["balanced"]
    if word == BALANCED:
        value = BALANCED
    elif word in ("true", "false"):
        value = word == "true"
    else:
        value = int(word) if re.fullmatch(r"-?\d+", word) else float(word)
    return AssumedValue(match["file"], int(match["line"]), value)
