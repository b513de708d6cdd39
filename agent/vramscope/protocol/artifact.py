"""Reads the bytes of an artifact: one value in MessagePack, compressed by zlib. Foreign bytes cost bounded memory and time.

This module needs msgspec alone, because agent and server import it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from vramscope.protocol.msgpack_limits import BadMessagePack, check_size

T = TypeVar("T")

MAX_VALUES: Final = 1_500_000
"""Maximum number of values, some 100 MB when decoded. A column of numbers is one value, so that most values are frames of
stacks: the demo's recording of 10,000 events has 20 stacks and fewer than 10,000 values."""


class BadArtifact(ValueError):
    """Bytes that are not an artifact, or exceed a limit. The text says why."""


def unpacked(data: bytes, decode: Callable[[bytes], T], most_bytes: int) -> T:
    """Decompress and decode. Raises BadArtifact. About 0.4 µs a value to count them, and the time to decode.

    most_bytes   size when decompressed
    """
    try:
        opener = zlib.decompressobj()
        raw = opener.decompress(data, most_bytes)
        if opener.unconsumed_tail:
            raise BadArtifact(f"more than {most_bytes} bytes")
        if not opener.eof:
            raise BadArtifact("cut off")
        check_size(raw, most_items=MAX_VALUES, most_values=MAX_VALUES)
        return decode(raw)
    except zlib.error as fault:
        raise BadArtifact(f"not compressed by zlib: {fault}") from None
    except (BadMessagePack, msgspec.MsgspecError) as fault:
        raise BadArtifact(str(fault)) from None
    except RecursionError:
        raise BadArtifact("nested too deeply") from None
