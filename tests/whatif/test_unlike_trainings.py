"""Trainings and settings that were written after the replay, and are unlike those of the table: the same, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from measured import Question, measure_all
from predictions_table import CARD, COUNTED, recorded

from vramscope_server.analysis.whatif.sweep import check, predict

STEPS: Final = 4
ASKED: Final = (
    ("adversaries", "expandable_segments:True,garbage_collection_threshold:0.7"),
    ("adversaries", "max_split_size_mb:21"),
    ("adversaries", "roundup_power2_divisions:[64:8,1024:2,>:1]"),
    ("adversaries", "large_segment_size_mb:128,max_split_size_mb:200"),
    ("experts", "expandable_segments:True"),
    ("experts", "roundup_power2_divisions:16"),
    ("experts", "max_split_size_mb:96,max_non_split_rounding_mb:200"),
    ("points", "expandable_segments:True,roundup_power2_divisions:4"),
    ("points", "max_split_size_mb:20"),
    ("points", "roundup_power2_divisions:2,large_segment_size_mb:32"),
)


@pytest.mark.timeout(600)
def test_ten_settings_of_three_other_trainings_come_as_predicted(emulated_gpu: None, tmp_path: Path) -> None:
    names = tuple(dict.fromkeys(name for name, _ in ASKED))
    histories = {name: trace for name, (trace, _) in recorded(tmp_path, names, steps=STEPS, total=CARD).items()}
    assert all(check(trace).exact for trace in histories.values())
    questions: list[Question] = [(name, conf, {"steps": STEPS, "total": CARD}) for name, conf in ASKED]
    differences = []
    for (name, conf), measured in zip(ASKED, measure_all(questions), strict=True):
        each = predict(histories[name], conf, device_bytes=CARD)
        predicted, came = ({key: one[key] for key in COUNTED} for one in (vars(each), measured))
        # A snapshot does not say whether the memory was limited, and with a limit that threshold returns memory.
        certainty = "estimate" if "garbage_collection_threshold" in conf else "exact"
        if predicted != came or each.certainty != certainty:
            differences.append((name, conf, predicted, came, each.certainty, each.reasons))
    assert not differences, "\n".join(map(str, differences))
