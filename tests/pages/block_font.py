"""A font in which every character is the same block, so that a page looks alike on machines with different fonts."""

from __future__ import annotations

import struct
from typing import Final

UNITS: Final = 1000
WIDTH: Final = 560
"""About the mean width of a character of a sans-serif font."""
ASCENT, DESCENT, X_HEIGHT = 930, 240, 540
EVERYTHING: Final = 0x10FFFF


def font() -> bytes:
    """TrueType file with three glyphs: the one for unknown characters, a space, and the block."""
    block = _block(50, 0, WIDTH - 50, X_HEIGHT)
    glyf = block + block  # of the unknown character and of all others; a space has no outline
    offsets = (0, len(block), len(block), 2 * len(block))
    tables = {
        b"OS/2": _os2(),
        b"cmap": _cmap(),
        b"glyf": glyf,
        b"head": struct.pack(
            ">IIIIHHqqhhhhHHhhh",
            0x10000,
            0x10000,
            0,
            0x5F0F3CF5,
            3,
            UNITS,
            0,
            0,
            50,
            0,
            WIDTH - 50,
            X_HEIGHT,
            0,
            8,
            2,
            1,
            0,
        ),
        b"hhea": struct.pack(
            ">IhhhHhhhhhh4hhH", 0x10000, ASCENT, -DESCENT, 0, WIDTH, 50, 50, 510, 1, 0, 0, 0, 0, 0, 0, 0, 3
        ),
        b"hmtx": struct.pack(">Hh", WIDTH, 50) * 3,
        b"loca": struct.pack(">4I", *offsets),
        b"maxp": struct.pack(">I14H", 0x10000, 3, 4, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0),
        b"name": _name("Blocks"),
        b"post": struct.pack(">IIhhIIIII", 0x30000, 0, -100, 50, 1, 0, 0, 0, 0),
    }
    return _file(tables)


def _block(left: int, bottom: int, right: int, top: int) -> bytes:
    header = struct.pack(">hhhhhHH", 1, left, bottom, right, top, 3, 0)
    across = struct.pack(">4h", left, 0, right - left, 0)
    up = struct.pack(">4h", bottom, top - bottom, 0, bottom - top)
    glyph = header + b"\x01" * 4 + across + up
    return glyph + b"\0" * (-len(glyph) % 4)


def _cmap() -> bytes:
    groups = [(0x20, 0x20, 1), (0x21, 0x9F, 2), (0xA0, 0xA0, 1), (0xA1, EVERYTHING, 2)]
    body = b"".join(struct.pack(">III", *group) for group in groups)
    subtable = (
        struct.pack(">HHIII", 13, 0, 16 + len(body), 0, len(groups)) + body
    )  # format 13: many characters, one glyph
    return struct.pack(">HHHHI", 0, 1, 3, 10, 12) + subtable


def _os2() -> bytes:
    flags = struct.pack(">Hhhhhh", 4, WIDTH, 400, 5, 0, 0)[:10]
    sizes = struct.pack(">10h", 650, 600, 0, 75, 650, 600, 0, 350, 50, 300)
    rest = struct.pack(">h10sIIII4sHHHhhhHHII", 0, bytes(10), 1, 0, 0, 0, b"TEST", 0x40, 0x20, 0xFFFF,
                       ASCENT, -DESCENT, 0, ASCENT, DESCENT, 1, 0)  # fmt: skip
    return flags + sizes + rest + struct.pack(">hhHHH", X_HEIGHT, 730, 0, 0x20, 1)


def _name(family: str) -> bytes:
    texts = [(1, family), (2, "Regular"), (4, family), (6, family)]
    encoded = [(number, text.encode("utf-16-be")) for number, text in texts]
    records, content = b"", b""
    for number, text in encoded:
        records += struct.pack(">6H", 3, 1, 0x409, number, len(text), len(content))
        content += text
    return struct.pack(">HHH", 0, len(encoded), 6 + len(records)) + records + content


def _file(tables: dict[bytes, bytes]) -> bytes:
    power = 1 << (len(tables).bit_length() - 1)
    head = struct.pack(">IHHHH", 0x10000, len(tables), power * 16, power.bit_length() - 1, (len(tables) - power) * 16)
    at = len(head) + 16 * len(tables)
    directory, content = b"", b""
    for tag, table in sorted(tables.items()):
        directory += struct.pack(">4sIII", tag, _sum(table), at + len(content), len(table))
        content += table + b"\0" * (-len(table) % 4)
    return head + directory + content


def _sum(table: bytes) -> int:
    padded = table + b"\0" * (-len(table) % 4)
    return sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF
