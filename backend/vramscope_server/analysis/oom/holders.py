"""Memory at the error: by category and module from the record, and by source line from the recording that was open."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, TypedDict

import numpy as np

from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.oom_record import OWNERS, OomRecord
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.timeline.source_lines import frame_of, sites_of
from vramscope_server.analysis.trace.trace import Trace

MOST_MODULES: Final = 40
MOST_SITES: Final = 40


class OwnerBytes(TypedDict):
    """Memory of one owner."""

    name: str
    bytes: int


class SiteBytes(TypedDict):
    """Memory of a source line. The row for all further lines has no category."""

    file: str | None
    line: int | None
    function: str | None
    category: str | None
    bytes: int
    count: int


class FreeBlocks(TypedDict):
    """Number and size of the free blocks in reserved memory."""

    free_pieces: int
    free_bytes: int
    largest_free_bytes: int
    blocks: int
    segments: int


def by_category(facts: Facts, record: OomRecord) -> list[OwnerBytes]:
    """Return rows that add up to the whole device; empty if a number is missing."""
    total, reserved, used = facts.total_bytes, facts.reserved_bytes, facts.used_bytes
    if total is None or facts.free_bytes is None or reserved is None or used is None:
        return []
    rows: list[OwnerBytes] = (
        [{"name": name, "bytes": record.owned_bytes.get(name, 0)} for name in OWNERS] if record.owned_bytes else []
    )
    owned = sum(row["bytes"] for row in rows)
    label = "activations, batch, temporaries" if rows else "used by tensors"
    rows.append({"name": label, "bytes": max(0, used - owned)})
    rows.append({"name": "reserved, not used", "bytes": max(0, reserved - used)})
    rest = max(0, total - facts.free_bytes - reserved)
    others, outside = facts.others_bytes, facts.outside_bytes
    if outside is not None:
        rows.append({"name": "this process outside PyTorch", "bytes": min(outside, rest)})
        rest -= min(outside, rest)
    if others is not None:
        rows.append({"name": "other processes", "bytes": min(others, rest)})
        rest -= min(others, rest)
    if rest:
        rows.append({"name": "unknown owner, not PyTorch", "bytes": rest})
    rows.append({"name": "free", "bytes": facts.free_bytes})
    return [row for row in rows if row["bytes"] or row["name"] == "free"]


def by_module(record: OomRecord) -> list[dict[str, str | int]]:
    """Return the memory of each module, in total and by category, the largest first. Newer agents may have more categories."""
    rows: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for holder in record.holders:
        rows[holder.module][holder.category] = holder.held_bytes
    modules: list[dict[str, str | int]] = [
        {"module": name or "(the model itself)", "bytes": sum(parts.values()), **parts} for name, parts in rows.items()
    ]
    return sorted(modules, key=lambda row: -int(row["bytes"]))[:MOST_MODULES]


def by_site(trace: Trace) -> list[SiteBytes]:
    """Return the allocations at the end of the recording by the user's innermost line, the largest first. The rest is one row."""
    event = len(trace.events) - 1
    alive = trace.lives.active_at(event)
    sites, codes = sites_of(trace), categories_of(trace)
    stacks = sites.stack[alive]
    frame = np.where(stacks >= 0, sites.frame[np.maximum(stacks, 0)] if len(sites.frame) else -1, -1)
    size, category = trace.lives.size_bytes[alive], codes[alive]
    key = (frame.astype(np.int64) + 1) * len(CATEGORIES) + category
    kinds, group = np.unique(key, return_inverse=True)
    total = np.bincount(group, size, len(kinds)).astype(np.int64)
    count = np.bincount(group, minlength=len(kinds))
    rows: list[SiteBytes] = []
    for at in np.argsort(-total, kind="stable").tolist():
        position = int(kinds[at]) // len(CATEGORIES) - 1
        line = None if position < 0 else frame_of(trace, position)
        rows.append(
            {
                "file": (line.file or None) if line is not None else None,
                "line": line.line if line is not None and line.file else None,
                "function": None if line is None else line.function,
                "category": CATEGORIES[int(kinds[at]) % len(CATEGORIES)],
                "bytes": int(total[at]),
                "count": int(count[at]),
            }
        )
    rest = rows[MOST_SITES:]
    if rest:
        rows = rows[:MOST_SITES]
        rows.append(
            {
                "file": None, "line": None, "function": f"{len(rest)} more lines", "category": None,
                "bytes": sum(row["bytes"] for row in rest), "count": sum(row["count"] for row in rest),
            }
        )  # fmt: skip
    return rows


def free_blocks(record: OomRecord) -> FreeBlocks | None:
    """Return number and size of the free blocks in reserved memory; None if the layout was not read."""
    if record.layout is None:
        return None
    blocks = record.layout.blocks
    size, state = (np.frombuffer(blocks[name], "<i8") for name in ("size_bytes", "state"))
    free = size[state == 0]
    return {
        "free_pieces": len(free),
        "free_bytes": int(free.sum()),
        "largest_free_bytes": int(free.max(initial=0)),
        "blocks": len(size),
        "segments": len(record.layout.segments["address"]) // 8,
    }
