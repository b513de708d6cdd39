"""Replays of recordings from real cards, against what those cards then measured.

==================  ================  =============================  ==========
folder              card              PyTorch                        date
==================  ================  =============================  ==========
h200_torch_2_11     NVIDIA H200       2.11.0, CUDA 13.0              2026-11-26
h100_torch_2_11     NVIDIA H100 80GB  2.11.0, CUDA 13.0              2026-11-27
==================  ================  =============================  ==========

``benchmarks/gpu_check.py replays`` recorded them. Each training was recorded once under the default settings and measured
again under six settings, each time in a new process.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.sweep import check, predict

FOLDER = Path(__file__).parent / "real_cards"
CARDS = sorted(path.name for path in FOLDER.iterdir())


class Measured(NamedTuple):
    card: str
    training: str
    settings: str
    peak_reserved_bytes: int
    out_of_memory: bool

    def __str__(self) -> str:
        return f"{self.card}-{self.training}-{self.settings or 'default'}"


def measured(card: str) -> list[Measured]:
    """What a card measured of the trainings whose recording is here."""
    rows = json.loads((FOLDER / card / "measured.json").read_text())["rows"]
    return [
        Measured(
            card,
            row["training"],
            row["settings"],
            row["measured"]["peak_reserved_bytes"],
            row["measured"]["out_of_memory"],
        )
        for row in rows
        if (FOLDER / card / f"{row['training']}.pickle.gz").exists()
    ]


@cache
def trace_of(card: str, training: str) -> Trace:
    return read(str(FOLDER / card / f"{training}.pickle.gz")).devices[0]


RECORDINGS = sorted({(row.card, row.training) for card in CARDS for row in measured(card)})


@pytest.mark.parametrize(("card", "training"), RECORDINGS)
def test_replay_under_recorded_settings_is_identical(card: str, training: str) -> None:
    assert check(trace_of(card, training)).exact


@pytest.mark.parametrize("row", [row for card in CARDS for row in measured(card)], ids=str)
def test_measured_peak_lies_in_the_predicted_band(row: Measured) -> None:
    predicted = predict(trace_of(row.card, row.training), row.settings)
    low, high = predicted.band or (predicted.peak_reserved_bytes, predicted.peak_reserved_bytes)
    assert low <= row.peak_reserved_bytes <= high
    assert predicted.out_of_memory == row.out_of_memory


@pytest.mark.parametrize(("card", "exact", "of"), [("h200_torch_2_11", 24, 30), ("h100_torch_2_11", 28, 36)])
def test_most_predictions_are_exact(card: str, exact: int, of: int) -> None:
    """A wide band would pass the test above: most peaks are equal to the byte."""
    rows = measured(card)
    equal = sum(
        predict(trace_of(card, row.training), row.settings).peak_reserved_bytes == row.peak_reserved_bytes
        for row in rows
    )
    assert (equal, len(rows)) == (exact, of)
