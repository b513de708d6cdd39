"""Merges small messages into large ones, and splits batches that are too large."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from vramscope.protocol import messages, series

VALUE_BYTES: Final = 8
UNKNOWN_VALUE: Final = series.UNKNOWN.to_bytes(VALUE_BYTES, "little", signed=True)


def merge(items: Iterable[messages.BatchItem]) -> list[messages.BatchItem]:
    """Merge blocks of the same stream and device, at the position of the first of them.

    Rows of one stream and device keep their order, and so do all other messages. A column that only some of the blocks have
    is unknown in the rows of the others. A block whose columns do not have ``rows`` values is not merged, so that the
    server refuses it alone and the rows of its neighbours do not shift.

    """
    merged: list[messages.BatchItem | _Group] = []
    open_groups: dict[tuple[str, int], _Group] = {}
    for message in items:
        if not isinstance(message, messages.Block) or not _is_whole(message):
            merged.append(message)
            continue
        key = (message.stream, message.device)
        group = open_groups.get(key)
        if group is None or group.rows + message.rows > messages.MAX_ROWS_PER_BLOCK:
            group = open_groups[key] = _Group()
            merged.append(group)
        group.blocks.append(message)
        group.rows += message.rows
    return [_join(item.blocks) if isinstance(item, _Group) else item for item in merged]


class _Group:
    """Blocks to be merged into one."""

    def __init__(self) -> None:
        self.blocks: list[messages.Block] = []
        self.rows = 0


def _is_whole(block: messages.Block) -> bool:
    return all(len(column) == block.rows * VALUE_BYTES for column in block.columns.values())


def _join(blocks: Sequence[messages.Block]) -> messages.Block:
    if len(blocks) == 1:
        return blocks[0]
    names = dict.fromkeys(name for block in blocks for name in block.columns)
    columns = {
        name: b"".join(block.columns.get(name) or UNKNOWN_VALUE * block.rows for block in blocks) for name in names
    }
    first = blocks[0]
    return messages.Block(
        stream=first.stream, device=first.device, rows=sum(block.rows for block in blocks), columns=columns
    )


def split(body: bytes) -> tuple[list[messages.BatchItem], list[messages.BatchItem]] | None:
    """Split an encoded batch into two halves with the same rows in the same order. None if it cannot be split."""
    try:
        batch = messages.decode_batch(body)
    except msgspec.MsgspecError:
        return None  # the server would not accept its halves either
    items: list[messages.BatchItem] = [*batch.messages, *batch.scalars]
    if len(items) > 1:
        middle = len(items) // 2
        return items[:middle], items[middle:]
    if len(items) == 1 and isinstance(block := items[0], messages.Block) and block.rows > 1 and _is_whole(block):
        middle = block.rows // 2
        return [_cut(block, 0, middle)], [_cut(block, middle, block.rows)]
    return None


def _cut(block: messages.Block, start: int, end: int) -> messages.Block:
    columns = {name: column[start * VALUE_BYTES : end * VALUE_BYTES] for name, column in block.columns.items()}
    return messages.Block(stream=block.stream, device=block.device, rows=end - start, columns=columns)


def with_items(batch: messages.Batch, added: Iterable[messages.BatchItem]) -> messages.Batch:
    """Return the batch with these messages and scalars in its fields."""
    items: list[messages.Message] = []
    scalars: list[messages.Scalars] = []
    for item in added:
        if isinstance(item, messages.Scalars):
            scalars.append(item)
        else:
            items.append(item)
    return msgspec.structs.replace(batch, messages=items, scalars=scalars)


def rows_in(items: Iterable[messages.BatchItem]) -> int:
    """Return the number of rows in the messages."""
    return sum(message.rows for message in items if isinstance(message, messages.Block | messages.Scalars))


def encode(value: messages.Batch | messages.Attached) -> bytes:
    """Encode a message or batch. Text that is not valid Unicode (a path in another encoding) is sent with ``?`` in it."""
    try:
        return messages.encode(value)
    except UnicodeEncodeError:
        return messages.encode(_printable(msgspec.to_builtins(value, builtin_types=(bytes,))))


def with_attached(body: bytes, attached: bytes) -> bytes:
    """Return the encoded batch, beginning with the encoded Attached message unless it has one already.

    Nothing is validated here: the server reports what is wrong with a faulty batch.

    """
    batch: dict[str, Any] = msgspec.msgpack.decode(body)
    items: list[Any] = batch["messages"]
    if items and items[0]["type"] == "attached":
        return body
    return messages.encode({**batch, "messages": [msgspec.Raw(attached), *items]})


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value
