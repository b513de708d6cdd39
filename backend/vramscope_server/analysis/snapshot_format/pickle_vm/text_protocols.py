"""Rewrites pickles of protocols 0 and 1, whose opcodes have lines of text as arguments, with the opcodes of protocol 2.

The machine supports only the opcodes that PyTorch writes. From the first text opcode on, a file is rewritten here, which takes
about 10 ns for each opcode. Lines are parsed as Python's own unpickler parses them.
"""

from __future__ import annotations

import codecs
import pickle
import struct
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.numba_compile import lean, lean_entry
from vramscope_server.analysis.snapshot_format.pickle_vm.opcodes import (
    DO_LINE,
    DO_PERSISTENT,
    DO_STOP,
    argument_of,
    kind_of,
)

_INT, _LONG, _FLOAT, _STRING, _UNICODE, _GET, _PUT = (ord(code) for code in "ILFSVgp")
_BININT, _BININT1, _LONG1, _BINUNICODE, _LONG_BINGET, _LONG_BINPUT = (
    ord(code)
    for code in (pickle.BININT, pickle.BININT1, pickle.LONG1, pickle.BINUNICODE, pickle.LONG_BINGET, pickle.LONG_BINPUT)
)
_NEWLINE, _BACKSLASH, _QUOTE, _DOUBLE_QUOTE, _MINUS, _DIGIT_0, _LONG_SIGN = (ord(sign) for sign in "\n\\'\"-0L")
_DIGITS: Final = 18
"""Number of digits up to which each integer fits 64 bits."""
_NAME_BYTES: Final = 400
"""Maximum bytes of a refused name that the error message quotes."""
_AT, _WRITTEN, _END = range(3)
_FULL, _CUT, _ODD, _LAST = range(4)
"""Why rewriting stopped: output is full; data ends within an opcode; a line needs Python; the pickle ended."""
Octets = npt.NDArray[np.uint8]


class BadLine(ValueError):
    """A line that is no argument of its opcode. Its arguments: the opcode, and its position in the pickle."""


class TooLong(ValueError):
    """An opcode with an argument of more bytes than ``most``. Its argument: the least number of bytes."""


class WithoutLines:
    """File of the rewritten bytes of a pickle, from its first text opcode on. Reading raises BadLine and TooLong."""

    def __init__(self, beginning: bytes, rest: IO[bytes], before: int, *, most: int, chunk_bytes: int) -> None:
        """``beginning``: bytes that were read already; ``before``: number of bytes of the pickle before them."""
        self._data: Octets = np.frombuffer(beginning, np.uint8).copy()
        self._rest, self._most, self._chunk_bytes = rest, most, chunk_bytes
        self._used, self._before, self._begins = 0, before, before
        self._out: Octets = np.empty(0, np.uint8)
        self._given, self._last = 0, False

    def readinto(self, room: memoryview) -> int:
        """Fill ``room`` with the next bytes. Returns their number; 0 at the end."""
        if self._given == len(self._out) and not self._last:
            self._write_on()
        given = self._out[self._given : self._given + len(room)]
        np.frombuffer(room, np.uint8)[: len(given)] = given
        self._given += len(given)
        return len(given)

    @property
    def read_bytes(self) -> int:
        """Bytes of the pickle read so far."""
        return self._before + len(self._data)

    def place_of(self, at: int) -> tuple[int, int]:
        """Return the opcode that became the rewritten byte ``at``, and its position in the pickle."""
        used = self._written(at - self._begins)[1]
        return int(self._data[used]), self._before + used

    def _write_on(self) -> None:
        self._begins += len(self._out)
        self._before += self._used
        self._data = self._data[self._used :]
        while True:
            self._out, self._used, ended = self._written(3 * len(self._data) + 16)
            self._given, self._last = 0, ended == _LAST
            if len(self._out) or self._last:
                return
            if len(self._data) > self._most:
                raise TooLong(len(self._data))
            more = self._rest.read(self._chunk_bytes)
            if not more:
                return
            self._data = np.concatenate([self._data, np.frombuffer(more, np.uint8)])

    def _written(self, most: int) -> tuple[Octets, int, int]:
        """Rewrite about ``most`` bytes. Returns them, the number of bytes that they came from, and why rewriting stopped."""
        # FLOAT grows most: 9 bytes of at least 3
        out = np.empty(3 * len(self._data) + 16, np.uint8)
        state = np.zeros(3, np.int64)
        while True:
            ended = rewritten(self._data, out, most, state, self._most, kind_of, argument_of)
            at, written, end = state.tolist()
            if ended != _ODD:
                return out[:written], at, ended
            opcode = int(self._data[at])
            try:
                binary = _binary(opcode, self._data[at + 1 : end].tobytes())
            except (ValueError, OverflowError):
                if written:  # an error in the bytes before it is reported first
                    return out[:written], at, _FULL
                raise BadLine(opcode, self._before + at) from None
            out[written : written + len(binary)] = np.frombuffer(binary, np.uint8)
            state[:] = end + 1, written + len(binary), 0


def _binary(opcode: int, line: bytes) -> bytes:
    """Return an opcode without a line for one with a line. Raises ValueError where Python's unpickler would."""
    if opcode in (_INT, _LONG):
        if opcode == _INT and line in (b"00", b"01"):
            return pickle.NEWTRUE if line == b"01" else pickle.NEWFALSE
        number = pickle.encode_long(int(line.removesuffix(b"L") if opcode == _LONG else line, 0))
        if len(number) < 256:
            return pickle.LONG1 + bytes([len(number)]) + number
        return pickle.LONG4 + struct.pack("<i", len(number)) + number
    if opcode == _FLOAT:
        return pickle.BINFLOAT + struct.pack(">d", float(line))
    if opcode == _UNICODE:
        text = line.decode("raw-unicode-escape").encode("utf-8", "surrogatepass")
    elif opcode == _STRING and len(line) > 1 and line[0] == line[-1] and line[0] in (_QUOTE, _DOUBLE_QUOTE):
        text = codecs.escape_decode(line[1:-1])[0]
        text.decode("ascii")
    else:
        raise ValueError(line)
    return pickle.BINUNICODE + struct.pack("<I", len(text)) + text


# ---- compiled ----


@lean_entry
def rewritten(data: Any, out: Any, most: int, state: Any, longest: int, kind_of: Any, argument_of: Any) -> int:
    """Rewrite ``data`` from ``state`` on into ``out``, whole opcodes up to ``most`` bytes. Returns why it stopped."""
    at, written, end, size = state[_AT], state[_WRITTEN], np.int64(0), len(data)
    ended = _FULL
    while written < most:
        if at >= size:
            ended = _CUT
            break
        opcode = data[at]
        kind = kind_of[opcode]
        if kind == DO_LINE:
            end = at + 1
            while end < size and data[end] != _NEWLINE:
                end += 1
            if end >= size:
                ended = _CUT
                break
            length = _plainly(data, opcode, at + 1, end, out, written)
            if length == 0:
                ended = _ODD
                break
            written += length
            at = end + 1
            continue
        width = argument_of[opcode]
        length = 1 + abs(width)
        if kind > DO_PERSISTENT and at + length <= size and width < 0:
            payload_bytes = np.int64(0)
            for byte in range(-width):
                payload_bytes |= np.int64(data[at + 1 + byte]) << (8 * byte)
            length = length + payload_bytes if 0 <= payload_bytes <= longest else -1
        if (
            kind <= DO_PERSISTENT or kind == DO_STOP or length < 0
        ):  # the machine stops here, with an error if there is one
            ended, length = _LAST, min(size - at, _NAME_BYTES)
        elif at + length > size:
            ended = _CUT
            break
        written += _copied(data, at, at + length, out, written)
        at += length
        if ended == _LAST:
            break
    state[_AT], state[_WRITTEN], state[_END] = at, written, end
    return ended


@lean
def _plainly(data: Any, opcode: int, begin: int, end: int, out: Any, to: int) -> Any:
    """Rewrite an opcode with a line of digits, or of letters without an escape. Returns the bytes written; 0 for other lines."""
    if opcode in (_STRING, _UNICODE):
        if opcode == _STRING:
            if end - begin < 2 or data[begin] != data[end - 1] or data[begin] not in (_QUOTE, _DOUBLE_QUOTE):
                return 0
            begin, end = begin + 1, end - 1
        for at in range(begin, end):
            if data[at] == _BACKSLASH or data[at] >= 128:
                return 0
        return _little(out, to, _BINUNICODE, end - begin, 4) + _copied(data, begin, end, out, to + 5)
    if opcode == _FLOAT:
        return 0
    if opcode == _LONG and end > begin and data[end - 1] == _LONG_SIGN:
        end -= 1
    first = begin + 1 if end > begin and data[begin] == _MINUS else begin
    digits = end - first
    if digits < 1 or digits > _DIGITS or (digits > 1 and data[first] == _DIGIT_0):
        return 0
    number = np.int64(0)
    for at in range(first, end):
        digit = np.int64(data[at]) - _DIGIT_0
        if digit < 0 or digit > 9:
            return 0
        number = number * 10 + digit
    if opcode in (_GET, _PUT):
        if first > begin or number >> 31:
            return 0
        return _little(out, to, _LONG_BINGET if opcode == _GET else _LONG_BINPUT, number, 4)
    if first > begin:
        number = -number
    if 0 <= number < 256:
        return _little(out, to, _BININT1, number, 1)
    if -(1 << 31) <= number < 1 << 31:
        return _little(out, to, _BININT, number, 4)
    out[to] = _LONG1
    return 1 + _little(out, to + 1, 8, number, 8)


@lean
def _little(out: Any, to: int, opcode: int, number: Any, width: int) -> Any:
    """Write an opcode (or a length) and a number of this many bytes. Returns the number of bytes written."""
    out[to] = opcode
    for byte in range(width):
        out[to + 1 + byte] = (number >> (8 * byte)) & 255
    return 1 + width


@lean
def _copied(data: Any, begin: int, end: int, out: Any, to: int) -> Any:
    """Copy bytes. Returns their number."""
    for at in range(end - begin):
        out[to + at] = data[begin + at]
    return end - begin
