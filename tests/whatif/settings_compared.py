"""Trainings under fourteen settings each, predicted from one history and measured: run once a process, for all tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from measured import measure_all
from predictions_table import CARD, CONFS, recorded

from vramscope_server.analysis.whatif.sweep import predict

NAMES = ("gpt", "cnn", "accumulation")
STEPS = 4  # the fourth batch of an epoch is the smaller one


class Compared(NamedTuple):
    """``rows``: (training, settings, prediction, what the allocator counted)."""

    histories: dict[str, Any]
    rows: list[tuple[str, str, Any, dict[str, Any]]]


@functools.cache
def shared() -> Compared:
    with tempfile.TemporaryDirectory(prefix="whatif-") as folder:
        result = recorded(Path(folder), NAMES, steps=STEPS, total=CARD)
    histories = {name: trace for name, (trace, _) in result.items()}
    asked: list[Any] = [(name, conf, {"steps": STEPS, "total": CARD}) for name in NAMES for conf in CONFS]
    return Compared(
        histories,
        [
            (name, conf, predict(histories[name], conf, device_bytes=CARD), measured)
            for (name, conf, _), measured in zip(asked, measure_all(asked), strict=True)
        ],
    )
