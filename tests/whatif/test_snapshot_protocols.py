"""A snapshot says the same in each of pickle's six protocols; what its text opcodes may say is what Python's unpickler takes."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_snapshot import FRAMES, event, plain
from test_snapshot_reader import refusal

from vramscope_server.analysis.snapshot_format import stream
from vramscope_server.analysis.snapshot_format.items import Items
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import KNOWN_WORDS
from vramscope_server.analysis.snapshot_format.reader import BadSnapshot, read

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
WHOLE = st.integers(-(1 << 63), (1 << 64) - 1)


def in_python(snapshot: Any, protocol: int) -> bytes:
    """By the pickler that the standard library has in Python, which writes other opcodes here and there."""
    out = io.BytesIO()
    pickle._Pickler(out, protocol).dump(snapshot)  # type: ignore[attr-defined]
    return out.getvalue()


def told_by(trace: Any) -> dict[str, Any]:
    """All that was read, in words instead of numbers where numbers may differ."""
    frames = [
        (trace.words[file], line, trace.words[function])
        for file, line, function in zip(*(trace.frames[name] for name in ("file", "line", "function")), strict=True)
    ]
    stacks = [[frames[at] for at in stack] for stack in trace.stacks] + [None]
    columns = {
        (part, name): getattr(rows, name)
        for part, rows in (("events", trace.events), ("segments", trace.end.segments), ("blocks", trace.end.blocks))
        for name in rows.__slots__
    }
    for (part, name), column in columns.items():
        if name == "stack":
            columns[part, name] = [stacks[at] for at in column]
        elif name == "pool":
            columns[part, name] = [trace.pools[at] if at >= 0 else None for at in column]
        else:
            columns[part, name] = column.tolist()
    return columns | {"settings": trace.settings, "in force": trace.settings_in_force, "notes": trace.notes}


@pytest.mark.parametrize("kind", ["lengths", "evaluation", "ring", "died"])
def test_a_real_snapshot_is_the_same_in_each_protocol(recorded: dict[str, Any], kind: str) -> None:
    with gzip.open(recorded[kind].path) as file:
        snapshot = pickle.load(file)
    expected = [told_by(trace) for trace in read(recorded[kind].path).devices]
    for protocol in PROTOCOLS:
        for dumped in (pickle.dumps, in_python) if protocol < 2 else (pickle.dumps,):
            data = dumped(snapshot, protocol)
            assert data[:1] != b"\x80" or protocol > 1, "what 0 and 1 do not tell"
            found = [told_by(trace) for trace in read(data).devices]
            assert found == expected, (protocol, dumped)


def values_of(data: bytes) -> dict[str, Any]:
    """Plain values that a pickled dict holds, as the machine reads them."""
    tables, item = stream.run(data, max_bytes=1 << 30, max_table_bytes=1 << 30)
    return Items(tables).plain_dict(item, "told")


def as_read(value: Any) -> Any:
    """A value as it is compared here: numbers that no field can have are only marked as such; half characters are left out."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return "a number of more than 64 bits"
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value


@settings(deadline=None)
@given(st.dictionaries(st.text().filter(lambda key: key not in KNOWN_WORDS), st.one_of(
    WHOLE, st.integers(), st.floats(allow_nan=False), st.text(st.characters(codec=None)), st.booleans(), st.none(),
)))  # fmt: skip
@example(
    {"a": 10**18, "b": -(10**18), "c": (1 << 63) - 1, "d": -(1 << 63), "e": 1 << 64, "f": -(1 << 31), "g": 1 << 31}
)
@example({"a": 255, "b": 256, "c": 0, "d": -1, "e": True, "f": False, "g": None, "h": 1e-5, "i": float("inf")})
@example({"a\nb": "\\", "\\u0041": "\\\n\r\0\x1a", "\xe9": "\u20ac", "\U0001f600": "\ud800", "": "\x7f\x80\xff"})
def test_values_are_those_that_were_pickled(pickled: dict[str, Any]) -> None:
    expected = {as_read(key): as_read(value) for key, value in pickled.items()}
    for protocol in PROTOCOLS:
        for dumped in (pickle.dumps, in_python):
            found = values_of(dumped(pickled, protocol))
            assert found == expected, (protocol, dumped)
            assert {key: type(value) for key, value in found.items()} == {
                key: type(value) for key, value in expected.items()
            }


LINE = st.one_of(
    st.binary(max_size=12),
    st.from_regex(rb"\A[-+ ]?(0[xob])?[0-9a-f_]{0,22}L?\Z"),
    st.from_regex(rb"\A[\"'](\\[xun0-7\\']|[a-z\"'\xe9]){0,6}[\"']?\Z"),
    st.from_regex(rb"\A[-+]?[0-9]{0,3}\.?[0-9]{0,3}(e-?[0-9]{1,3})?\Z"),
)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@settings(deadline=None)
@given(st.sampled_from("ILFSV"), LINE.filter(lambda line: b"\n" not in line))
def test_a_line_says_what_it_says_to_pythons_unpickler_or_is_refused_by_both(opcode: str, line: bytes) -> None:
    data = b"(dV" + b"told\n" + opcode.encode() + line + b"\ns."
    try:
        expected = as_read(pickle._loads(data)["told"])  # type: ignore[attr-defined]  # (that in C takes NUL for an end)
    except (ValueError, pickle.UnpicklingError):
        assert "at byte 8 has no such line" in refusal(data)
        return
    found = values_of(data)["told"]
    assert type(found) is type(expected)
    assert found == expected or (found != found and expected != expected)


def test_strings_of_python_2_are_read() -> None:
    """Quoted in lines, or with their lengths, as its picklers wrote them in all of their protocols."""
    reported = b"(dS'one'\nU\x03twosS\"it's \\\\ \\x41\"\nT\x05\x00\x00\x00threes."
    assert values_of(reported) == pickle.loads(reported) == {"one": "two", "it's \\ A": "three"}
    assert values_of(b"\x80\x02" + reported) == values_of(reported), "and among the others of protocol 2"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_does_not_matter_where_the_reading_pauses(
    protocol: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = plain() | {
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a\u20ac\\" * 40, "big": 1 << 70, "half": 0.5}
    }
    expected = told_by(read(pickle.dumps(snapshot)).devices[0])
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk_bytes)
    assert told_by(read(pickle.dumps(snapshot, protocol)).devices[0]) == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"(dp0\nS'a'\nI5x\ns.", "the opcode INT at byte 10 has no such line"),
        (
            b"(lp0\nI" + b"9" * 5000 + b"\na.",
            "the opcode INT at byte 5 has no such line",
        ),  # Python's own limit is 4,300
        (b"(lp0\nI1\nI2", "ends after 10 bytes"),
        (b"(I1\n" * 80, "nests its objects too deep, at byte 256"),
        (b"(lp0\nI1\nR.", "the opcode REDUCE at byte 8"),
        (b"(lp0\nI1\n\xff.", "the byte 0xff at byte 8"),
        (b"(lp0\nI1\nss.", "the opcode SETITEM at byte 8"),
        (b"(lp0\nI1\nPabc\n.", "an object outside of it"),
        (b"(lp0\nI1\n(iposix\nmkdir\n.", "the global posix.mkdir"),
        (b"(lp0\nI1\n" + b"I2\n0" * 3_000_000 + b"R.", "the opcode REDUCE at byte 12,000,008"),
        (b"(lp5000000000\n.", "the opcode PUT at byte 2 has no such line"),
        (b"(lp77\n.", "the opcode PUT at byte 2 has nothing to work on"),
        (b"(lp0\ng1\n.", "the opcode GET at byte 5 has nothing to work on"),
        (b"(lp0\nV" + b"x" * 70_000_000 + b"\n.", "a text of 70,000,0"),
        (b"(lp0\nV" + b"x" * 70_000_000, "a text of 70,000,0"),
        (b"(lp0\nI1\nX" + struct.pack("<I", 0x7FFFFFFF) + b"abc", "a text of 2,147,483,6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_what_is_wrong_with_lines_is_named_with_its_place(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_lines_are_bounded_as_the_rest_is() -> None:
    assert "up to 1,000 can be read" in refusal(gzip.compress(b"(lp0\n" + b"I1\na" * 10_000_000), max_bytes=1000)
    assert "more than 9,000,000 bytes of memory" in refusal(
        b"(lp0\n(" + b"I1\n" * 3_000_000, max_memory_bytes=9_000_000
    )


def damages(data: bytes, draw: random.Random) -> list[Callable[[bytearray], None]]:
    def changed(copy: bytearray) -> None:
        copy[draw.randrange(len(copy))] = draw.choice(b"ILFSVgpdlas(t.\n0123\\'N}]u" + bytes([draw.randrange(256)]))

    def moved(copy: bytearray) -> None:
        begin, length, to = draw.randrange(len(copy)), draw.randrange(1, 40), draw.randrange(len(copy))
        copy[to:to] = copy[begin : begin + length]

    def gone(copy: bytearray) -> None:
        begin = draw.randrange(len(copy))
        del copy[begin : begin + draw.randrange(1, 40)]

    return [changed, moved, gone]


@pytest.mark.parametrize("protocol", [0, 1])
def test_garbage_among_lines_gives_a_word_or_a_snapshot_and_never_another_error(protocol: int) -> None:
    """Opcodes put where they do not belong, pieces doubled and gone, 3,000 times from one seed."""
    contents = plain()
    contents["device_traces"][0] += [
        event("alloc", addr=512 * at, size=at, frames=FRAMES[: at % 3]) for at in range(1, 9)
    ]
    data = pickle.dumps(contents, protocol)
    draw = random.Random(7)
    read_all = 0
    for _ in range(3000):
        copy = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            draw.choice(damages(data, draw))(copy)
        try:
            snapshot = read(bytes(copy))
        except BadSnapshot:
            continue
        read_all += 1
        assert all(np.all(trace.end.blocks.size_bytes > 0) for trace in snapshot.devices)
    assert read_all > 10
