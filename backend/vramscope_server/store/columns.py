"""The codec of a chunk: int64 columns <-> one blob in which each column can be read without the others.

A column is stored as the cheapest of three forms:

constant   the value alone, no bytes besides: series that never move (segments, OOMs, a temperature)
delta      differences between neighbours: counters, clocks, sawteeth
offset     distances from the smallest value: noise around a level

Deltas and offsets lose their common trailing zero bits (allocated bytes come in 512s, reserved bytes in 2 MiB), become
unsigned (zigzag), are cut to the bytes that the largest one needs, are laid out plane by plane (all lowest bytes, then
all next ones ...) and pass through zstd, each column in its own frame. Lossless for every int64 value.

A column in which every value is unknown (-1) is not stored at all: reading an absent column gives unknowns.

Blob: ``b"vc1\\0"``, rows (u32), columns (u16); for each column its name (u8 length, ASCII) and an entry
(form u8, shift u8, planes u8, base i64, end-of-frame u32); then the frames.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

IntArray = npt.NDArray[np.int64]
Columns = Mapping[str, IntArray]

MAGIC: Final = b"vc1\0"
UNKNOWN: Final = -1
MAX_ROWS: Final = 1 << 16
"""A blob that says it holds more was damaged: without a bound it could make us ask for any amount of memory."""
_HEAD: Final = struct.Struct("<4sIH")
_ENTRY: Final = struct.Struct("<BBBqI")
_CONSTANT, _DELTA, _OFFSET = 0, 1, 2
_STORED = 0x80
"""Flag on the form: the planes are stored as they are, because zstd made them no smaller."""


class CorruptChunk(ValueError):
    """A blob that this codec did not write, or that was damaged since."""


class _Local(threading.local):
    """zstd contexts of this thread: they may not be shared, and making one costs more than a small frame."""

    def __init__(self) -> None:
        # Magicless frames without size and checksum: 8 bytes less for each column of each small chunk.
        def compressor(level: int) -> zstandard.ZstdCompressor:
            return zstandard.ZstdCompressor(
                compression_params=zstandard.ZstdCompressionParameters.from_level(
                    level,
                    format=zstandard.FORMAT_ZSTD1_MAGICLESS,
                    write_content_size=False,
                    write_checksum=False,
                    window_log=17,
                )
            )

        self.quick = compressor(1)
        self.thorough = compressor(6)
        # We write windows of 2^17; a damaged frame may ask for gigabytes.
        self.decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << 17)


_local = _Local()


def encode(names: list[str], values: IntArray, *, thorough: bool = False) -> bytes:
    """Pack columns into one blob.

    names     shape (n,), ASCII, at most 255 characters each
    values    shape (n, rows), any int64
    thorough  also weigh offsets against deltas and compress harder: for chunks that stay (about 5 ms for 18 columns of
              4096 rows; without it 0.5 ms for 256 rows)
    """
    count, rows = values.shape
    if not 0 < rows <= MAX_ROWS or count != len(names):
        raise ValueError(f"{len(names)} names for an array of shape {values.shape}")
    compressor = _local.thorough if thorough else _local.quick
    low = values.min(axis=1)
    high = values.max(axis=1)
    # Differences may wrap around for values at both ends of int64; unsigned arithmetic wraps back on reading.
    delta = np.diff(values, axis=1)
    delta_or = np.bitwise_or.reduce(delta, axis=1) if rows > 1 else np.zeros(count, np.int64)

    table: list[bytes] = []
    frames: list[bytes] = []
    end = 0
    for i, name in enumerate(names):
        lowest, highest = int(low[i]), int(high[i])
        if lowest == highest == UNKNOWN:
            continue
        encoded_name = name.encode("ascii")
        table.append(bytes([len(encoded_name)]) + encoded_name)
        if lowest == highest:
            table.append(_ENTRY.pack(_CONSTANT, 0, 0, lowest, end))
            continue
        form, shift, base, unsigned = _delta(values[i], delta[i], int(delta_or[i]))
        if thorough and highest - lowest < 1 << 62:
            other = _offset(values[i], lowest)
            if _bits(other[3]) < 0.98 * _bits(unsigned):
                form, shift, base, unsigned = other
        planes = max(1, (int(unsigned.max()).bit_length() + 7) // 8)
        raw = np.ascontiguousarray(unsigned.view(np.uint8).reshape(-1, 8)[:, :planes].T).tobytes()
        frame = compressor.compress(raw)
        if len(frame) >= len(raw):
            form, frame = form | _STORED, raw
        frames.append(frame)
        end += len(frame)
        table.append(_ENTRY.pack(form, shift, planes, base, end))
    return b"".join([_HEAD.pack(MAGIC, rows, len(table) // 2), *table, *frames])


def _delta(values: IntArray, delta: IntArray, bits: int) -> tuple[int, int, int, npt.NDArray[np.uint64]]:
    shift = _trailing_zeros(bits)
    small = delta >> shift
    zigzag = (small << 1) ^ (small >> 63)
    return _DELTA, shift, int(values[0]), zigzag.view(np.uint64)


def _offset(values: IntArray, lowest: int) -> tuple[int, int, int, npt.NDArray[np.uint64]]:
    distance = values - lowest
    shift = _trailing_zeros(int(np.bitwise_or.reduce(distance)))
    return _OFFSET, shift, lowest, (distance >> shift).view(np.uint64)


def _trailing_zeros(bits: int) -> int:
    return (bits & -bits).bit_length() - 1 if bits else 0


def _bits(unsigned: npt.NDArray[np.uint64]) -> float:
    """Mean length in bits: what the values would cost with an ideal code of their magnitude."""
    return float(np.log2(unsigned.astype(np.float64) + 1).mean())


class Chunk:
    """A blob opened for reading. Cheap: the table is read, no column is decoded before it is asked for."""

    __slots__ = ("_blob", "_start", "_table", "rows")

    def __init__(self, blob: bytes) -> None:
        try:
            magic, self.rows, count = _HEAD.unpack_from(blob)
            if magic != MAGIC or not 0 < self.rows <= MAX_ROWS:
                raise CorruptChunk("not a chunk of columns")
            at = _HEAD.size
            previous = 0
            self._table: dict[str, tuple[int, int, int, int, int, int]] = {}
            for _ in range(count):
                length = blob[at]
                name = blob[at + 1 : at + 1 + length].decode("ascii")
                at += 1 + length
                form, shift, planes, base, end = _ENTRY.unpack_from(blob, at)
                at += _ENTRY.size
                if form & ~_STORED > _OFFSET or shift > 63 or planes > 8 or end < previous:
                    raise CorruptChunk(f"the chunk's table is damaged at column {name}")
                self._table[name] = (form, shift, planes, base, previous, end)
                previous = end
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CorruptChunk(f"the chunk's table is damaged: {error}") from error
        if len(blob) != at + previous:
            raise CorruptChunk(f"the chunk has {len(blob)} bytes, its table says {at + previous}")
        self._blob = blob
        self._start = at

    @property
    def names(self) -> list[str]:
        """Columns stored here; every other one is unknown in all rows."""
        return list(self._table)

    def column(self, name: str) -> IntArray:
        """The values of one column, shape (rows,); -1 throughout if it is not stored. About 50 µs for 4096 rows."""
        entry = self._table.get(name)
        if entry is None:
            return np.full(self.rows, UNKNOWN, np.int64)
        form, shift, planes, base, begin, end = entry
        if form == _CONSTANT:
            return np.full(self.rows, base, np.int64)
        delta = form & ~_STORED == _DELTA
        count = self.rows - 1 if delta else self.rows
        frame = self._blob[self._start + begin : self._start + end]
        if form & _STORED:
            raw = frame
        else:
            try:
                raw = _local.decompressor.decompress(frame, max_output_size=count * planes)
            except (zstandard.ZstdError, MemoryError) as error:
                raise CorruptChunk(f"column {name}: {error}") from error
        if len(raw) != count * planes:
            raise CorruptChunk(f"column {name}: {len(raw)} bytes where {count * planes} belong")
        unsigned = _joined(raw, count, planes)
        if not delta:
            unsigned <<= shift
            unsigned += base
            return unsigned
        sign = unsigned & 1
        np.negative(sign, out=sign)
        if planes == 8:  # the highest bit is one of the number, not a sign
            unsigned = (unsigned.view(np.uint64) >> np.uint64(1)).view(np.int64)
        else:
            unsigned >>= 1
        unsigned ^= sign
        unsigned <<= shift
        values = np.empty(self.rows, np.int64)
        values[0] = base
        np.cumsum(unsigned, out=values[1:])
        values[1:] += base
        return values


def _joined(raw: bytes, count: int, planes: int) -> IntArray:
    """Planes of bytes to numbers, all in contiguous passes: twice as fast as transposing into eight bytes a row."""
    parts = np.frombuffer(raw, np.uint8).reshape(planes, count)
    joined: IntArray = parts[planes - 1].astype(np.int64)
    for plane in range(planes - 2, -1, -1):
        joined <<= 8
        joined |= parts[plane]
    return joined


def encode_columns(columns: Mapping[str, IntArray], *, thorough: bool = False) -> bytes:
    """Pack named columns of equal length. See :func:`encode`."""
    return encode(list(columns), np.stack(list(columns.values())), thorough=thorough)


def columns_of(chunk: Chunk) -> Columns:
    """All columns that are stored in a chunk. About 0.2 ms for 18 columns of 256 rows. Raises CorruptChunk."""
    columns = {name: chunk.column(name) for name in chunk.names}
    if not columns:
        raise CorruptChunk("the chunk has no column")
    return columns


def concatenate(opened: Sequence[Columns]) -> Columns:
    """The columns of several chunks, one after the other; a column that one of them lacks is unknown there."""
    names = dict.fromkeys(name for columns in opened for name in columns)
    rows = [len(next(iter(columns.values()))) for columns in opened]
    absent = [np.full(count, UNKNOWN, np.int64) for count in rows]
    return {
        name: np.concatenate([columns.get(name, none) for columns, none in zip(opened, absent, strict=True)])
        for name in names
    }
