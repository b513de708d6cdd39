"""Stands for somebody's helper library: small classes that training loops import."""

from __future__ import annotations

from typing import Any


class AverageMeter:
    """The weighted mean of what it was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total: Any = 0.0
        self.weight = 0

    def update(self, value: Any, weight: int = 1) -> None:
        # fix here: value = float(value)
        self.total = self.total + value * weight  # <- leak of meter_of_a_library
        self.weight += weight

    def average(self) -> float:
        return float(self.total) / max(1, self.weight)


class ProgressLog:
    """Writes what it was given in lots of ``flush_every``."""

    def __init__(self, flush_every: int) -> None:
        self.flush_every = flush_every
        self.pending: list[Any] = []

    def add_scalar(self, tag: str, value: Any, step: int) -> None:
        entry = (tag, value, step)  # fix here: entry = (tag, float(value), step)
        self.pending.append(entry)  # <- leak of log_that_flushes_late, log_of_histograms
        self.flush_if_full()

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        entry = (tag, values, step)  # fix here: entry = (tag, values.mean(), step)
        self.pending.append(entry)  # <- leak of log_that_flushes_late, log_of_histograms
        self.flush_if_full()

    def flush_if_full(self) -> None:
        if len(self.pending) >= self.flush_every:
            self.pending.clear()
