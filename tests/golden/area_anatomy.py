"""Categories, advice and predictions of the recorded trainings of tests/anatomy: the same that its tests compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "anatomy"))

from files import Result, split
from observed import Observed, shared

from vramscope_server.analysis.advice.all_rules import advise
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.analysis.techniques.predict import predict
from vramscope_server.analysis.whatif.sweep import sweep

AREA = "anatomy"
NOT_COMPARED = ("ddp",)
"""Its buckets are filled by a thread, and its peak varies from run to run."""
ROWS = [{"kind": "batch", "detail": {"batch_size": 32}}]


def of_training(name: str, one: Observed) -> Result:
    facts = StepFacts(one.trace, sweep=sweep(one.trace))
    fields: dict[str, Any] = {
        "peak_allocated_bytes": one.peak_allocated_bytes,
        "peak_reserved_bytes": one.peak_reserved_bytes,
        "anatomy": summary(one.trace),
        "advice": [
            {
                "rule": advice.rule,
                "sentence": advice.sentence,
                "saves_bytes": advice.saves_bytes,
                "seconds": advice.seconds,
                "evidence": advice.evidence,
                "source": advice.source,
                "file": advice.file and Path(advice.file).name,
                "line": advice.line,
                "module": advice.module,
            }
            for advice in advise(facts)
        ],
    }
    predicted = predict(StepFacts(one.trace, techniques=ROWS))
    fields["prediction"] = {
        "step": predicted.step,
        "rows": {str(row.plan): [row.peak_allocated_bytes, row.rows, row.rows_that_fit] for row in predicted.rows},
        "furthest_rows": predicted.furthest_rows,
        "notes": predicted.notes,
    }
    known, sentences = split(fields, words=("sentence", "notes", "moment"), names=("file",))
    return Result({name: known}, {name: sentences})


def of_all(observed: dict[str, Observed]) -> Result:
    whole = Result()
    for name in sorted({*observed} - {*NOT_COMPARED}):
        result = of_training(name, observed[name])
        whole.facts |= result.facts
        whole.sentences |= result.sentences
    return whole


def compute() -> dict[str, Result]:
    """A minute and a half."""
    shared.cache_clear()
    return {AREA: of_all(shared())}
