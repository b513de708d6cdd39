"""Groups allocations by category, by the user's source line, by module or by phase.

All groups of a trace are ranked once, by their bytes at its peak. So a group has the same place and colour in every window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from vramscope.protocol.profile import NOT_ATTRIBUTED
from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.timeline.curve import AllocationCurve, alive
from vramscope_server.analysis.timeline.source_lines import frame_texts, sites_of
from vramscope_server.analysis.trace.counting_sort import numbered

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Ids = npt.NDArray[np.int32]
By = Literal["category", "site", "module", "phase"]
BYS: Final[tuple[By, ...]] = get_args(By)

MOST_SERIES: Final = 20
"""Maximum number of series in a picture; more colours cannot be distinguished."""
EARLIER, OTHER = "before the recording", "other"
_STACKED: Final = (
    "unknown", "workspaces", "parameters", "buffers", "optimizer", "gradients", "activations", "input", "temporaries",
)  # fmt: skip
"""Categories from the bottom up: long-lived ones are below short-lived ones."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """The groups of a trace, in their order in the stack from the bottom up."""

    by: str
    names: list[str]
    group: Ids
    """Group of each row of trace.lives."""
    rank: IntArray
    """Rank of each group by its bytes at the peak, from 0. -1: a group that always has its own series, such as memory from
    before the recording."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Series:
    """The series of one picture: at most MOST_SERIES. The last one, "other", combines all further groups."""

    names: list[str]
    keys: list[str]
    """Colour keys of the page: a category, ``phase-forward``, ``series-3``, ``earlier``, ``other``."""
    of_group: Ids
    """Position of each group's series."""
    joined: int
    """Number of groups in the series "other"."""
    peak_bytes: IntArray
    """Bytes of each series at the picture's highest moment."""

    def __len__(self) -> int:
        return len(self.names)


def grouping_of(trace: Trace, curve: AllocationCurve, by: By) -> Grouping:
    """Group all allocations. Takes about 50 ns for each row of trace.lives, plus the time for names of lines and modules."""
    names, group = _MAKERS[by](trace)
    used, group = numbered(group)
    names = [names[at] for at in used]
    held = alive(trace, curve.peak(-1, curve.end))
    size = trace.lives.size_bytes
    at_peak = np.bincount(group[held], size[held], len(names))
    ever = np.bincount(group, size, len(names))
    first = np.array([name == EARLIER for name in names], bool)
    if by == "category":
        order = np.argsort([_STACKED.index(name) if name in _STACKED else len(_STACKED) for name in names])
    else:
        order = np.lexsort((-ever, -at_peak, ~first))
    rank = np.arange(len(names)) - int(first.sum())
    place = np.empty(len(names), np.int32)
    place[order] = np.arange(len(names))
    return Grouping(by, [names[at] for at in order], place[group], np.maximum(rank, -1))


def series_of(grouping: Grouping, held_bytes: IntArray) -> Series:
    """Return the series of a picture: its largest groups, in the order of the grouping.

    held_bytes   bytes of each group at the picture's highest moment
    """
    count = len(grouping)
    kept = np.arange(count)
    if count > MOST_SERIES:
        largest = np.lexsort((grouping.rank, -held_bytes))
        always = np.flatnonzero(grouping.rank < 0)
        room = MOST_SERIES - 1 - max(1, len(always))
        kept = np.sort(np.unique(np.concatenate([always, largest[~np.isin(largest, always)][:room]])))
    of_group = np.full(count, len(kept), np.int32)
    of_group[kept] = np.arange(len(kept))
    names = [grouping.names[at] for at in kept]
    keys = [_key(grouping, int(at)) for at in kept]
    joined = count - len(kept)
    if joined:
        names.append(OTHER)
        keys.append("other")
    at_peak = np.zeros(len(names), np.int64)
    np.add.at(at_peak, of_group, held_bytes)
    return Series(names, keys, of_group, joined, at_peak)


def _key(grouping: Grouping, at: int) -> str:
    name = grouping.names[at]
    if grouping.rank[at] < 0:
        return "unknown" if name == NOT_ATTRIBUTED else "earlier"
    if grouping.by == "category":
        return name
    if grouping.by == "phase":
        return f"phase-{name}" if name in PHASES else "unknown"
    return f"series-{int(grouping.rank[at]) % (MOST_SERIES - 2)}"


# ---- the four kinds of groups ----


def _by_category(trace: Trace) -> tuple[list[str], IntArray]:
    return list(CATEGORIES), categories_of(trace).astype(np.int64)


def _by_phase(trace: Trace) -> tuple[list[str], IntArray]:
    names = [*PHASES, "phase unknown", EARLIER]
    return names, _phases(trace, len(PHASES), len(PHASES) + 1)


def _by_site(trace: Trace) -> tuple[list[str], IntArray]:
    """Group by the user's line. Allocations without a stack are grouped by phase: PyTorch's autograd threads run no Python."""
    sites = sites_of(trace)
    frame = np.full(len(sites.stack), -1, np.int64)
    known = sites.stack >= 0
    frame[known] = sites.frame[sites.stack[known]]
    used, code = numbered(frame)
    names = [*[""] * int(np.count_nonzero(used < 0)), *frame_texts(trace, used[used >= 0])]
    without = frame < 0
    code[without] = len(names) + _phases(trace, len(PHASES), len(PHASES) + 1)[without]
    return [*names, *(f"no stack: {phase}" for phase in PHASES), "no stack", EARLIER], code


def _by_module(trace: Trace) -> tuple[list[str], IntArray]:
    """Group by module name, cut to the deepest level that has few enough names. Without a module, group by phase."""
    lives, events = trace.lives, trace.events
    module = np.full(len(lives), -1, np.int64)
    made = lives.alloc_event >= 0
    module[made] = events.module[lives.alloc_event[made]]
    names, cut = cut_to(trace.modules, MOST_SERIES - 2 - len(PHASES))
    code = np.where(module >= 0, cut[np.maximum(module, 0)] if len(cut) else 0, 0)
    without = module < 0
    code[without] = len(names) + _phases(trace, len(PHASES), len(PHASES) + 1)[without]
    return [*names, *(f"no module: {phase}" for phase in PHASES), "no module", EARLIER], code


_MAKERS: Final[dict[By, Callable[[Trace], tuple[list[str], IntArray]]]] = {
    "category": _by_category,
    "site": _by_site,
    "module": _by_module,
    "phase": _by_phase,
}


def _phases(trace: Trace, unknown: int, earlier: int) -> IntArray:
    lives, phase = trace.lives, trace.events.phase
    codes = np.full(len(lives), earlier, np.int64)
    made = lives.alloc_event >= 0
    born = phase[lives.alloc_event[made]].astype(np.int64)
    codes[made] = np.where(born >= 0, born, unknown)
    return codes


def cut_to(modules: list[str], most: int) -> tuple[list[str], IntArray]:
    """Cut dotted names to the deepest level with at most ``most`` different ones, or to the first level if all have more."""
    parts = [name.split(".") for name in modules]
    for depth in range(max(map(len, parts), default=1), 0, -1):
        names, code = at_depth(parts, depth)
        if len(names) <= most:
            break
    return names, code


def at_depth(parts: list[list[str]], depth: int) -> tuple[list[str], IntArray]:
    """Return the different names after a cut to this many parts, and the position of each name's cut form among them."""
    places: dict[str, int] = {}
    code = [places.setdefault(".".join(one[:depth]), len(places)) for one in parts]
    return list(places), np.array(code, np.int64)
