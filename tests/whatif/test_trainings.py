"""Real trainings under fourteen settings each: what is predicted from one history is what the real allocator then does.

A part of what ``predictions_table.py --check`` compares every night: all its settings, of trainings that are alike from step to
step, that have a smaller last batch, and that accumulate over other lengths.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from predictions_table import CARD, CONFS, COUNTED
from settings_compared import NAMES, shared

from vramscope_server.analysis.whatif.sweep import check, predict


@pytest.mark.xdist_group("whatif settings")  # tests/golden compares the same runs
@pytest.mark.timeout(600)
def test_fourteen_settings_of_three_trainings_come_as_predicted(emulated_gpu: None) -> None:
    """To the byte and to the call, and each says of itself that it is exact."""
    histories, rows = shared()
    differences = []
    for name, conf, each, measured in rows:
        predicted, came = ({key: one[key] for key in COUNTED} for one in (vars(each), measured))
        if predicted != came or each.certainty != "exact":
            differences.append((name, conf, predicted, came, each.certainty, each.reasons))
    assert not differences
    assert len(rows) == 42
    for name in NAMES:
        assert check(histories[name]).exact
        peaks = {predict(histories[name], conf, device_bytes=CARD).peak_reserved_bytes for conf in CONFS}
        assert len(peaks) >= 8, "the settings make a difference"


@pytest.mark.parametrize("name", NAMES)
def test_the_trainings_are_those_of_the_table(name: str) -> None:
    document = (Path(__file__).parent / "RESULTS.md").read_text()
    header = next(line for line in document.splitlines() if line.startswith("| settings |"))
    assert f" {name} " in header
    assert all(f"| `{conf or 'default'}` |" in document for conf in CONFS)
