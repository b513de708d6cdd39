"""Feeds the bytes of a snapshot file, gzipped or not, to the pickle machine, a few MiB at a time."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from vramscope_server.analysis.snapshot_format.pickle_vm import machine, opcodes, row_tables
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    AT,
    BLOCK,
    CONSTANT,
    EVENT,
    FALSE,
    FAULT_ITEM,
    FAULT_KIND,
    FAULT_WORD,
    FLOAT,
    HEIGHT,
    INTEGER,
    KNOWN_WORDS,
    LIST,
    NEED,
    POOL,
    SEGMENT,
    TAG_BITS,
    TRUE,
    UNSIGNED,
    WHOLE,
    WIDE,
    WORD,
    Grown,
    Tables,
    empty_tables,
    with_room,
    words_of,
)
from vramscope_server.analysis.snapshot_format.pickle_vm.text_protocols import BadLine, TooLong, WithoutLines

CHUNK_BYTES: Final = 4 << 20
MAX_TEXT_BYTES: Final = 64 << 20
"""Maximum size of one text in the file."""
_NOUNS: Final = {EVENT: "an event", BLOCK: "a block", SEGMENT: "a segment"}
_ZIPPED: Final = b"\x1f\x8b"
_NO_PROTOCOL: Final = (b"(", b"}", b"]")
"""Starts of a list or dict whose type protocols 0 and 1 do not show: a mark, or empty."""
_SIGNS: Final = (
    (_ZIPPED, "gzipped twice: unpack it once"),
    (b"\xfd7zXZ", "packed by xz: unpack it, or pack it by gzip"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd: unpack it, or pack it by gzip"),
    (b"BZh", "packed by bzip2: unpack it, or pack it by gzip"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip file, as torch.save() writes: a checkpoint, not a snapshot"),
    (b"<", "HTML or XML"),
    (b"\x93NUMPY", "a numpy array"),
    (b"SQLite", "an SQLite database"),
    (b"\x7fELF", "a program"),
)

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes of the file). An exception in it ends the reading."""


class BadSnapshot(ValueError):
    """The file is not a PyTorch snapshot, or cannot be read. The message has the reason."""


def run(
    source: Path | bytes, *, max_bytes: int, max_table_bytes: int, progress: Progress | None = None
) -> tuple[Tables, int]:
    """Return the tables of a file, and the item that its pickle contains.

    Raises BadSnapshot, OSError, and any exception of ``progress``.
    """
    total = len(source) if isinstance(source, bytes) else source.stat().st_size
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        begin = file.read(2)
        file.seek(0)
        if not begin:
            raise BadSnapshot("the file is empty")
        try:
            if begin == _ZIPPED:
                with gzip.GzipFile(fileobj=file) as unzipped:
                    return _Reading(unzipped, file, total, max_bytes, max_table_bytes, progress).run()
            return _Reading(file, file, total, max_bytes, max_table_bytes, progress).run()
        except EOFError:
            raise BadSnapshot("the file is cut off: its gzip stream has no end") from None
        except (gzip.BadGzipFile, zlib.error) as fault:
            raise BadSnapshot(f"damaged: {fault}") from None
        except Grown:
            raise BadSnapshot(f"reading the file takes more than {max_table_bytes:,} bytes of memory") from None


class _Reading:
    def __init__(
        self,
        unzipped: Any,
        file: IO[bytes],
        total: int,
        max_bytes: int,
        max_table_bytes: int,
        progress: Progress | None,
    ) -> None:
        self.unzipped, self.file, self.total = unzipped, file, total
        self.max_bytes, self.max_table_bytes, self.progress = max_bytes, max_table_bytes, progress
        self.tables = empty_tables()
        self.buffer: Any = np.empty(CHUNK_BYTES, np.uint8)
        self.size = 0
        """Bytes in the buffer."""
        self.before = 0
        """Bytes of the pickle before the start of the buffer."""
        self.lines: WithoutLines | None = None
        """Converter of text protocols, from the first text line on."""

    def run(self) -> tuple[Tables, int]:
        words = [word.encode() for word in KNOWN_WORDS]
        ends = np.cumsum([len(word) for word in words])
        row_tables.add_known_words(self.tables, np.frombuffer(b"".join(words), np.uint8), ends)
        self._machine()  # without any data: if it must be compiled, that happens before the first report of progress
        self._read_on()
        self._check_file_type()
        while True:
            ended = self._machine()
            verdict, what = ended & 255, ended >> 8
            if verdict == opcodes.DONE:
                return self.tables, int(self.tables.stack[0])
            if verdict == opcodes.MORE:
                self._read_on()
            elif verdict == opcodes.ROOM:
                slots = [name for name in self.tables._fields if name.endswith("_slots")]
                old = [getattr(self.tables, name) for name in slots]
                self.tables = with_room(self.tables, what, int(self.tables.count[NEED]), self.max_table_bytes)
                if any(getattr(self.tables, name) is not one for name, one in zip(slots, old, strict=True)):
                    row_tables.rebuild_slots(self.tables, what)
            elif verdict == opcodes.LINE and self.lines is None:
                self._without_lines()
            else:
                raise BadSnapshot(self._refusal(verdict))

    def _without_lines(self) -> None:
        """Rewrite the file from here on, before the machine gets it."""
        at = int(self.tables.count[AT])
        beginning = self.buffer[at : self.size].tobytes()
        self.unzipped = self.lines = WithoutLines(
            beginning, self.unzipped, self.before + at, most=MAX_TEXT_BYTES, chunk_bytes=CHUNK_BYTES
        )
        self.size, self.tables.count[NEED] = at, 1
        self._read_on()

    def _machine(self) -> int:
        return machine.run(self.tables, self.buffer, self.size, opcodes.kind_of, opcodes.argument_of)

    def _read_on(self) -> None:
        """Read more bytes into the buffer, after those that the machine has not used yet."""
        at, wanted = int(self.tables.count[AT]), int(self.tables.count[NEED])
        left = self.size - at
        if wanted > max(MAX_TEXT_BYTES, len(self.buffer)):
            raise BadSnapshot(self._too_long(wanted))
        kept = self.buffer[at : self.size].copy()
        if wanted > len(self.buffer):
            self.buffer = np.empty(wanted + CHUNK_BYTES, np.uint8)
        self.buffer[:left] = kept
        self.before += at
        if self.before + left >= self.max_bytes:
            raise BadSnapshot(f"more than {self.max_bytes:,} bytes, unpacked; up to {self.max_bytes:,} can be read")
        room = min(len(self.buffer) - left, self.max_bytes - self.before - left)
        try:
            read = self.unzipped.readinto(memoryview(self.buffer)[left : left + room])
        except BadLine as fault:
            opcode, at = fault.args
            raise BadSnapshot(f"the pickle is damaged: {self._name(opcode)} at byte {at:,} has no such line") from None
        except TooLong as fault:
            raise BadSnapshot(self._too_long(*fault.args)) from None
        if self.progress is not None:
            self.progress(self.file.tell(), self.total)
        self.tables.count[AT], self.size = 0, left + read
        if not read:
            raise BadSnapshot(f"the file is cut off: it ends after {self._read_bytes(left):,} bytes, within the pickle")

    def _too_long(self, wanted: int) -> str:
        if self.lines is None and self.file.tell() >= self.total:
            return f"the file is cut off: it ends after {self._read_bytes(self.size):,} bytes, within the pickle"
        return f"a text of {wanted:,} bytes in it; up to {MAX_TEXT_BYTES:,} can be read"

    def _check_file_type(self) -> None:
        """Raise BadSnapshot if the first bytes are not those of a pickle."""
        begin = self.buffer[: min(self.size, 4096)].tobytes()
        if begin[:1] == b"\x80" and begin[1:2] <= b"\x05":
            return
        for sign, text in _SIGNS:
            if begin.lstrip()[: len(sign)] == sign:
                raise BadSnapshot(f"the file is no pickle; it is {text}")
        if begin[:1] in _NO_PROTOCOL:
            return
        if begin.lstrip()[:1] in (b"{", b"["):
            trace = b'"traceEvents"' in begin or b'"schemaVersion"' in begin
            text = "a Chrome trace, as torch.profiler writes; open it in Perfetto" if trace else "JSON"
            raise BadSnapshot(f"the file is no pickle; it is {text}")
        raise BadSnapshot("the file is no pickle")

    # ---- refusals ----

    def _refusal(self, verdict: int) -> str:
        count = self.tables.count
        at = int(count[AT])
        code, byte = int(self.buffer[at]), self.before + at
        if self.lines is not None:
            code, byte = self.lines.place_of(byte)
        place = f"{self._name(code)} at byte {byte:,}"
        if verdict == opcodes.FOREIGN:
            return f"the pickle asks for the global {self._global(at)}; a snapshot has none. Nothing was executed."
        if verdict == opcodes.ELSEWHERE:
            return "the pickle asks for an object outside of it; a snapshot has none. Nothing was executed."
        if verdict == opcodes.FORBIDDEN:
            return f"the pickle does more than the plain data of a snapshot needs: {place}"
        if verdict == opcodes.DEEP:
            return f"the pickle nests its objects too deep, at byte {byte:,}"
        if verdict == opcodes.CHANGED:
            return f"the pickle changes a list or dict after its use, or mixes frames with other things: {place}"
        if verdict == opcodes.FIELD:
            return self._wrong_field()
        return f"the pickle is damaged: {place} has nothing to work on, or is none"

    def _read_bytes(self, size: int) -> int:
        """Return the bytes of the pickle read so far, with ``size`` bytes in the buffer."""
        return self.before + size if self.lines is None else self.lines.read_bytes

    @staticmethod
    def _name(code: int) -> str:
        return f"the opcode {opcodes.NAME_OF[code]}" if code in opcodes.NAME_OF else f"the byte {code:#04x}"

    def _global(self, at: int) -> str:
        """Return the name that the pickle would import, as far as it is in the buffer."""
        if opcodes.NAME_OF[int(self.buffer[at])] == "STACK_GLOBAL":
            items = self.tables.stack[
                max(int(self.tables.count[HEIGHT]) - 2, 0) : int(self.tables.count[HEIGHT])
            ].tolist()
            return ".".join(f"{value_of(self.tables, item)!s:.80}" for item in items)
        lines = self.buffer[at + 1 : min(self.size, at + 400)].tobytes().split(b"\n")[:2]
        return ".".join(part.decode("ascii", "replace")[:80] for part in lines)

    def _wrong_field(self) -> str:
        count = self.tables.count
        word, item, kind = int(count[FAULT_WORD]), int(count[FAULT_ITEM]), int(count[FAULT_KIND])
        field, noun = words_of(self.tables, [word])[0], _NOUNS[kind]
        seen = value_of(self.tables, item)
        if field == "frames":
            return "frames: a frame that is no dict" if isinstance(seen, list) else f"frames of {noun}: no list"
        if field in ("pool_id", "segment_pool_id"):
            return f"the id of a pool: {seen!r:.40}, expected two integers"
        if field == "blocks":
            return "blocks of a segment: no list"
        if field == "history":
            return "history of a block: no list of allocations, each with its real_size"
        expected = {
            "action": "a word", "segment_type": "a word", "state": "a word", "device": "0 to 1023",
        }.get(field, "an integer")  # fmt: skip
        if type(seen) is int and field in ("size", "device_free"):
            return f"{field} of an event: {seen}, and it cannot be below 0"
        return f"{field} of {noun}: {'missing' if seen is None else f'{seen!r:.40}'}, expected {expected}"


def value_of(tables: Tables, item: int) -> Any:
    """Return an item as a Python object. A list or dict is returned empty."""
    tag, number = item & ((1 << TAG_BITS) - 1), item >> TAG_BITS
    if tag == INTEGER:
        return number
    if tag == WORD:
        return words_of(tables, [number])[0]
    if tag == CONSTANT:
        return {TRUE: True, FALSE: False}.get(number)
    if tag == POOL:
        return tuple(tables.pools[number].tolist())
    if tag == WIDE:
        kind, bits = tables.wide[number].tolist()
        if kind == FLOAT:
            return float(np.int64(bits).view(np.float64))
        if kind == UNSIGNED:
            return bits + (1 << 64)
        return bits if kind == WHOLE else "a number of more than 64 bits"
    return [] if tag == LIST else {}
