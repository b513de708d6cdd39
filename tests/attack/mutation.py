"""Changes valid input at random: bytes, trees of values, and addresses."""

from __future__ import annotations

import copy
import random
from typing import Any
from urllib.parse import quote, urlencode

EXTREMES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 255, 1 << 31, -(1 << 31), 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 0.5, -0.0, 1e308, -1e308,
    5e-324, float("nan"), float("inf"), float("-inf"), "", "x", "x" * 5000, "\0", "\x7f\u202e", "../../etc/passwd", "' OR 1=1 --",
    "<script>alert(1)</script>", "%s%n{0}", "\U0001f4a5" * 50, b"", b"\xff" * 8, b"\x00" * 7, [], {}, [[[[]]]], {"": None},
)  # fmt: skip
TEXTS = tuple(one for one in EXTREMES if isinstance(one, str))
NUMBERS = tuple(one for one in EXTREMES if isinstance(one, int | float) and not isinstance(one, bool))


class Mutation:
    """Draws changes. The same random numbers give the same changes."""

    def __init__(self, choice: random.Random) -> None:
        self.choice = choice

    def bytes(self, data: bytes) -> bytes:
        """One to four changes: a bit, a byte, a piece left out, repeated or overwritten, or the end cut off."""
        changed = bytearray(data)
        for _ in range(self.choice.randint(1, 4)):
            at = self.choice.randrange(len(changed) + 1)
            length = self.choice.choice((1, 2, 4, 8, 64))
            kind = self.choice.randrange(6)
            if kind == 0 and at < len(changed):
                changed[at] ^= 1 << self.choice.randrange(8)
            elif kind == 1 and at < len(changed):
                changed[at] = self.choice.choice((0, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF, self.choice.randrange(256)))
            elif kind == 2:
                del changed[at : at + length]
            elif kind == 3:
                changed[at:at] = changed[at : at + length]
            elif kind == 4:
                changed[at : at + length] = self.choice.randbytes(length)
            elif kind == 5 and self.choice.random() < 0.3:
                del changed[at:]
        return bytes(changed)

    def tree(self, value: Any) -> Any:
        """A copy with one to three nodes changed, left out, repeated or exchanged."""
        whole = [copy.deepcopy(value)]
        for _ in range(self.choice.randint(1, 3)):
            places = _places(whole)
            inside, key = self.choice.choice(places)
            kind = self.choice.randrange(8)
            if kind == 0 and inside is not whole:
                del inside[key]
            elif kind == 1 and isinstance(inside, list) and inside is not whole:
                inside.extend([copy.deepcopy(inside[key])] * self.choice.choice((1, 2, 300)))
            elif kind == 2:
                other, other_key = self.choice.choice(places)
                inside[key] = copy.deepcopy(other[other_key])
            elif kind == 3:
                inside[key] = copy.deepcopy(self.choice.choice(EXTREMES))
            else:
                inside[key] = copy.deepcopy(self._near(inside[key]))
        return whole[0]

    def address(self, path: str, parameters: dict[str, Any]) -> str:
        """Path and query with a parameter or a part of the path changed."""
        changed = {name: str(value) for name, value in parameters.items()}
        words = path.split("/")
        for _ in range(self.choice.randint(1, 2)):
            kind = self.choice.randrange(4)
            text = str(self.choice.choice((*TEXTS, *NUMBERS, "-1", "1e999", "a,b,,", "0x10", "١٢", "NaN", "null")))
            if kind == 0 and len(words) > 2:
                words[self.choice.randrange(2, len(words))] = text[:300]
            elif kind == 1 and changed:
                del changed[self.choice.choice(list(changed))]
            elif changed:
                changed[self.choice.choice(list(changed))] = text
            else:
                changed[self.choice.choice(PARAMETERS)] = text
        place = "/".join(quote(word, safe="") for word in words)
        return f"{place}?{urlencode(changed)}" if changed else place

    def _near(self, value: Any) -> Any:
        """A value of the same type that is a little or very different."""
        draw = self.choice
        if isinstance(value, bool) or value is None:
            return draw.choice(EXTREMES)
        if isinstance(value, int):
            return _bounded(draw.choice((value + 1, value - 1, -value, value * 2, value << 20, *NUMBERS)))
        if isinstance(value, float):
            return draw.choice((-value, value * 1e300, value / 1e300, *NUMBERS))
        if isinstance(value, str):
            at = draw.randrange(len(value) + 1)
            return draw.choice((value[:at], value[:at] + "\0" + value[at:], value * 3, value.upper(), *TEXTS))
        if isinstance(value, bytes):
            return self._column(value)
        if isinstance(value, list | dict):
            return draw.choice((type(value)(), *EXTREMES))
        return None

    def _column(self, value: bytes) -> bytes:
        """Bytes that may be a column of numbers of 64 bits."""
        number = self.choice.choice((0, -1, 1, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 31))
        item = number.to_bytes(8, "little", signed=True)
        if len(value) < 8 or self.choice.random() < 0.2:
            return self.choice.choice((b"", value[:-1], value[:-8], value + item, self.bytes(value)))
        if self.choice.random() < 0.1:
            return item * (len(value) // 8)
        at = self.choice.randrange(len(value) // 8) * 8
        return value[:at] + item + value[at + 8 :]


PARAMETERS = (
    "run", "runs", "from", "to", "rank", "device", "limit", "cursor", "event", "offset", "names", "points", "x", "by", "format",
    "base", "after", "wait_seconds", "lines", "columns", "techniques", "sort", "query", "a", "b", "bytes", "allocation",
)  # fmt: skip


def _places(whole: Any) -> list[tuple[Any, Any]]:
    """Each node of a tree, as what it is in and its key or index there."""
    found, todo = [], [whole]
    while todo:
        inside = todo.pop()
        keys = inside.keys() if isinstance(inside, dict) else range(len(inside))
        for key in keys:
            found.append((inside, key))
            if isinstance(inside[key], list | dict):
                todo.append(inside[key])
    return found


def _bounded(number: Any) -> Any:
    """A number that MessagePack can express."""
    return number if isinstance(number, float) else max(-(1 << 63), min(number, (1 << 64) - 1))
