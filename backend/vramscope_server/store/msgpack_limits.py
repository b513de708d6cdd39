"""Bounds the size of MessagePack before it is decoded."""

from __future__ import annotations

from typing import Final

from vramscope_server.store.batch_errors import BadBatch, NotMessagePack

MAX_ITEMS: Final = 4096
"""Maximum number of items of one map or list: the longest list of the contract."""
MAX_NODES: Final = 1_000_000
"""Maximum number of nodes of one batch. With :data:`MAX_ITEMS` it bounds the memory for decoding 8 MiB."""


def skim(body: bytes) -> None:
    """Walk over MessagePack without decoding it: refuse what is cut short or would fill the memory when decoded.

    Eight megabytes can contain millions of tiny items, each of which costs fifty bytes or more as an object. A batch of
    the agent has about fifty nodes a block, 15 µs.

    Raises NotMessagePack or BadBatch.
    """
    end = len(body)
    at, left, nodes = 0, 1, 0
    try:
        while left:
            left -= 1
            nodes += 1
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
                if items > MAX_ITEMS:
                    kind = "map" if tag >= 0xDE else "list"
                    raise BadBatch("body", f"a {kind} of {items} items", f"at most {MAX_ITEMS}")
                left += items * 2 if tag >= 0xDE else items
            elif tag in _FIXED:
                at += _FIXED[tag]
            elif tag in _SIZED:
                width, more = _SIZED[tag]
                at += width + more + int.from_bytes(body[at : at + width], "big")
            else:
                raise NotMessagePack("body", f"the byte 0x{tag:02x} at {at - 1}", "a Batch in MessagePack")
            if nodes + left > MAX_NODES:
                raise BadBatch("body", f"more than {MAX_NODES} values", f"at most {MAX_NODES}")
    except IndexError:
        at = end + 1
    if at > end:
        raise NotMessagePack("body", f"{end} bytes, cut short", "a whole Batch in MessagePack")
    if at < end:
        raise NotMessagePack("body", f"{end - at} bytes after the batch", "one Batch in MessagePack and nothing else")


_FIXED: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Numbers and fixed extensions: bytes after the tag."""
_SIZED: Final = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
                 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip
"""Binaries, extensions and strings: bytes of the length, further bytes."""
