"""Histories of the real allocator: each training runs once a session, as PyTorch alone takes seconds to load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "backend")]  # tests are imported by path: their neighbour is not a package


GIVEN = {
    "grown": ["expandable_segments:True,large_segment_size_mb:32", "roundup_power2_divisions:[2:8,64:2]"],
    "split": ["large_segment_size_mb:64,roundup_power2_divisions:4", "max_split_size_mb:128"],
}
"""Settings that were given one after the other to a process that ran: what is in force is more than the last text says."""


class Recorded(NamedTuple):
    """A training that was run: its snapshot file, and what the allocator counted."""

    path: Path
    counted: dict[str, Any]


@pytest.fixture(scope="session")
def recorded(emulated_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """``lengths`` and ``evaluation`` from their first allocation on; ``late`` and ``ring``: histories that begin later."""
    from measured import measure_all

    folder = tmp_path_factory.mktemp("recorded")
    wishes: dict[str, tuple[str, str, dict[str, Any]]] = {
        "lengths": ("lengths", "", {"steps": 6}),
        "evaluation": ("evaluation", "expandable_segments:True", {"steps": 4}),
        "late": ("lengths", "", {"steps": 7, "from_step": 3}),
        "late texts": ("generation", "", {"steps": 4, "from_step": 2}),
        "ring": ("prefetch", "", {"steps": 4, "max_entries": 1500}),
        "died": ("lengths", "", {"steps": 6, "total": "4500M"}),
        "waits": ("prefetch", "", {"steps": 4, "async_us": 300_000}),
        "at once": ("prefetch", "max_split_size_mb:64", {"steps": 4}),
        **{kind: ("accumulation", "", {"steps": 2, "given": texts}) for kind, texts in GIVEN.items()},
    }
    asked = [
        (name, conf, {**wish, "snapshot": str(folder / f"{key}.pickle.gz")})
        for key, (name, conf, wish) in wishes.items()
    ]
    answers = measure_all(asked)
    return {key: Recorded(folder / f"{key}.pickle.gz", counted) for key, counted in zip(wishes, answers, strict=True)}
