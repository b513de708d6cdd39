"""What a recorded step would need if it were trained otherwise."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from vramscope_server.analysis.techniques.plan import TrainingPlan, parse_plan
from vramscope_server.analysis.techniques.predict import Predictions, predict
from vramscope_server.answers.anatomy import PredictionAnswer
from vramscope_server.api.anatomy import KnownRun, facts_of, known_run
from vramscope_server.api.dependencies import open_recording, readable
from vramscope_server.api.problems import InvalidParameter
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import Opened

router = APIRouter(tags=["recordings"])

Ways = Annotated[
    str | None,
    Query(
        max_length=2000,
        description="gradient_accumulation:4+gradient_checkpointing, say; commas between several; none: all that bring something",
    ),
]


@router.get(
    "/recordings/{recording}/prediction",
    summary="The peak with techniques that were not tried",
    responses=answers_with(PredictionAnswer),
)
def get_prediction(request: Request, recording: str, techniques: Ways = None) -> Response:
    """Accumulation, checkpointing, 8-bit state and no foreach, alone and together, by the recorded lives of the peak's step."""
    asked = [_way(words) for words in techniques.split(",")] if techniques else []
    stored, opened = open_recording(request, recording)
    run = known_run(request.app.state.house, stored.run_id, stored.rank)
    with readable(stored):
        told = predicted(opened, run, asked)
    return answer({"recording": stored.id, **shown(told)})


def predicted(opened: Opened, run: KnownRun, asked: list[TrainingPlan]) -> Predictions:
    """Worked out once for a recording, what is known of its run, and what is asked."""
    key = ("prediction", str(run.techniques), *asked)
    return opened.once(key, lambda: predict(facts_of(opened, run), asked))


def shown(told: Predictions) -> dict[str, Any]:
    """As the API shows it (docs/http.md)."""
    rows = [
        {
            "techniques": row.plan._asdict(),
            "peak_allocated_bytes": row.peak_allocated_bytes,
            "saved_bytes": None
            if row.peak_allocated_bytes is None
            else (told.rows[0].peak_allocated_bytes or 0) - row.peak_allocated_bytes,
            "rows": row.rows,
            "rows_that_fit": row.rows_that_fit,
        }
        for row in told.rows
    ]
    return {"step": told.step, "rows": rows, "furthest_rows": told.furthest_rows, "notes": told.notes}


def _way(words: str) -> TrainingPlan:
    try:
        return parse_plan(words)
    except ValueError as fault:
        raise InvalidParameter(
            f"{fault}.", field="techniques", seen=words, expected="gradient_accumulation:4+gradient_checkpointing, say"
        ) from None
