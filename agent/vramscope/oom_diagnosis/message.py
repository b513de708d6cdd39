"""Parser of out-of-memory messages: every format of PyTorch since 1.11, and of the libraries it uses.

    message = parse("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.78 GiB of which ...")
    message.kind, message.asked_bytes, message.free_bytes       # "pytorch", 20971520, ...
    message.rounding_bytes["free_bytes"]                        # error of a number with two decimals

A text in no known format is kept with the kind ``unknown``. Nothing is guessed. Of several errors in a log the last one
is reported, because it ended the program. Agent, server and command line use this module, so it needs the standard
library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from vramscope.oom_diagnosis.message_patterns import (  # fmt: skip
    ASYNC,
    BEGINNINGS,
    DEVICE,
    FIELDS,
    HOST_ASKED,
    PREEMPTIVE,
    PROCESS,
    WORKER,
    Numbers,
    amount,
    wording_of,
)

MAX_CHARACTERS: Final = 1 << 20
"""Characters that are searched at a time."""
MAX_KEPT: Final = 8192
"""Characters of the text that are kept, from the beginning of the error."""
MAX_PROCESSES: Final = 64

KINDS: Final = {
    "pytorch": "PyTorch's caching allocator could not get memory",
    "preemptive": "PyTorch refused before trying: the request exceeds the memory fraction",
    "cudaMallocAsync": "CUDA's own pool (backend:cudaMallocAsync) could not get memory",
    "cuda": "a CUDA call outside PyTorch's allocator ran out of memory",
    "cublas": "cuBLAS could not get its workspace",
    "cudnn": "cuDNN could not get memory",
    "nccl": "NCCL reports a CUDA error",
    "bitsandbytes": "bitsandbytes could not get memory",
    "host": "the host's memory ran out, not the GPU's",
    "worker_killed": "a DataLoader worker was killed, as Linux does when the host's memory runs out",
    "shared_memory": "the host's shared memory (/dev/shm) ran out",
    "unknown": "no known out-of-memory error",
}
"""Description of each kind."""

OUTSIDE_PYTORCH: Final = frozenset({"cuda", "cublas", "cudnn", "nccl", "bitsandbytes"})
ON_HOST: Final = frozenset({"host", "worker_killed", "shared_memory"})


@dataclass(frozen=True, slots=True)
class Process:
    """One process that the message names. ``mine``: the one whose request failed."""

    pid: int | None
    used_bytes: int
    mine: bool


@dataclass(frozen=True, slots=True)
class Message:
    """Numbers of a message; None where it has none."""

    kind: str
    """Key of KINDS."""
    text: str
    """The text itself, from the beginning of the error."""
    certain: bool = True
    """False: the same text is used for other errors too."""
    device: int | None = None
    asked_bytes: int | None = None
    """The request as the allocator rounds it: 20 MiB for a tensor of 1.1 MB."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    """Limit of set_per_process_memory_fraction."""
    process_bytes: int | None = None
    """Device memory of this process, with CUDA's context."""
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """Free blocks in the private pools of CUDA graphs. The message calls them allocated."""
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    """Reserved, not allocated, and not in a private pool."""
    processes: tuple[Process, ...] = ()
    rounding_bytes: dict[str, int] = field(default_factory=dict)
    """Error of each number, because the text has two decimals."""
    worker: int | None = None
    """Process id of the DataLoader worker."""
    wording: str = ""
    """Versions of PyTorch with this format."""
    shortened: bool = False
    """Whether the text was cut."""
    errors: int = 1
    """Number of errors in the text. This is the last; 0: none is known."""

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("processes", "rounding_bytes")}
        return fields | {
            "processes": [{"pid": p.pid, "used_bytes": p.used_bytes, "mine": p.mine} for p in self.processes],
            "rounding_bytes": dict(self.rounding_bytes),
            "kind_words": KINDS[self.kind],
        }


_OWN_WORDS: Final = frozenset({"preemptive", "pytorch", "cudaMallocAsync"})
"""Kinds whose words occur once in each error."""
_NEAR: Final = 1000
"""Most characters between two words of one error."""
_CHAINED: Final = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    "Original Traceback",  # (of a DataLoader's worker, as its error is raised again)
)
_OVERLAP: Final = 1 << 16
"""Characters of a part that are searched again with the next part, because an error may continue there."""


def parse(text: str, error_type: str = "") -> Message:
    """Parse a text. About 80 ms for a megabyte; never raises.

    error_type   class of the exception, where it is known
    """
    starts = range(0, max(len(text), 1), MAX_CHARACTERS)
    message = parse_parts(text[start : start + MAX_CHARACTERS] for start in starts)
    if not message.is_known and error_type == "MemoryError":
        message = replace(message, kind="host", errors=1)
    return message


def parse_parts(parts: Iterable[str]) -> Message:
    """Last error of a text that comes in parts, such as a large log. At most one part is in memory."""
    last: Message | None = None
    count, head, kept = 0, "", ""
    for part in parts:
        head = head or part[: MAX_KEPT + 1]
        text = kept + part
        until = max(0, len(text) - _OVERLAP)
        errors = _errors(text)
        over = [error for error in errors if error.end < until]
        last, count = _later(last, text, over), count + len(over)
        # (An error that has not ended is kept from its beginning, unless that is too far back.)
        begun = min([until, *(error.start for error in errors[len(over) :])])
        kept = text[max(begun, until - _OVERLAP, 0) :]
    errors = _errors(kept)
    last, count = _later(last, kept, errors), count + len(errors)
    if last is None:
        return Message(kind="unknown", text=head[:MAX_KEPT].rstrip(), shortened=len(head) > MAX_KEPT, errors=0)
    return replace(last, errors=count)


class _Error(NamedTuple):
    """One error in a text."""

    kind: str
    start: int
    """Start of the words that name the kind."""
    end: int
    """Start of the last words that belong to it."""
    certain: bool


def _errors(text: str) -> list[_Error]:
    """Errors by position. The most specific words of an error name its kind; a chain of exceptions is one error."""
    found = sorted(
        (match.start(), order, kind)
        for order, (kind, pattern) in enumerate(BEGINNINGS)
        for match in pattern.finditer(text)
    )
    errors: list[_Error] = []
    ranks: list[tuple[bool, int]] = []
    for start, order, kind in found:
        certain = _is_certain(kind, text, start)
        rank = (not certain, order)
        before = errors[-1] if errors else None
        if before is None or kind in _OWN_WORDS or not _belongs(text, before.end, start):
            errors.append(_Error(kind, start, start, certain))
            ranks.append(rank)
        elif rank < ranks[-1]:
            errors[-1], ranks[-1] = _Error(kind, start, start, certain), rank
        else:
            errors[-1] = before._replace(end=start)
    return errors


def _belongs(text: str, end: int, start: int) -> bool:
    return start - end <= _NEAR or (
        start - end <= _OVERLAP and any(text.find(words, end, start) >= 0 for words in _CHAINED)
    )


def _is_certain(kind: str, text: str, start: int) -> bool:
    """Whether the text proves a lack of memory. NCCL and DataLoader use the same words for other errors."""
    proof = {"nccl": "out of memory", "worker_killed": "Killed"}.get(kind)
    return proof is None or text.find(proof, start, start + MAX_KEPT) >= 0


def _later(before: Message | None, text: str, errors: list[_Error]) -> Message | None:
    """Last certain error of those before and these; where none is certain, the last."""
    error = next((error for error in reversed(errors) if error.certain), errors[-1] if errors else None)
    if error is None or (before is not None and before.certain and not error.certain):
        return before
    return _read(text, error)


def _read(text: str, error: _Error) -> Message:
    kind, start = error.kind, error.start
    part = text[start : start + MAX_KEPT]
    numbers = Numbers()
    worker = WORKER.search(text, max(0, start - MAX_KEPT), start + MAX_KEPT)
    more: dict[str, Any] = {"worker": int(worker.group(1)) if worker else None}
    if kind == "pytorch":
        more |= _read_pytorch(part, numbers)
    elif kind == "preemptive":
        numbers.take("asked_bytes", [PREEMPTIVE], part)
        more["wording"] = "2.13 and later"
    elif kind == "cudaMallocAsync":
        _read_async(part, numbers)
        device = re.search(r"Allocation on device (\d{1,4})", part)
        more["device"] = int(device.group(1)) if device else None
    elif kind == "host":
        numbers.take("asked_bytes", HOST_ASKED, part)
    found: dict[str, Any] = {**numbers.values, **more}
    return Message(
        kind=kind,
        text=part.rstrip(),
        certain=error.certain,
        shortened=len(text) > start + MAX_KEPT,
        rounding_bytes=numbers.rounding,
        **found,
    )


def _read_pytorch(part: str, numbers: Numbers) -> dict[str, Any]:
    for name, patterns in FIELDS.items():
        numbers.take(name, patterns, part)
    values, rounding = numbers.values, numbers.rounding
    device = DEVICE.search(part)
    processes = [
        Process(int(found.group(1)), amount(found.group(2), found.group(3))[0], False)
        for _, found in zip(range(MAX_PROCESSES), PROCESS.finditer(part), strict=False)
    ]
    if "process_bytes" in values:
        processes.insert(0, Process(None, values["process_bytes"], True))
    before_2_1 = "reserved_bytes" in values
    if before_2_1:
        # 1.x reports all reserved bytes; from 2.1 on, the part of them that is not allocated.
        if "allocated_bytes" in values:
            values["unallocated_bytes"] = max(0, values["reserved_bytes"] - values["allocated_bytes"])
            rounding["unallocated_bytes"] = rounding.get("reserved_bytes", 0) + rounding.get("allocated_bytes", 0)
    elif "allocated_bytes" in values and "unallocated_bytes" in values:
        parts = ("allocated_bytes", "unallocated_bytes", "private_pools_bytes")
        values["reserved_bytes"] = sum(values.get(name, 0) for name in parts)
        rounding["reserved_bytes"] = sum(rounding.get(name, 0) for name in parts)
    return {
        "device": int(device.group(1)) if device else None,
        "processes": tuple(processes),
        "wording": wording_of(part, before_2_1=before_2_1),
    }


def _read_async(part: str, numbers: Numbers) -> None:
    for name, pattern in ASYNC.items():
        numbers.take(name, [pattern], part)
    limit = numbers.values.get("limit_bytes")
    if limit is not None and limit >= 1 << 62:  # no limit is reported as the largest number
        del numbers.values["limit_bytes"]
        numbers.rounding.pop("limit_bytes", None)
