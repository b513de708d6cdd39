"""Numbers in the text of an out-of-memory error, with their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vramscope.oom_diagnosis.diagnosis import Diagnosis
    from vramscope.oom_diagnosis.message import Message

NAMES: Final = {"asked_bytes": "requested", "process_bytes": "this process", "unallocated_bytes": "reserved, unused"}
"""Names of the numbers of a text; of the others the field's own."""


def numbers_of(message: Message, diagnosis: Diagnosis) -> Iterator[tuple[str, int]]:
    """Name and bytes of each number of the text, and of what follows from them."""
    for name, value in message.as_dict().items():
        if name.endswith("_bytes") and isinstance(value, int):
            yield NAMES.get(name, name.removesuffix("_bytes").replace("_", " ")), value
    for process in message.processes:
        if process.pid is not None:
            yield f"process {process.pid}", process.used_bytes
    outside = diagnosis.facts.outside_pytorch_bytes
    if outside is not None:
        yield "outside PyTorch", outside
