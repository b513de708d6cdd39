"""Many small messages become few large ones, and not a row is lost, doubled or moved."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from collector import attached, column, numbers, sample
from hypothesis import given
from hypothesis import strategies as st

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series
from vramscope.transport import batching

NAMES = ("time_ns", "step", "phase", "allocated_bytes")


@st.composite
def blocks(draw: st.DrawFn) -> wire_messages.Block:
    rows = draw(st.integers(1, 5))
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    values = st.lists(st.integers(-1, series.MAX_VALUE), min_size=rows, max_size=rows)
    return wire_messages.Block(
        stream=draw(st.sampled_from(["samples", "steps"])),
        device=draw(st.integers(-1, 1)),
        rows=rows,
        columns={name: column(*draw(values)) for name in sorted(names)},
    )


events = st.builds(wire_messages.Event, time_ns=st.integers(0, 10**6), kind=st.just("notice"))
messages = st.lists(st.one_of(blocks(), events), max_size=15)


def rows_of(found: list[wire_messages.Message]) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """The rows of each stream and device in order, with each column that a row lacks as unknown."""
    rows = defaultdict(list)
    for message in found:
        if isinstance(message, wire_messages.Block):
            unknown = [series.UNKNOWN] * message.rows
            columns = [numbers(message.columns[name]) if name in message.columns else unknown for name in NAMES]
            rows[message.stream, message.device] += list(zip(*columns, strict=True))
    return dict(rows)


@given(messages)
def test_merged_blocks_have_the_same_rows_in_the_same_order(found):
    merged = batching.merge(found)
    assert rows_of(merged) == rows_of(found)
    assert [m for m in merged if isinstance(m, wire_messages.Event)] == [
        m for m in found if isinstance(m, wire_messages.Event)
    ]
    assert batching.rows_in(merged) == batching.rows_in(found)


@given(messages)
def test_there_is_one_block_for_each_stream_and_device(found):
    merged = [(m.stream, m.device) for m in batching.merge(found) if isinstance(m, wire_messages.Block)]
    assert len(merged) == len(set(merged))


@given(messages)
def test_two_halves_of_a_batch_have_the_same_rows(found):
    cut = batching.split(packed(found))
    if cut is None:
        assert len(found) == 0 or (len(found) == 1 and batching.rows_in(found) <= 1)
        return
    first, second = cut
    assert first and second
    assert rows_of(first + second) == rows_of(found)


def packed(found: list[wire_messages.Message]) -> bytes:
    return batching.encode(
        wire_messages.Batch(wire=1, session="s" * 8, run="r" * 8, rank=0, sequence=5, sent_ns=1, messages=found)
    )


def test_a_block_never_grows_beyond_what_the_wire_allows():
    half = sample(*range(40_000))
    merged = [m for m in batching.merge([half, half, half]) if isinstance(m, wire_messages.Block)]
    assert [m.rows for m in merged] == [40_000, 40_000, 40_000]
    quarter = sample(*range(30_000))
    merged = [m for m in batching.merge([quarter, quarter, quarter]) if isinstance(m, wire_messages.Block)]
    assert [m.rows for m in merged] == [60_000, 30_000]


def test_a_malformed_block_does_not_shift_its_neighbours():
    crooked = wire_messages.Block(stream="samples", device=0, rows=2, columns={"step": column(7)})
    merged = batching.merge([sample(1), crooked, sample(2)])
    assert crooked in merged
    assert numbers(merged[0].columns["step"]) == [1, 2]


def test_invalid_unicode_is_sent_with_a_question_mark():
    # A path in another encoding comes out of os.listdir with surrogates, which no UTF-8 can hold.
    [first] = wire_messages.decode_batch(packed([attached(command=["train.py", "caf\udce9"])])).messages
    assert first.command == ["train.py", "caf?"]


def test_attached_is_added_once_and_the_identity_stays():
    body = packed([sample(1)])
    who = batching.encode(attached())
    once = batching.with_attached(body, who)
    batch = wire_messages.decode_batch(once)
    assert [type(m) for m in batch.messages] == [wire_messages.Attached, wire_messages.Block]
    assert (batch.session, batch.sequence) == ("s" * 8, 5)
    assert batching.with_attached(once, who) == once


def test_attached_can_be_added_to_an_invalid_batch():
    body = msgspec.msgpack.encode({"wire": 1, "session": "?", "messages": [{"type": "event", "kind": "NOT ALLOWED"}]})
    found = msgspec.msgpack.decode(batching.with_attached(body, batching.encode(attached())))
    assert [m["type"] for m in found["messages"]] == ["attached", "event"]
    assert batching.split(body) is None
