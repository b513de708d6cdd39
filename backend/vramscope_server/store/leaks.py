"""Merges the scans of a run's ranks into one list of leaks, worst first, with the totals that pages show.

The newest scan of each rank's newest session counts (``load_scans`` selects it). A leak that several ranks have, by kind, name,
file and line, is one entry.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from typing_extensions import TypedDict

from vramscope.protocol import messages
from vramscope.protocol.leak_notes import GROWING, is_note, is_on_host
from vramscope_server.analysis.leaks.source_fix import fixed_lines, keeps_tensors_directly
from vramscope_server.answers.leaks import Leak

log = logging.getLogger("vramscope_server.leaks")

_WORST_FIRST: Final = (
    "growing", "growing-eval", "tensor-growth", "cycle", "overlap-unfreed", "overlap", "no_grad-missing",
    "idle-optimizer",
)  # fmt: skip
_Number = TypeVar("_Number", int, float)

encode_scan = msgspec.msgpack.Encoder().encode
_decode_scan = msgspec.msgpack.Decoder(messages.Scan).decode


def read_scan(data: bytes) -> messages.Scan | None:
    """Decode a stored scan. None if its bytes are damaged: the rank then counts as not scanned until its next scan."""
    try:
        return _decode_scan(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as damage:
        log.warning("a stored scan cannot be read: %s", damage)
        return None


def merge_leaks(scans: Mapping[int, messages.Scan], run_peak_bytes: int | None = None) -> list[Leak]:
    """All leaks of a run, worst first: each as in ``messages.Leak``, and besides

    id      the same as long as kind, name, file and line are: for links
    on_host of the memory that it takes none is a card's, though there is one: no peak falls without it
    note    it has a bound and raises the peak by little, in every rank that has it
    ranks   which have it, rising. With more than one the figures are the largest of any rank, each for itself;
            words, chain and examples are those of the rank that holds most
    """
    found: dict[str, list[tuple[int, messages.Leak]]] = {}
    for rank, scan in sorted(scans.items()):
        for leak in scan.leaks:
            found.setdefault(_id(leak), []).append((rank, leak))
    merged = [_merged(ident, places, run_peak_bytes) for ident, places in found.items()]
    return sorted(merged, key=_badness, reverse=True)


def merge_filling(scans: Iterable[messages.Scan]) -> list[messages.Leak]:
    """Containers on a device that may fill up, the largest first; of those that several ranks have, the largest."""
    largest: dict[str, messages.Leak] = {}
    filling = (leak for scan in scans for leak in scan.filling if not is_on_host(leak))
    for leak in sorted(filling, key=lambda leak: leak.held_bytes):
        largest[_id(leak)] = leak
    return sorted(largest.values(), key=lambda leak: -leak.held_bytes)


class LeakColumns(TypedDict):
    """Columns of a run's row about leaks; all None before the first scan."""

    leaks: int | None
    leaked_bytes: int | None
    worst_leak: str | None


def retained_bytes(
    scans: Iterable[messages.Scan], run_peak_bytes: int | None, counted: Collection[str] | None = None
) -> int:
    """Bytes that the findings retain together, on the rank where that is most. Notes and memory of the host do not count.

    counted   ids of the only findings that count
    """
    return max(
        (
            held_together(
                leak
                for leak in scan.leaks
                if not is_on_host(leak)
                and not is_note(leak, run_peak_bytes)
                and (counted is None or _id(leak) in counted)
            )
            for scan in scans
        ),
        default=0,
    )


def leak_columns(scans: Mapping[int, messages.Scan], run_peak_bytes: int | None) -> LeakColumns:
    """Columns of a run's row about leaks (``tables.runs``); all None before the first scan.

    leaks         how many. What is retained too long, or emptied again and again, is none; notes and what a training on a card
                  keeps on the host are none
                  keeps on the host are none
    leaked_bytes  what they hold together, on the rank where that is most
    worst_leak    kind of the worst
    """
    if not scans:
        return {"leaks": None, "leaked_bytes": None, "worst_leak": None}
    merged = [
        entry
        for entry in merge_leaks(scans, run_peak_bytes)
        if not entry["on_host"] and not entry["note"] and entry["kind"] in GROWING and entry["emptied_after"] is None
    ]
    return {
        "leaks": len(merged),
        "leaked_bytes": retained_bytes(scans.values(), run_peak_bytes, {entry["id"] for entry in merged}),
        "worst_leak": merged[0]["kind"] if merged else None,
    }


def held_together(leaks: Iterable[messages.Leak]) -> int:
    """Bytes that the leaks of one process hold together, as far as that is certain.

    What only one of them holds counts for each; of what several hold, the largest share counts once: it may be that all
    share the same.
    """
    listed = list(leaks)
    own = [min(leak.exclusive_bytes, leak.held_bytes) for leak in listed]
    return sum(own) + max((leak.held_bytes - alone for leak, alone in zip(listed, own, strict=True)), default=0)


def _id(leak: messages.Leak) -> str:
    text = "\0".join([leak.kind, leak.name, leak.file or "", str(leak.line or "")])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _merged(ident: str, places: list[tuple[int, messages.Leak]], run_peak_bytes: int | None) -> Leak:
    leaks = [leak for _, leak in places]
    most = max(leaks, key=lambda leak: leak.held_bytes)
    growth = most.growth_bytes_per_step
    if most.emptied_after is None:  # otherwise another rank may not have seen yet that it was emptied
        growth = _largest(leak.growth_bytes_per_step for leak in leaks)
    return {
        "id": ident,
        "kind": most.kind,
        "name": most.name,
        "holder": most.holder,
        "chain": most.chain,
        "file": most.file,
        "line": most.line,
        "function": most.function,
        "count": max(leak.count for leak in leaks),
        "first_step": min(leak.first_step for leak in leaks),
        "last_step": max(leak.last_step for leak in leaks),
        "age_steps": _largest(leak.age_steps for leak in leaks),
        "held_bytes": most.held_bytes,
        "exclusive_bytes": max(leak.exclusive_bytes for leak in leaks),
        "node_bytes": max(leak.node_bytes for leak in leaks),
        "growth_bytes_per_step": growth,
        "per": most.per,
        "emptied_at": most.emptied_at,
        "emptied_after": most.emptied_after,
        "full_bytes": most.full_bytes,
        "peak_effect_bytes": _largest(leak.peak_effect_bytes for leak in leaks),
        "peak_effect": most.peak_effect,
        "advice": most.advice,
        "source": most.source,
        "fixed": fixed_lines(most.source, most.fix, most.name)
        if most.file and keeps_tensors_directly(most.chain)
        else [],
        "examples": most.examples,
        "why": [{"state": change.state, "reason": change.reason, "step": change.step} for change in most.why],
        "on_host": all(is_on_host(leak) for leak in leaks),
        "note": all(is_note(leak, run_peak_bytes) for leak in leaks),
        # Of a session that found it twice (say, on two devices) the rank still counts once.
        "ranks": sorted({rank for rank, _ in places}),
    }


def _largest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _badness(entry: Leak) -> tuple[bool, bool, bool, float, int, int, int, str]:
    """Of what does not grow, the fix that lowers the peak most comes first; where that is unknown, the bytes count."""
    growth, effect = entry["growth_bytes_per_step"], entry["peak_effect_bytes"]
    steady_bytes = 0 if entry["kind"] in GROWING else entry["held_bytes"] if effect is None else effect
    return (
        not entry["on_host"],
        entry["kind"] in GROWING,
        growth is not None and growth > 0,
        growth or 0.0 if entry["kind"] in GROWING else 0.0,
        steady_bytes,
        entry["held_bytes"],
        -_WORST_FIRST.index(entry["kind"]) if entry["kind"] in _WORST_FIRST else -len(_WORST_FIRST),
        entry["id"],
    )
