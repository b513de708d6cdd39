"""Replays of recordings from a real card, against what that card then measured.

``real_cards/h200_torch_2_11``: one NVIDIA H200, PyTorch 2.11.0 (CUDA 13.0), 2026-11-26, recorded by
``benchmarks/gpu_check.py replays``. Each training was recorded once under the default settings and measured
again under six settings, each time in a new process.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.sweep import check, predict

FOLDER = Path(__file__).parent / "real_cards" / "h200_torch_2_11"
NAMES = sorted(path.name.removesuffix(".pickle.gz") for path in FOLDER.glob("*.pickle.gz"))
MEASURED = [row for row in json.loads((FOLDER / "measured.json").read_text())["rows"] if row["training"] in NAMES]


@cache
def trace_of(name: str) -> Trace:
    return read(str(FOLDER / f"{name}.pickle.gz")).devices[0]


@pytest.mark.parametrize("name", NAMES)
def test_replay_under_recorded_settings_is_identical(name: str) -> None:
    assert check(trace_of(name)).exact


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['training']}-{row['settings'] or 'default'}")
def test_measured_peak_lies_in_the_predicted_band(row: dict[str, Any]) -> None:
    predicted = predict(trace_of(row["training"]), row["settings"])
    low, high = predicted.band or (predicted.peak_reserved_bytes, predicted.peak_reserved_bytes)
    assert low <= row["measured"]["peak_reserved_bytes"] <= high
    assert predicted.out_of_memory == row["measured"]["out_of_memory"]


def test_most_predictions_are_exact() -> None:
    """A wide band would pass the test above: 24 of the 30 peaks are equal to the byte."""
    exact = sum(
        predict(trace_of(row["training"]), row["settings"]).peak_reserved_bytes
        == row["measured"]["peak_reserved_bytes"]
        for row in MEASURED
    )
    assert (exact, len(MEASURED)) == (24, 30)
