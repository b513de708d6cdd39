"""Numbers of a run's row from those of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from typing_extensions import TypedDict

from vramscope_server.store.rank_summary import PeakPlace, RankSummary
from vramscope_server.store.sparkline import highest_of_all


class _NeverNeeded(TypedDict):
    never_needed_bytes: int | None
    fragmentation_fraction: float | None


class RunColumns(PeakPlace, _NeverNeeded):
    """Columns of a run's row that come from its ranks; None is unknown."""

    steps: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    sampled_allocated_bytes: int | None
    sampled_reserved_bytes: int | None
    lower_bound_steps: int | None
    inactive_split_bytes: int | None
    reserved_minus_allocated_bytes: int | None
    unusable_bytes: int | None
    step_median_ns: int | None
    out_of_memory: int | None
    graphs_alive: int | None
    sparkline: list[int | None]
    first_time_ns: int | None
    last_time_ns: int | None
    first_step: int | None
    last_step: int | None


def aggregate(summaries: Iterable[RankSummary]) -> RunColumns:
    """Columns of the run (``tables.runs``) from those of its ranks: the highest of any rank."""
    ranks = list(summaries)
    peak = _best(ranks, "measured_peak_bytes")
    held = _best(ranks, "reserved_bytes")
    median = _best(ranks, "steps")
    spark = [r.by_step.values for r in ranks if len(r.by_step.values) > 1] or [r.by_time.values for r in ranks]
    unusable = _best(ranks, "unusable_reserved_bytes")
    return {
        "steps": _over(ranks, "steps", max),
        "peak_allocated_bytes": _over(ranks, "measured_peak_bytes", max),
        "peak_reserved_bytes": _over(ranks, "measured_reserved_bytes", max),
        "sampled_allocated_bytes": _over(ranks, "sampled_allocated_bytes", max),
        "sampled_reserved_bytes": _over(ranks, "sampled_reserved_bytes", max),
        "lower_bound_steps": _over(ranks, "lower_bound_steps", max),
        **(peak or RankSummary()).peak_place,
        "inactive_split_bytes": held.inactive_split_bytes if held else None,
        "reserved_minus_allocated_bytes": held.reserved_minus_allocated_bytes if held else None,
        "unusable_bytes": unusable.unusable_bytes if unusable else None,
        **_never_needed(_best(ranks, "reserved_by_steps")),
        "step_median_ns": median.durations.median_ns() if median else None,
        "out_of_memory": _over(ranks, "ooms", sum),
        "graphs_alive": _over(ranks, "graphs_alive", max),
        "sparkline": highest_of_all(spark),
        "first_time_ns": _over(ranks, "first_time_ns", min),
        "last_time_ns": _over(ranks, "last_time_ns", max),
        "first_step": _over(ranks, "first_step", min),
        "last_step": _over(ranks, "last_step", max),
    }


def _never_needed(rank: RankSummary | None) -> _NeverNeeded:
    """Peak reserved minus peak allocated, in bytes and as a share; None before the first step.

    Both are the exact peaks of all steps, so that equal programs have equal shares. A run that died in a step had its peaks there:
    then they are those that the run shows.
    """
    reserved = None if rank is None else rank.reserved_by_steps
    if rank is None or rank.step_peak_bytes is None or not reserved:
        return {"never_needed_bytes": None, "fragmentation_fraction": None}
    allocated = rank.step_peak_bytes
    if (rank.sample_peak_bytes or 0) > allocated:
        reserved, allocated = max(reserved, rank.peak_reserved_bytes or 0), rank.peak_allocated_bytes or allocated
    idle = max(0, reserved - allocated)
    return {"never_needed_bytes": idle, "fragmentation_fraction": idle / reserved}


def _best(ranks: list[RankSummary], name: str) -> RankSummary | None:
    known = [rank for rank in ranks if getattr(rank, name) is not None]
    return max(known, key=lambda rank: int(getattr(rank, name))) if known else None


def _over(ranks: list[RankSummary], name: str, choose: Callable[[list[int]], int]) -> int | None:
    known = [getattr(rank, name) for rank in ranks if getattr(rank, name) is not None]
    return int(choose(known)) if known else None
