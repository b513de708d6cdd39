"""Predictions under other allocator settings: those that tests/whatif compares with the real allocator, and a whole sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "whatif"))

from files import Result, split
from predictions_table import COUNTED
from settings_compared import Compared, shared

from vramscope_server.analysis.whatif.sweep import sweep

AREA = "whatif"


def of_settings(compared: Compared) -> Result:
    """Facts and sentences by training: each setting as predicted and as measured, and the default sweep."""
    fields: dict[str, Any] = {
        name: {"settings": {}, "sweep": _swept(history)} for name, history in compared.histories.items()
    }
    for name, conf, predicted, measured in compared.rows:
        fields[name]["settings"][conf or "default"] = {
            "predicted": {key: getattr(predicted, key) for key in COUNTED},
            "measured": {key: measured[key] for key in COUNTED},
            "certainty": predicted.certainty,
            "reasons": predicted.reasons,
            "band": predicted.band,
        }
    whole = Result()
    for name, one in fields.items():
        whole.facts[name], whole.sentences[name] = split(one, words=("reasons", "notes", "words", "sentence", "risk"))
    return whole


def _swept(history: Any) -> dict[str, Any]:
    swept = sweep(history)
    return {
        "rows": {
            row.conf or "default": {
                "smallest_card_bytes": row.smallest_device_bytes,
                "saved_bytes": row.saved_bytes,
                "uncertainty_bytes": row.uncertainty_bytes,
                "reserved_bytes": row.reserved_bytes,
                "recorded": row.recorded,
                "risk": vars(row.risk),
            }
            for row in swept.rows
        },
        "recommendation": vars(swept.recommendation),
        "outside_bytes": swept.outside_bytes,
        "device_bytes": swept.device_bytes,
        "notes": swept.notes,
    }


def compute() -> dict[str, Result]:
    """Half a minute."""
    shared.cache_clear()
    return {AREA: of_settings(shared())}
