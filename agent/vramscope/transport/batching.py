"""From many small messages to few large ones: blocks of the same series put together, batches cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series

VALUE_BYTES: Final = 8
UNKNOWN_VALUE: Final = series.UNKNOWN.to_bytes(VALUE_BYTES, "little", signed=True)


def merge(messages: Iterable[wire_messages.Cargo]) -> list[wire_messages.Cargo]:
    """The same rows in fewer blocks: one for each (stream, device), where the first of them stood.

    Rows of one stream and device keep their order, and so do all other messages; a column that only some of the blocks
    have is unknown in the rows of the others. A block whose columns do not have ``rows`` values is passed on as it is,
    for the server to refuse by itself, instead of shifting its neighbours' rows.
    """
    merged: list[wire_messages.Cargo | _Group] = []
    open_groups: dict[tuple[str, int], _Group] = {}
    for message in messages:
        if not isinstance(message, wire_messages.Block) or not _is_whole(message):
            merged.append(message)
            continue
        key = (message.stream, message.device)
        group = open_groups.get(key)
        if group is None or group.rows + message.rows > wire_messages.MAX_ROWS_PER_BLOCK:
            group = open_groups[key] = _Group()
            merged.append(group)
        group.blocks.append(message)
        group.rows += message.rows
    return [_join(item.blocks) if isinstance(item, _Group) else item for item in merged]


class _Group:
    """Blocks that become one."""

    def __init__(self) -> None:
        self.blocks: list[wire_messages.Block] = []
        self.rows = 0


def _is_whole(block: wire_messages.Block) -> bool:
    return all(len(column) == block.rows * VALUE_BYTES for column in block.columns.values())


def _join(blocks: Sequence[wire_messages.Block]) -> wire_messages.Block:
    if len(blocks) == 1:
        return blocks[0]
    names = dict.fromkeys(name for block in blocks for name in block.columns)
    columns = {
        name: b"".join(block.columns.get(name) or UNKNOWN_VALUE * block.rows for block in blocks) for name in names
    }
    first = blocks[0]
    return wire_messages.Block(
        stream=first.stream, device=first.device, rows=sum(block.rows for block in blocks), columns=columns
    )


def split(body: bytes) -> tuple[list[wire_messages.Cargo], list[wire_messages.Cargo]] | None:
    """An encoded batch's messages in two halves: the same rows in the same order. None where nothing can be cut."""
    try:
        batch = wire_messages.decode_batch(body)
    except msgspec.MsgspecError:
        return None  # the server would not have it in pieces either
    messages: list[wire_messages.Cargo] = [*batch.messages, *batch.scalars]
    if len(messages) > 1:
        middle = len(messages) // 2
        return messages[:middle], messages[middle:]
    if (
        len(messages) == 1
        and isinstance(block := messages[0], wire_messages.Block)
        and block.rows > 1
        and _is_whole(block)
    ):
        middle = block.rows // 2
        return [_cut(block, 0, middle)], [_cut(block, middle, block.rows)]
    return None


def _cut(block: wire_messages.Block, start: int, end: int) -> wire_messages.Block:
    columns = {name: column[start * VALUE_BYTES : end * VALUE_BYTES] for name, column in block.columns.items()}
    return wire_messages.Block(stream=block.stream, device=block.device, rows=end - start, columns=columns)


def loaded(batch: wire_messages.Batch, cargo: Iterable[wire_messages.Cargo]) -> wire_messages.Batch:
    """The same batch with this in it, each thing in its place."""
    messages: list[wire_messages.Message] = []
    scalars: list[wire_messages.Scalars] = []
    for item in cargo:
        if isinstance(item, wire_messages.Scalars):
            scalars.append(item)
        else:
            messages.append(item)
    return msgspec.structs.replace(batch, messages=messages, scalars=scalars)


def rows_in(messages: Iterable[wire_messages.Cargo]) -> int:
    """How many rows are among the messages."""
    return sum(message.rows for message in messages if isinstance(message, wire_messages.Block | wire_messages.Scalars))


def encode(value: wire_messages.Batch | wire_messages.Attached) -> bytes:
    """As it travels. Text that is not Unicode (a path in another encoding) travels with ``?`` in it."""
    try:
        return wire_messages.encode(value)
    except UnicodeEncodeError:
        return wire_messages.encode(_printable(msgspec.to_builtins(value, builtin_types=(bytes,))))


def introduced(body: bytes, attached: bytes) -> bytes:
    """The same encoded batch, beginning with the encoded Attached message unless it begins with one already.

    Nothing is validated here: a batch with a fault goes to the server as it is, which says what is wrong with it.
    """
    batch: dict[str, Any] = msgspec.msgpack.decode(body)
    messages: list[Any] = batch["messages"]
    if messages and messages[0]["type"] == "attached":
        return body
    return wire_messages.encode({**batch, "messages": [msgspec.Raw(attached), *messages]})


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value
