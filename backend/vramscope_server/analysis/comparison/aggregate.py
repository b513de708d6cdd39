"""Rows of a comparison combined to groups: their number, and mean and range of each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vramscope_server.analysis.comparison.group_titles import titles
from vramscope_server.analysis.comparison.mean_and_range import MeanAndRange, mean_and_range, mean_and_range_of_ratio
from vramscope_server.analysis.comparison.repeats import Run, repeats
from vramscope_server.analysis.comparison.rows import MEMORY, OPEN, Row, TechniqueEffect, less, saved_bounds

INTEGERS: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "unusable_bytes")
"""Integer fields. Their means are rounded."""
MEANS: Final = (
    *INTEGERS, "step_seconds_median", "wall_seconds", "samples_per_second", "fragmentation_fraction", "final_loss", "first_loss",
)  # fmt: skip
SHARED: Final = (
    "state", "steps", "label", "differing", "techniques", "batch", "accumulation", "effective_batch", "capacity_bytes",
    "unusable_bytes", "recordings",
)  # fmt: skip
"""Facts of a run that runs of another configuration may not share."""
OF_EACH_LOSS: Final = ("loss_of", "loss_source")
"""Facts of a run's final loss. Those of a group are None unless all of its runs share them."""
RATIOS: Final = {
    "step_time_ratio": "step_seconds_median",
    "wall_time_ratio": "wall_seconds",
    "throughput_ratio": "samples_per_second",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that share a row."""

    positions: tuple[int, ...]
    """Positions of the runs."""
    value: str | None = None
    """Value of the setting that they share; None for repeats of one configuration."""

    @property
    def is_repeats(self) -> bool:
        """Whether the runs repeat one configuration."""
        return self.value is None


def with_repeats(runs: Sequence[Run], rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """``with_groups`` for repeats of one configuration."""
    return with_groups(rows, [Group(tuple(positions)) for positions in repeats(runs)])


def groups_by(values: Sequence[str]) -> list[Group]:
    """Groups of runs with equal values, in the order of their first run."""
    return [
        Group(tuple(at for at, other in enumerate(values) if other == value), value) for value in dict.fromkeys(values)
    ]


def with_groups(rows: Sequence[Row], groups: Sequence[Group]) -> tuple[list[Row], list[Row]]:
    """The rows, each with ``n`` and ``repeats_of`` (the first run of its group), and one row per group.

    The baseline is in the first group. A group of one run keeps its row, with ``n`` 1 and no ``spreads``. Other groups have
    ``run`` and ``name`` of the first run. ``title`` names the group. Values of different configurations have a range and no
    interval.
    """
    members = [[rows[position] for position in group.positions] for group in groups]
    for group in members:
        for row in group:
            row |= {"n": len(group), "repeats_of": group[0]["run"]}
    combined = [
        _one(group, members[0], interval=about.is_repeats) | _shared(group, about)
        for group, about in zip(members, groups, strict=True)
    ]
    for row, title in zip(combined, titles([[row["name"] for row in group] for group in members]), strict=True):
        row["title"] = title
    _left_out(combined)
    return list(rows), combined


def _shared(members: list[Row], group: Group) -> Row:
    """Value of the group, and the facts that its runs do not share: ``mixed`` for the state, None for the others."""
    row: Row = {"group": group.value}
    if group.is_repeats:
        return row
    for name in SHARED:
        if any(one[name] != members[0][name] for one in members):
            row[name] = "mixed" if name == "state" else None
    return row | {"leave_one_out": None, "emulated": any(one["emulated"] for one in members)}


def _one(group: list[Row], base: list[Row], *, interval: bool) -> Row:
    runs = [{"run": row["run"], "name": row["name"]} for row in group]
    if len(group) == len(base) == 1:
        return group[0] | {"runs": runs, "spreads": {}}
    spreads: dict[str, MeanAndRange] = {field: found for field in MEANS if (found := _mean(group, field, interval))}
    changes: Row = {field: spreads[field].mean if field in spreads else None for field in MEANS}
    changes |= {field: round(spreads[field].mean) for field in INTEGERS if field in spreads}
    if group is not base:
        bounds = saved_bounds(_lower_bounds(group), _lower_bounds(base))
        changes["saved_bounds"] = bounds
        changes |= dict.fromkeys((*MEMORY.values(), *RATIOS))
        for kind, field in MEMORY.items():
            name = f"peak_{kind}_bytes"
            found = None if bounds.get(field) == OPEN else _ratio(group, base, name, interval)
            if found is not None and not (kind == "device" and _device_of(group) != _device_of(base)):
                spreads[field] = MeanAndRange(found.n, 1 - found.mean, 1 - found.high, 1 - found.low, found.kind)
        for field, of in RATIOS.items():
            found = _ratio(group, base, of, interval)
            if found is not None and (field != "wall_time_ratio" or all(row[field] is not None for row in group)):
                spreads[field] = found
        changes |= {field: spreads[field].mean for field in (*MEMORY.values(), *RATIOS) if field in spreads}
    leaky = max(group, key=lambda row: (row["leaked_bytes"] or 0, row["leaks"] or 0))
    diverged = [row["loss_words"] for row in group if row["loss_words"]]
    return (
        group[0]
        | changes
        | {name: group[0][name] if all(row[name] == group[0][name] for row in group) else None for name in OF_EACH_LOSS}
        | {name: leaky[name] for name in ("leaks", "leaked_bytes", "worst_leak")}
        | {
            "graphs_alive": max(
                (row["graphs_alive"] for row in group if row["graphs_alive"] is not None), default=None
            ),
            "peak_device_of": _device_of(group),
            "lower_bounds": [name for name in _lower_bounds(group) if changes[name] is not None],
            "loss_words": f"{diverged[0]} ({len(diverged)} of {len(group)})"
            if diverged and len(group) > 1
            else group[0]["loss_words"],
            "reasons": [
                dict(reason) for reason in dict.fromkeys(tuple(one.items()) for row in group for one in row["reasons"])
            ],
            "runs": runs,
            "spreads": {
                field: found.as_json() for field, found in spreads.items() if len(group) > 1 or field not in MEANS
            },
        }
    )


def _lower_bounds(group: list[Row]) -> list[str]:
    """Means of which a value is a lower bound are lower bounds, too."""
    return list(dict.fromkeys(name for row in group for name in row["lower_bounds"]))


def _mean(group: list[Row], field: str, interval: bool) -> MeanAndRange | None:
    known = _known(group, field)
    return mean_and_range(known, interval=interval) if known else None


def _ratio(group: list[Row], base: list[Row], field: str, interval: bool) -> MeanAndRange | None:
    own, other = _known(group, field), _known(base, field)
    if not (own and other and all(own) and all(other)):
        return None
    return mean_and_range_of_ratio(own, other, interval=interval)


def _known(group: list[Row], field: str) -> list[float]:
    if field == "peak_device_bytes" and _device_of(group) is None:
        return []
    return [float(row[field]) for row in group if row[field] is not None]


def _device_of(group: list[Row]) -> str | None:
    """Source of the device peaks, process or device; None if the runs differ."""
    kinds = {row["peak_device_of"] for row in group}
    return group[0]["peak_device_of"] if len(kinds) == 1 else None


def _left_out(combined: list[Row]) -> None:
    """Reduction of the mean peaks by one technique within the combination."""
    for row in combined:
        effect = row["leave_one_out"]
        if effect is None:
            continue
        whole = next(one for one in combined if any(run["run"] == effect["run"] for run in one["runs"]))
        combined_effect: TechniqueEffect = {
            "technique": effect["technique"],
            "run": effect["run"],
            "allocated_bytes": less(row, whole, "peak_allocated_bytes"),
            "reserved_bytes": less(row, whole, "peak_reserved_bytes"),
            "device_bytes": less(row, whole, "peak_device_bytes"),
        }
        row["leave_one_out"] = combined_effect
