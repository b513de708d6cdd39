"""The anatomy of a recording at its peak: what held the memory, by category, phase of birth and module; and how much of it is
known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.ownership.amounts import allocated_after, allocated_at, peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, UNKNOWN, categories_of
from vramscope_server.analysis.ownership.stack_categories import with_phases
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.units import amount

MOST_MODULES: Final = 50
EARLIER: Final = "before the recording"

Whole = npt.NDArray[np.int64]


def summary(trace: Trace, event: int | None = None) -> dict[str, Any]:
    """What the API tells of a moment (docs/http.md); ``event`` None: the moment at which most was allocated.

    The categories add up to what is allocated, as the allocator counts it.
    """
    codes = categories_of(trace)
    basis = basis_of(trace)
    trace = with_phases(trace)
    event = peak_event(trace) if event is None else event
    held = allocated_at(trace, event)
    size, lives = trace.lives.size_bytes[held], trace.lives
    total = int(allocated_after(trace)[event + 1])
    made = lives.alloc_event[held]
    born = np.where(made >= 0, made, 0)
    has_events = len(trace.events) > 0
    phase = np.where(made >= 0, trace.events.phase[born] if has_events else -1, len(PHASES))
    module = np.where(made >= 0, trace.events.module[born] if has_events else -1, -1)
    unknown = int(size[codes[held] == UNKNOWN].sum())
    step = int(trace.events.step[event]) if event >= 0 else -1
    at = int(trace.events.phase[event]) if event >= 0 else -1
    categories = [row for row in _sums(codes[held], size, CATEGORIES) if row["bytes"]]
    return {
        "event": event,
        "step": step if step >= 0 else None,
        "phase": PHASES[at] if at >= 0 else None,
        "allocated_bytes": total,
        "moment": moment_in_words(trace, event, total),
        "categories": sorted(categories, key=lambda row: -row["bytes"]),
        "phases": _sums(phase, size, [*PHASES, EARLIER], "phase"),
        "modules": sorted(_sums(module, size, trace.modules, "module"), key=lambda row: -row["bytes"])[:MOST_MODULES],
        "coverage": {
            "unknown_bytes": unknown,
            "unknown_fraction": unknown / total if total else None,
            "basis": basis,
        },
    }


def basis_of(trace: Trace) -> str:
    """What categories stand on here: ``owners``, ``phases``, ``stacks`` or ``nothing``."""
    if trace.owners and len(trace.owners["event"]):
        return "owners"
    if len(trace.events) and (trace.events.phase >= 0).any():
        return "phases"
    return "stacks" if len(trace.stacks) else "nothing"


def moment_in_words(trace: Trace, event: int, allocated_bytes: int) -> str:
    """``4.8 GiB in step 2, in the backward, while transformer.h.11 ran``; what is not known is left out."""
    words = amount(allocated_bytes)
    if event < 0:
        return f"{words} before the first event"
    step, phase, module = (
        int(column[event]) for column in (trace.events.step, trace.events.phase, trace.events.module)
    )
    if step >= 0:
        words += f" in step {step}"
    if phase >= 0 and PHASES[phase] != "other":
        words += f", in the {'evaluation' if PHASES[phase] == 'eval' else PHASES[phase]}"
    if module >= 0:
        words += f", while {trace.modules[module]} ran"
    return words


def _sums(code: npt.NDArray[Any], size: Whole, names: Sequence[str], what: str = "category") -> list[dict[str, Any]]:
    rows = []
    for one in np.unique(code):
        chosen = code == one
        name = names[int(one)] if 0 <= one < len(names) else None
        rows.append({what: name, "bytes": int(size[chosen].sum()), "count": int(chosen.sum())})
    return rows
