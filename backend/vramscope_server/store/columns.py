"""Codec of a chunk: int64 columns <-> one blob in which each column can be read without the others.

A column is stored as the cheapest of three forms:

constant   the value alone, without further bytes: series that never change (segments, OOMs, a temperature)
delta      differences between neighbours: counters, clocks, sawteeth
offset     distances from the smallest value: noise around a level

Deltas and offsets lose their common trailing zero bits (allocated bytes come in 512s, reserved bytes in 2 MiB), become
unsigned (zigzag), are cut to the bytes that the largest one needs, are stored plane by plane (all lowest bytes, then all
next ones ...) and pass through zstd, each column in its own frame. Lossless for every int64 value.

A column in which every value is unknown (-1) is not stored at all: reading an absent column returns unknowns.

Blob: ``b"vc2\\0"``, rows (u32), columns (u16); for each column its name (u8 length, ASCII) and an entry (form u8, shift
u8, planes u8, base i64, end-of-frame u32, CRC-32 of the frame u32); then the frames. Older blobs, ``b"vc1\\0"``, have no
CRC.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from vramscope_server.analysis.array_types import IntArray

UnsignedArray = npt.NDArray[np.uint64]
BytesArray = npt.NDArray[np.uint8]
Columns = Mapping[str, IntArray]

MAGIC: Final = b"vc2\0"
UNKNOWN: Final = -1
MAX_ROWS: Final = 1 << 16
"""Maximum number of rows of a blob: a damaged blob must not allocate any amount of memory."""
SMALL_ROWS: Final = 512
"""A quick chunk with at most this many rows is not compressed beyond its planes. It is merged soon, and each call of zstd
releases the interpreter, for which the other threads wait."""
_HEAD: Final = struct.Struct("<4sIH")
_ENTRY: Final = struct.Struct("<BBBqII")
_ENTRIES: Final = {MAGIC: _ENTRY, b"vc1\0": struct.Struct("<BBBqI")}
_CONSTANT, _DELTA, _OFFSET = 0, 1, 2
_UNKNOWN_COLUMN: Final = (_CONSTANT, 0, 0, UNKNOWN, 0, 0, None)
_STORED = 0x80
"""Flag on the form: the planes are stored uncompressed, because zstd did not shrink them."""


class CorruptChunk(ValueError):
    """A blob that is damaged, or that this codec did not write."""


class _Local(threading.local):
    """Contexts of zstd for this thread: they cannot be shared, and creating one costs more than a small frame."""

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
        self.thorough = compressor(3)  # 6 takes 1 ms more for 4096 rows and saves 0.2 %
        # The encoder uses windows of 2^17; a damaged frame may request gigabytes.
        self.decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << 17)


_local = _Local()


def encode(names: list[str], values: IntArray, *, thorough: bool = False) -> bytes:
    """Pack columns into one blob.

    names     shape (n,), ASCII, at most 255 characters each
    values    shape (n, rows), any int64
    thorough  also weigh offsets against deltas and compress harder: for chunks that stay (about 1.4 ms for 19 columns of
              4096 rows; without it 0.1 ms for 256 rows)
    """
    count, rows = values.shape
    if not 0 < rows <= MAX_ROWS or count != len(names):
        raise ValueError(f"{len(names)} names for an array of shape {values.shape}")
    compress = None
    if thorough or rows > SMALL_ROWS:
        compress = (_local.thorough if thorough else _local.quick).compress
    low, high = values.min(axis=1).tolist(), values.max(axis=1).tolist()
    deltas, shifts = _deltas(values)
    planes = _planes(deltas)
    table: list[bytes] = []
    frames: list[bytes] = []
    end = 0
    for i, name in enumerate(names):
        if low[i] == high[i] == UNKNOWN:
            continue
        encoded_name = name.encode("ascii")
        table.append(bytes([len(encoded_name)]) + encoded_name)
        if low[i] == high[i]:
            table.append(_ENTRY.pack(_CONSTANT, 0, 0, low[i], end, 0))
            continue
        form, shift, base, raw = _DELTA, shifts[i], int(values[i, 0]), planes[i]
        if thorough and high[i] - low[i] < 1 << 62:
            offsets, other = _offsets(values[i], low[i])
            if _bits(offsets) < 0.98 * _bits(deltas[i]):
                form, shift, base, raw = _OFFSET, other, low[i], _planes(offsets[np.newaxis])[0]
        frame = raw.tobytes()
        if compress is None or len(packed := compress(frame)) >= len(frame):
            form |= _STORED
        else:
            frame = packed
        frames.append(frame)
        end += len(frame)
        table.append(_ENTRY.pack(form, shift, len(raw), base, end, zlib.crc32(frame)))
    return b"".join([_HEAD.pack(MAGIC, rows, len(table) // 2), *table, *frames])


def _deltas(values: IntArray) -> tuple[UnsignedArray, list[int]]:
    """Differences between neighbours, of all columns at once, and the number of trailing zero bits of each column."""
    # They may wrap around for values at both ends of int64; unsigned arithmetic wraps back on reading.
    delta = values[:, 1:] - values[:, :-1]
    shifts = [_trailing_zeros(bits) for bits in np.bitwise_or.reduce(delta, axis=1).tolist()]
    delta >>= np.array(shifts)[:, np.newaxis]
    sign = delta >> 63
    delta <<= 1
    delta ^= sign
    return delta.view(np.uint64), shifts


def _offsets(values: IntArray, lowest: int) -> tuple[UnsignedArray, int]:
    """Distances of one column's values from the smallest, and their number of trailing zero bits."""
    distance = values - lowest
    shift = _trailing_zeros(int(np.bitwise_or.reduce(distance)))
    return (distance >> shift).view(np.uint64), shift


def _planes(unsigned: UnsignedArray) -> list[BytesArray]:
    """The bytes that the largest number of each row needs, lowest first: shape (planes, numbers)."""
    count, numbers = unsigned.shape
    needed = [max(1, (top.bit_length() + 7) // 8) for top in unsigned.max(axis=1, initial=0).tolist()]
    apart = unsigned.view(np.uint8).reshape(count, numbers, 8)[:, :, : max(needed)]
    laid_out = np.ascontiguousarray(apart.transpose(0, 2, 1))
    return [row[:planes] for row, planes in zip(laid_out, needed, strict=True)]


def _trailing_zeros(bits: int) -> int:
    return (bits & -bits).bit_length() - 1 if bits else 0


def _bits(unsigned: UnsignedArray) -> float:
    """Mean length in bits, from every eighth value: the cost with an ideal code of their magnitude."""
    return float(np.log2(unsigned[::8].astype(np.float64) + 1).mean())


class Chunk:
    """A blob opened for reading. Cheap: the table is read, and a column is decoded when it is read."""

    __slots__ = ("_blob", "_start", "_table", "rows")

    def __init__(self, blob: bytes) -> None:
        try:
            magic, self.rows, count = _HEAD.unpack_from(blob)
            entry_of = _ENTRIES.get(magic)
            if entry_of is None or not 0 < self.rows <= MAX_ROWS:
                raise CorruptChunk("not a chunk of columns")
            at = _HEAD.size
            previous = 0
            self._table: dict[str, tuple[int, int, int, int, int, int, int | None]] = {}
            for _ in range(count):
                length = blob[at]
                name = blob[at + 1 : at + 1 + length].decode("ascii")
                at += 1 + length
                form, shift, planes, base, end, *check = entry_of.unpack_from(blob, at)
                at += entry_of.size
                is_possible = form == _CONSTANT or 1 <= planes <= 8  # numbers of a constant column are in the table
                if not is_possible or form & ~_STORED > _OFFSET or shift > 63 or end < previous:
                    raise CorruptChunk(f"the chunk's table is damaged at column {name}")
                self._table[name] = (form, shift, planes, base, previous, end, check[0] if check else None)
                previous = end
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CorruptChunk(f"the chunk's table is damaged: {error}") from error
        if len(blob) != at + previous:
            raise CorruptChunk(f"the chunk has {len(blob)} bytes, its table says {at + previous}")
        self._blob = blob
        self._start = at

    @property
    def names(self) -> list[str]:
        """Names of the stored columns; every other one is unknown in all rows."""
        return list(self._table)

    def column(self, name: str) -> IntArray:
        """Values of one column, shape (rows,); all -1 if it is not stored. About 50 µs for 4096 rows."""
        form, shift, planes, base, *_ = self._table.get(name, _UNKNOWN_COLUMN)
        if form == _CONSTANT:
            return np.full(self.rows, base, np.int64)
        delta = form & ~_STORED == _DELTA
        unsigned = np.empty(self.rows - 1 if delta else self.rows, np.int64)
        self._join(name, unsigned)
        if not delta:
            unsigned <<= shift
            unsigned += base
            return unsigned
        values = np.empty(self.rows, np.int64)
        values[0] = base
        np.cumsum(_signed(unsigned, planes) << shift, out=values[1:])
        values[1:] += base
        return values

    def columns(self, names: Sequence[str]) -> dict[str, IntArray]:
        """Several columns; those of a small chunk all at once, at half the cost."""
        if self.rows > SMALL_ROWS:  # One at a time stays in the processor's cache.
            return {name: self.column(name) for name in names}
        deltas = [name for name in names if self._form(name) == _DELTA]
        found = {name: self.column(name) for name in names if name not in deltas}
        if deltas:
            unsigned = np.empty((len(deltas), self.rows - 1), np.int64)
            for name, row in zip(deltas, unsigned, strict=True):
                self._join(name, row)
            entries = [self._table[name] for name in deltas]
            delta = _signed(unsigned, max(entry[2] for entry in entries))
            delta <<= np.array([[entry[1]] for entry in entries])
            values = np.zeros((len(deltas), self.rows), np.int64)
            np.cumsum(delta, axis=1, out=values[:, 1:])
            values += np.array([[entry[3]] for entry in entries])
            found |= zip(deltas, values, strict=True)
        return found

    def _form(self, name: str) -> int:
        return self._table.get(name, _UNKNOWN_COLUMN)[0] & ~_STORED

    def _join(self, name: str, into: IntArray) -> None:
        """Numbers from planes of bytes, in contiguous passes: twice as fast as transposing into eight bytes a row."""
        form, _, planes, _, begin, end, check = self._table[name]
        size = into.size * planes
        raw = self._blob[self._start + begin : self._start + end]
        if check is not None and zlib.crc32(raw) != check:
            raise CorruptChunk(f"column {name}: its bytes are not those that were written")
        if not form & _STORED:
            try:
                raw = _local.decompressor.decompress(raw, max_output_size=size)
            except (zstandard.ZstdError, MemoryError) as error:
                raise CorruptChunk(f"column {name}: {error}") from error
        if len(raw) != size:
            raise CorruptChunk(f"column {name}: {len(raw)} bytes where {size} belong")
        parts = np.frombuffer(raw, np.uint8).reshape(planes, into.size)
        into[:] = parts[planes - 1]
        for plane in range(planes - 2, -1, -1):
            into <<= 8
            into |= parts[plane]


def _signed(zigzag: IntArray, planes: int) -> IntArray:
    """Reverse of :func:`_deltas`, in place if the highest bit allows it."""
    sign = zigzag & 1
    np.negative(sign, out=sign)
    if planes == 8:  # the highest bit is not a sign
        zigzag = (zigzag.view(np.uint64) >> np.uint64(1)).view(np.int64)
    else:
        zigzag >>= 1
    zigzag ^= sign
    return zigzag


def encode_columns(columns: Mapping[str, IntArray], *, thorough: bool = False) -> bytes:
    """Pack named columns of equal length. See :func:`encode`."""
    return encode(list(columns), np.stack(list(columns.values())), thorough=thorough)


def columns_of(chunk: Chunk) -> Columns:
    """All stored columns of a chunk. About 0.2 ms for 19 columns of 256 rows. Raises CorruptChunk."""
    columns = chunk.columns(chunk.names)
    if not columns:
        raise CorruptChunk("the chunk has no column")
    return columns


def concatenate(opened: Sequence[Columns]) -> Columns:
    """Columns of several chunks, concatenated; a column that a chunk lacks is unknown there."""
    names = dict.fromkeys(name for columns in opened for name in columns)
    rows = [len(next(iter(columns.values()))) for columns in opened]
    absent = [np.full(count, UNKNOWN, np.int64) for count in rows]
    return {
        name: np.concatenate([columns.get(name, none) for columns, none in zip(opened, absent, strict=True)])
        for name in names
    }
