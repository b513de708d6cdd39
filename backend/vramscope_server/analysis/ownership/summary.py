"""Summary of a recording at its peak: allocated bytes by category, phase and module, and the share that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES, phase_place
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.ownership.amounts import allocated_after, allocated_at, peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, UNKNOWN, categories_of
from vramscope_server.analysis.ownership.stack_categories import with_phases
from vramscope_server.analysis.trace.trace import Trace

MAX_MODULES: Final = 50
EARLIER: Final = "before the recording"


class CategorySum(TypedDict):
    """Allocated bytes of a category; None is unknown."""

    category: str | None
    bytes: int
    count: int


class PhaseSum(TypedDict):
    """Allocated bytes that a phase allocated; None is unknown."""

    phase: str | None
    bytes: int
    count: int


class ModuleSum(TypedDict):
    """Allocated bytes that a module allocated; None is unknown."""

    module: str | None
    bytes: int
    count: int


class KnownShare(TypedDict):
    """Bytes of unknown category, and the basis of the categories."""

    unknown_bytes: int
    unknown_fraction: float | None
    basis: str


class Summary(TypedDict):
    """Allocated bytes after an event."""

    event: int
    step: int | None
    phase: str | None
    allocated_bytes: int
    moment: str
    categories: list[CategorySum]
    phases: list[PhaseSum]
    modules: list[ModuleSum]
    coverage: KnownShare


def summary(trace: Trace, event: int | None = None) -> Summary:
    """The API's answer for an event (docs/http.md). The default is the event with the highest allocated bytes.

    The categories add up to the allocator's allocated bytes.
    """
    codes = categories_of(trace)
    basis = basis_of(trace)
    trace = with_phases(trace)
    event = peak_event(trace) if event is None else event
    existing = allocated_at(trace, event)
    size, lives = trace.lives.size_bytes[existing], trace.lives
    total = int(allocated_after(trace)[event + 1])
    made = lives.alloc_event[existing]
    born = np.where(made >= 0, made, 0)
    has_events = len(trace.events) > 0
    phase = np.where(made >= 0, trace.events.phase[born] if has_events else -1, len(PHASES))
    module = np.where(made >= 0, trace.events.module[born] if has_events else -1, -1)
    unknown = int(size[codes[existing] == UNKNOWN].sum())
    step = int(trace.events.step[event]) if event >= 0 else -1
    at = int(trace.events.phase[event]) if event >= 0 else -1
    categories = [row for row in _sums(codes[existing], size, CATEGORIES) if row.bytes]
    modules = sorted(_sums(module, size, trace.modules), key=lambda row: -row.bytes)[:MAX_MODULES]
    return {
        "event": event,
        "step": step if step >= 0 else None,
        "phase": PHASES[at] if at >= 0 else None,
        "allocated_bytes": total,
        "moment": event_text(trace, event, total),
        "categories": [
            {"category": row.name, "bytes": row.bytes, "count": row.allocations}
            for row in sorted(categories, key=lambda row: -row.bytes)
        ],
        "phases": [
            {"phase": row.name, "bytes": row.bytes, "count": row.allocations}
            for row in _sums(phase, size, [*PHASES, EARLIER])
        ],
        "modules": [{"module": row.name, "bytes": row.bytes, "count": row.allocations} for row in modules],
        "coverage": {
            "unknown_bytes": unknown,
            "unknown_fraction": unknown / total if total else None,
            "basis": basis,
        },
    }


def basis_of(trace: Trace) -> str:
    """Basis of the categories: ``owners``, ``phases``, ``stacks`` or ``nothing``."""
    if trace.owners and len(trace.owners["event"]):
        return "owners"
    if len(trace.events) and (trace.events.phase >= 0).any():
        return "phases"
    return "stacks" if len(trace.stacks) else "nothing"


def event_text(trace: Trace, event: int, allocated_bytes: int) -> str:
    """Text of an event: ``4.8 GiB in step 2, in the backward pass, while transformer.h.11 ran``, without unknown parts."""
    text = amount(allocated_bytes)
    if event < 0:
        return f"{text} before the first event"
    step, phase, module = (
        int(column[event]) for column in (trace.events.step, trace.events.phase, trace.events.module)
    )
    if step >= 0:
        text += f" in step {step}"
    if phase >= 0 and PHASES[phase] != "other":
        text += f", {phase_place(PHASES[phase])}"
    if module >= 0:
        text += f", while {trace.modules[module]} ran"
    return text


class _NamedSum(NamedTuple):
    name: str | None
    bytes: int
    allocations: int


def _sums(code: npt.NDArray[Any], size: IntArray, names: Sequence[str]) -> list[_NamedSum]:
    rows = []
    for one in np.unique(code):
        chosen = code == one
        name = names[int(one)] if 0 <= one < len(names) else None
        rows.append(_NamedSum(name, int(size[chosen].sum()), int(chosen.sum())))
    return rows
