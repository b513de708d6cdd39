"""What held the memory: by category and by module from the record itself, by line of code from the window that was open."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.oom_record import OWNERS, BlackBox
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.timeline.source_lines import frame_of, sites_of
from vramscope_server.analysis.trace.trace import Trace

MOST_MODULES: Final = 40
MOST_SITES: Final = 40


def by_category(facts: Facts, box: BlackBox) -> list[dict[str, Any]]:
    """Bytes of the whole card, so that they add up to it; None where they do not."""
    total, reserved, used = facts.total_bytes, facts.reserved_bytes, facts.used_bytes
    if total is None or facts.free_bytes is None or reserved is None or used is None:
        return []
    rows: list[dict[str, Any]] = (
        [{"name": name, "bytes": box.owned_bytes.get(name, 0)} for name in OWNERS] if box.owned_bytes else []
    )
    owned = sum(int(row["bytes"]) for row in rows)
    label = "activations, batch, temporaries" if rows else "used by tensors"
    rows.append({"name": label, "bytes": max(0, used - owned)})
    rows.append({"name": "reserved, not used", "bytes": max(0, reserved - used)})
    beside = max(0, total - facts.free_bytes - reserved)
    others, outside = facts.others_bytes, facts.outside_bytes
    if outside is not None:
        rows.append({"name": "this process outside PyTorch", "bytes": min(outside, beside)})
        beside -= min(outside, beside)
    if others is not None:
        rows.append({"name": "other processes", "bytes": min(others, beside)})
        beside -= min(others, beside)
    if beside:
        rows.append({"name": "not PyTorch's: nobody told whose", "bytes": beside})
    rows.append({"name": "free", "bytes": facts.free_bytes})
    return [row for row in rows if row["bytes"] or row["name"] == "free"]


def by_module(box: BlackBox) -> list[dict[str, Any]]:
    """Parameters, gradients, optimizer state and buffers of each module, the largest first."""
    rows: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for holder in box.holders:
        rows[holder.module][holder.category] = holder.held_bytes
    told: list[dict[str, Any]] = [
        {"module": name or "(the model itself)", "bytes": sum(parts.values()), **parts} for name, parts in rows.items()
    ]
    return sorted(told, key=lambda row: -int(row["bytes"]))[:MOST_MODULES]


def by_site(trace: Trace) -> list[dict[str, Any]]:
    """What was alive at the window's end, by the innermost line of the user's; the largest first, the rest as one row."""
    event = len(trace.events) - 1
    held = trace.lives.active_at(event)
    sites, codes = sites_of(trace), categories_of(trace)
    stacks = sites.stack[held]
    frame = np.where(stacks >= 0, sites.frame[np.maximum(stacks, 0)] if len(sites.frame) else -1, -1)
    size, category = trace.lives.size_bytes[held], codes[held]
    key = (frame.astype(np.int64) + 1) * len(CATEGORIES) + category
    kinds, place = np.unique(key, return_inverse=True)
    total = np.bincount(place, size, len(kinds)).astype(np.int64)
    count = np.bincount(place, minlength=len(kinds))
    rows: list[dict[str, Any]] = []
    for at in np.argsort(-total, kind="stable").tolist():
        position = int(kinds[at]) // len(CATEGORIES) - 1
        told = None if position < 0 else frame_of(trace, position)
        rows.append(
            {
                "file": (told.file or None) if told is not None else None,
                "line": told.line if told is not None and told.file else None,
                "function": None if told is None else told.function,
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
                "file": None, "line": None, "function": f"{len(rest)} more places", "category": None,
                "bytes": sum(row["bytes"] for row in rest), "count": sum(row["count"] for row in rest),
            }
        )  # fmt: skip
    return rows


def pieces(box: BlackBox) -> dict[str, int] | None:
    """The largest free piece inside of what is reserved, and how many there are; None where the layout was not read."""
    if box.layout is None:
        return None
    blocks = box.layout.blocks
    size, state = (np.frombuffer(blocks[name], "<i8") for name in ("size_bytes", "state"))
    free = size[state == 0]
    return {
        "free_pieces": len(free),
        "free_bytes": int(free.sum()),
        "largest_free_bytes": int(free.max(initial=0)),
        "blocks": len(size),
        "segments": len(box.layout.segments["address"]) // 8,
    }
