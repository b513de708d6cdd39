"""What a newer agent tells and this server does not know: the rest of its batch is stored all the same.

kept and shown   words of the wire's lists (kinds of leaks, techniques, events; phases, rounds, ends): by their names
kept             series, and kinds of artifacts: a newer server that opens this database shows them
left out         messages of another type and rows of another stream: counted

What is kept or left out is told of the run (``told_of``), so that nobody takes a gap for a training that had nothing to tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series as wire_series

_TYPES: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(wire_messages.Message))
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
SERIES_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOST_SERIES: Final = 256
"""in one block; known ones are no more than a quarter of it"""
MOST_NAMES: Final = 32
"""that are told of a rank; what is beyond them is counted together, as :data:`OTHERS`"""
OTHERS: Final = "others"


class _Head(msgspec.Struct):
    """Of a message, what says whether it is known."""

    type: str
    stream: str = "samples"


_decode_batch: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_list: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_head: Final = msgspec.msgpack.Decoder(_Head).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class Sifted:
    """An encoded batch without the messages that nobody here knows.

    body      the rest, encoded
    places    of each message of the rest, where it stood
    left_out  by name, how many messages were taken out; empty: nothing was
    """

    def __init__(self, body: bytes) -> None:
        """Raises msgspec.MsgspecError where it is no batch at all."""
        batch = _decode_batch(body)
        messages = _decode_list(batch["messages"]) if "messages" in batch else []
        self.left_out: Counter[str] = Counter()
        self.places: list[int] = []
        for place, message in enumerate(messages):
            if (name := _unknown(message)) is None:
                self.places.append(place)
            else:
                self.left_out[name] += 1
        self.body = body
        if self.left_out:
            rest = [messages[place] for place in self.places]
            self.body = _encode(dict(batch) | {"messages": rest})


def _unknown(message: msgspec.Raw) -> str | None:
    """What it would be, in words; None where it is known, or is no message (for the decoder to say so)."""
    try:
        head = _decode_head(message)
    except msgspec.ValidationError:
        return None
    if head.type not in _TYPES:
        return f"messages {head.type!r}" if _NAME.fullmatch(head.type) else None
    if head.type == "block" and head.stream not in wire_series.STREAMS:
        return f"blocks of {head.stream!r}" if _NAME.fullmatch(head.stream) else None
    return None


def counted(before: dict[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """So many were left out, of at most MOST_NAMES names."""
    total = dict(before)
    for name, count in more.items():
        told = name if name in total or len(total) < MOST_NAMES else OTHERS
        total[told] = total.get(told, 0) + count
    return total


def unknown_series(stream: str, names: Iterable[str]) -> list[str]:
    """Those of a stream's columns that are none of its series."""
    return sorted(set(names) - wire_series.STREAMS[stream].keys())


def told_of(
    left_out: Iterable[Mapping[str, int]], series: Mapping[str, Iterable[str]], kinds: Iterable[str]
) -> dict[str, Any] | None:
    """What a run's page says of it; None: all of it was understood.

    left_out  of each rank
    series    by stream, that came and were not known then
    kinds     of artifacts that are there
    """
    total: Counter[str] = Counter()
    for counts in left_out:
        total.update(counts)
    kept = [f"series {name!r}" for stream, names in sorted(series.items()) for name in unknown_series(stream, names)]
    kept += [f"recordings {kind!r}" for kind in sorted(set(kinds) - set(wire_series.ARTIFACT_KINDS))]
    if not total and not kept:
        return None
    said = []
    if total:
        said.append(f"Left out: {', '.join(f'{name} ({many:,})' for name, many in sorted(total.items()))}.")
    if kept:
        said.append(f"Kept until a newer server shows it: {', '.join(kept)}.")
    return {"left_out": dict(sorted(total.items())), "kept": kept, "sentence": " ".join(said)}
