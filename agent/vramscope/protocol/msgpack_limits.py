"""Bounds the size of MessagePack before it is decoded."""

from __future__ import annotations

from typing import Final


class BadMessagePack(ValueError):
    """MessagePack that is refused before it is decoded."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__(f"{seen}; expected {expected}")
        self.seen = seen
        self.expected = expected


class TooManyValues(BadMessagePack):
    """Decoding it would fill the memory."""


def check_size(body: bytes, *, most_items: int, most_values: int) -> None:
    """Walk over MessagePack without decoding it: refuse what is cut short or would fill the memory when decoded.

    Eight megabytes can contain millions of tiny items, each of which costs fifty bytes or more as an object. A batch of
    the agent has about fifty values a block, 15 µs.

    most_items    items of one map or list
    most_values   values in all, keys of maps included

    Raises TooManyValues, or BadMessagePack where it is not MessagePack.
    """
    end = len(body)
    at, left, values = 0, 1, 0
    try:
        while left:
            left -= 1
            values += 1
            tag = body[at]
            at += 1
            if tag <= 0x7F or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
                continue
            if tag <= 0x9F:
                items = tag & 0x0F
                left += items * 2 if tag <= 0x8F else items
            elif tag <= 0xBF:
                at += tag & 0x1F
            elif 0xDC <= tag <= 0xDF:
                width = 2 if tag in (0xDC, 0xDE) else 4
                items = int.from_bytes(body[at : at + width], "big")
                at += width
                if items > most_items:
                    kind = "map" if tag >= 0xDE else "list"
                    raise TooManyValues(f"a {kind} of {items} items", f"at most {most_items}")
                left += items * 2 if tag >= 0xDE else items
            elif tag in _FIXED:
                at += _FIXED[tag]
            elif tag in _SIZED:
                width, more = _SIZED[tag]
                at += width + more + int.from_bytes(body[at : at + width], "big")
            else:
                raise BadMessagePack(f"the byte 0x{tag:02x} at {at - 1}", "MessagePack")
            if values + left > most_values:
                raise TooManyValues(f"more than {most_values} values", f"at most {most_values}")
    except IndexError:
        at = end + 1
    if at > end:
        raise BadMessagePack(f"{end} bytes, cut short", "a whole value in MessagePack")
    if at < end:
        raise BadMessagePack(f"{end - at} bytes after the first value", "one value in MessagePack and nothing else")


_FIXED: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Numbers and fixed extensions: bytes after the tag."""
_SIZED: Final = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
                 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip
"""Binaries, extensions and strings: bytes of the length, further bytes."""
