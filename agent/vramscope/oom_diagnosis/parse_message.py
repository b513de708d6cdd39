"""Parser of out-of-memory messages: every format of PyTorch, of the libraries it uses, and of what ends a process.

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
from dataclasses import replace
from typing import Final, NamedTuple

from vramscope.oom_diagnosis.log_text import (  # fmt: skip
    all_joined,
    exception_name,
    in_source_line,
    joined,
    plain,
    without_prefixes,
)
from vramscope.oom_diagnosis.message import Message, Process
from vramscope.oom_diagnosis.message_amounts import (  # fmt: skip
    ASKED_ELSEWHERE,
    ASYNC,
    DEVICE,
    FIELDS,
    HOST_ASKED,
    KILLED_PROCESS,
    KILLED_PROCESS_MEMORY,
    MPS,
    NODE_MEMORY,
    OF_NO_DEVICE,
    PREEMPTIVE,
    PROCESS,
    WORKER,
    Numbers,
    amount,
)
from vramscope.oom_diagnosis.message_backend import wording_of
from vramscope.oom_diagnosis.message_context import (  # fmt: skip
    follows_device_assert,
    later_exception,
    sets_expandable_segments,
    specific_kind,
)
from vramscope.oom_diagnosis.message_kinds import (  # fmt: skip
    BEGINNINGS,
    IN_TEXTS_ONLY,
    LOOKS_FOR,
    OF_LIBRARIES,
    OTHER_SOFTWARE,
    OWN_WORDS,
)

MAX_CHARACTERS: Final = 1 << 20
"""Characters that are searched at a time."""
MAX_KEPT: Final = 8192
"""Characters of the text that are kept, from the beginning of the error."""
MAX_PROCESSES: Final = 64
_FULL: Final = 2
"""Weight of an error that is certain and has its own words."""
_NEAR: Final = 1000
"""Most characters between two words of one error."""
_CHAINED: Final = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    "Original Traceback",  # a DataLoader raises the error of its worker again
)
_OVERLAP: Final = 1 << 16
"""Characters of a part that are searched again with the next part, because an error may continue there."""


def parse(text: str, error_type: str = "") -> Message:
    """Parse a text. About 80 ms for a megabyte; never raises.

    error_type   class of the exception, where it is known
    """
    starts = range(0, max(len(text), 1), MAX_CHARACTERS)
    message = parse_parts(text[start : start + MAX_CHARACTERS] for start in starts)
    if error_type and message.kind in IN_TEXTS_ONLY:
        message = Message(kind="unknown", text=text[:MAX_KEPT].rstrip(), shortened=len(text) > MAX_KEPT, errors=0)
    if not message.is_known and error_type == "MemoryError":
        message = replace(message, kind="host", errors=1)
    return message


def parse_parts(parts: Iterable[str]) -> Message:
    """Last error of a text that comes in parts, such as a large log. At most one part is in memory."""
    last: Message | None = None
    count, head, kept, later, expandable = 0, "", "", "", False
    for original in parts:
        head = head or plain(original, keeps_tags=True)[: MAX_KEPT + 1]  # an unknown text is shown as it is
        part = plain(original)
        text = kept + part
        set_here = sets_expandable_segments(text)
        expandable = expandable if set_here is None else set_here
        until = max(0, len(text) - _OVERLAP)
        errors = _errors(text)
        over = [error for error in errors if error.end < until]
        last, later = _later(last, later, text, over)
        count += len(over)
        # An error that has not ended is kept from its beginning, unless that is too far back.
        first = min([until, *(error.start for error in errors[len(over) :])])
        kept = text[max(first, until - _OVERLAP, 0) :]
    errors = _errors(kept)
    if last is None and len(kept) <= _OVERLAP and _highest(errors) < _FULL:
        whole = all_joined(kept)  # a terminal may have broken the words themselves
        found = _errors(whole)
        if _highest(found) == _FULL:
            kept, errors = whole, found
    last, later = _later(last, later, kept, errors)
    if last is None:
        return Message(kind="unknown", text=head[:MAX_KEPT].rstrip(), shortened=len(head) > MAX_KEPT, errors=0)
    return replace(last, errors=count + len(errors), later_exception=later, sets_expandable=expandable)


class _Error(NamedTuple):
    """One error in a text."""

    kind: str
    start: int
    """Start of the words that name the kind."""
    end: int
    """Start of the last words that belong to it."""
    certain: bool
    specific_kind: str = ""


def _errors(text: str) -> list[_Error]:
    """Errors by position. The most specific words of an error name its kind; a chain of exceptions is one error."""
    found = sorted(
        (match.start(), order)
        for order, one in enumerate(BEGINNINGS)
        if one.needs in text
        for match in one.words.finditer(text)
        if (one.unless is None or one.unless.search(text, match.start(), match.start() + _NEAR) is None)
        and LOOKS_FOR.match(text, match.end()) is None
        and not in_source_line(text, match.start())
        and not (one.kind in OF_LIBRARIES and follows_device_assert(text, match.start()))
    )
    errors: list[_Error] = []
    ranks: list[tuple[bool, int]] = []
    for start, order in found:
        kind, _, is_certain, proof, *_ = BEGINNINGS[order]
        certain = is_certain and (not proof or text.find(proof, start, start + MAX_KEPT) >= 0)
        rank = (not certain, order)
        before = errors[-1] if errors else None
        if before is None or kind in OWN_WORDS or not _belongs(text, before.end, start):
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


def _later(before: Message | None, later: str, text: str, errors: list[_Error]) -> tuple[Message | None, str]:
    """Last error with numbers of those before and these; where there is none, the last certain one, or the last. With it
    the class of the exception that came after it.

    later   that exception, of the error before
    """
    error = max(reversed(errors), key=lambda one: _weight(one.kind, certain=one.certain), default=None)
    lighter = before is not None and (
        error is None or _weight(before.kind, certain=before.certain) > _weight(error.kind, certain=error.certain)
    )
    if error is None or lighter:
        return before, later if before is None else later_exception(text, 0, _CHAINED) or later
    return _read(text, error), later_exception(text, error.end, _CHAINED)


def _highest(errors: list[_Error]) -> int:
    return max((_weight(one.kind, certain=one.certain) for one in errors), default=-1)


def _weight(kind: str, *, certain: bool) -> int:
    """An error that is certain explains more than one that is not, and words without numbers explain least of these."""
    return 0 if not certain else 1 if kind == "pytorch_bare" else _FULL


def _read(text: str, error: _Error) -> Message:
    """Message of an error: of its text as it is, or with its broken lines joined where that has more numbers."""
    start = error.start
    error = error._replace(specific_kind=specific_kind(error.kind, text, start))
    before = text[text.rfind("\n", 0, start) + 1 : start][-MAX_KEPT:]
    part = text[start : start + MAX_KEPT]
    plainer = without_prefixes(before, part)
    readings = dict.fromkeys((part, plainer, joined(before, part), joined(exception_name(before), plainer)))
    worker = WORKER.search(text, max(0, start - MAX_KEPT), start + MAX_KEPT)
    shortened = len(text) > start + MAX_KEPT
    messages = [_message(error, one, int(worker.group(1)) if worker else None, shortened=shortened) for one in readings]
    return max(messages, key=lambda message: len(message.rounding_bytes) + len(message.processes))


class _Facts(NamedTuple):
    """Facts of a message other than its amounts."""

    device: int | None = None
    processes: tuple[Process, ...] = ()
    wording: str = ""


def _message(error: _Error, part: str, worker: int | None, *, shortened: bool) -> Message:
    kind = error.kind
    numbers, facts = Numbers(), _Facts()
    if kind == "pytorch":
        facts = _read_pytorch(part, numbers)
    elif kind == "xpu_block":
        facts = _read_pytorch(part, numbers)._replace(wording="")
    elif kind == "preemptive":
        numbers.take("asked_bytes", [PREEMPTIVE], part)
        facts = _Facts(wording="2.13 and later")
    elif kind == "cudaMallocAsync":
        _read_async(part, numbers)
        device = re.search(r"Allocation on device (\d{1,4})", part)
        facts = _Facts(device=int(device.group(1)) if device else None)
    elif kind == "mps":
        for name, pattern in MPS.items():
            numbers.take(name, [pattern], part)
        if "process_bytes" in numbers.values:  # the text names the memory of the process beside its tensors
            numbers.values["process_bytes"] += numbers.values.get("allocated_bytes", 0)
    elif kind == "host":
        numbers.take("asked_bytes", HOST_ASKED, part)
    elif kind == "kernel":
        facts = _read_kernel(part)
    elif kind == "ray":
        _read_node(part, numbers)
    elif kind in OTHER_SOFTWARE or kind in ("cupy", "ggml"):
        numbers.take("asked_bytes", ASKED_ELSEWHERE, part)
    values = numbers.values
    return Message(
        kind=error.specific_kind,
        text=part.rstrip(),
        certain=error.certain,
        device=facts.device,
        asked_bytes=values.get("asked_bytes"),
        total_bytes=values.get("total_bytes"),
        free_bytes=values.get("free_bytes"),
        limit_bytes=values.get("limit_bytes"),
        process_bytes=values.get("process_bytes"),
        allocated_bytes=values.get("allocated_bytes"),
        private_pools_bytes=values.get("private_pools_bytes"),
        reserved_bytes=values.get("reserved_bytes"),
        unallocated_bytes=values.get("unallocated_bytes"),
        processes=facts.processes,
        rounding_bytes=numbers.rounding,
        worker=worker,
        wording=facts.wording,
        shortened=shortened,
    )


def _read_kernel(part: str) -> _Facts:
    pid, used = KILLED_PROCESS.search(part), KILLED_PROCESS_MEMORY.search(part)
    if pid is None or used is None:
        return _Facts()
    return _Facts(processes=(Process(int(pid.group(1)), amount(used.group(1), used.group(2))[0], True),))


def _read_node(part: str, numbers: Numbers) -> None:
    node = NODE_MEMORY.search(part)
    if node is not None:
        used, off = amount(node.group(1), node.group(2))
        total, _ = amount(node.group(3), node.group(4))
        numbers.values |= {"total_bytes": total, "free_bytes": total - used}
        numbers.rounding |= {"total_bytes": off, "free_bytes": 2 * off}


def _read_pytorch(part: str, numbers: Numbers) -> _Facts:
    for name, patterns in FIELDS.items():
        numbers.take(name, patterns, part)
    values, rounding = numbers.values, numbers.rounding
    device = DEVICE.search(part)
    listed = (
        Process(int(found.group(1)), amount(found.group(2), found.group(3))[0], False)
        for _, found in zip(range(MAX_PROCESSES), PROCESS.finditer(part), strict=False)
    )
    processes = [process for process in listed if process.used_bytes < OF_NO_DEVICE]
    if values.get("process_bytes", 0) >= OF_NO_DEVICE:
        del values["process_bytes"]
    if "process_bytes" in values:
        processes.insert(0, Process(None, values["process_bytes"], True))
    before_2_1 = "reserved_bytes" in values or "already allocated" in part
    if "reserved_bytes" in values:
        # 1.x reports all reserved bytes; from 2.1 on, the part of them that is not allocated.
        if "allocated_bytes" in values:
            values["unallocated_bytes"] = max(0, values["reserved_bytes"] - values["allocated_bytes"])
            rounding["unallocated_bytes"] = rounding.get("reserved_bytes", 0) + rounding.get("allocated_bytes", 0)
    elif "allocated_bytes" in values and "unallocated_bytes" in values:
        parts = ("allocated_bytes", "unallocated_bytes")  # private pools are part of allocated_bytes
        values["reserved_bytes"] = sum(values.get(name, 0) for name in parts)
        rounding["reserved_bytes"] = sum(rounding.get(name, 0) for name in parts)
    return _Facts(
        device=int(device.group(1)) if device else None,
        processes=tuple(processes),
        wording=wording_of(part, before_2_1=before_2_1),
    )


def _read_async(part: str, numbers: Numbers) -> None:
    for name, pattern in ASYNC.items():
        numbers.take(name, [pattern], part)
    limit = numbers.values.get("limit_bytes")
    if limit is not None and limit >= 1 << 62:  # no limit is reported as the largest number
        del numbers.values["limit_bytes"]
        numbers.rounding.pop("limit_bytes", None)
