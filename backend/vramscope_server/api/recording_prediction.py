"""Predictions of a recorded step with other techniques."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from vramscope_server.analysis.techniques.plan import TrainingPlan, parse_plan
from vramscope_server.analysis.techniques.predict import Predictions, predict
from vramscope_server.answers.anatomy import PredictionAnswer, PredictionRow, TechniquePlan
from vramscope_server.api.anatomy import KnownRun, facts_of, known_run
from vramscope_server.api.problems import InvalidParameter
from vramscope_server.api.recording_request import open_recording, readable
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import OpenRecording

router = APIRouter(tags=["recordings"])

Ways = Annotated[
    str | None,
    Query(
        max_length=2000,
        description="For example `gradient_accumulation:4+gradient_checkpointing`; several are separated by commas.",
    ),
]


@router.get(
    "/recordings/{recording}/prediction",
    summary="Predict the peak with other techniques",
    responses=answers_with(PredictionAnswer),
)
def get_prediction(request: Request, recording: str, techniques: Ways = None) -> Response:
    """Gradient accumulation, gradient checkpointing, 8-bit optimizer state and no foreach, alone and together, predicted
    from the recorded allocations.
    """
    asked = [_way(words) for words in techniques.split(",")] if techniques else []
    stored, opened = open_recording(request, recording)
    run = known_run(request, stored.run_id, stored.rank)
    with readable(stored):
        predictions = predicted(opened, run, asked)
    return answer(shown(stored.id, predictions))


def predicted(opened: OpenRecording, run: KnownRun, asked: list[TrainingPlan]) -> Predictions:
    """Prediction, computed once for a recording, the facts of its run, and the request."""
    key = ("prediction", str(run.techniques), *asked)
    return opened.once(key, lambda: predict(facts_of(opened, run), asked))


def shown(recording: str, predictions: Predictions) -> PredictionAnswer:
    """Prediction as an answer."""
    rows: list[PredictionRow] = [
        {
            "techniques": plan_fields(row.plan),
            "peak_allocated_bytes": row.peak_allocated_bytes,
            "saved_bytes": None
            if row.peak_allocated_bytes is None
            else (predictions.rows[0].peak_allocated_bytes or 0) - row.peak_allocated_bytes,
            "rows": row.rows,
            "rows_that_fit": row.rows_that_fit,
        }
        for row in predictions.rows
    ]
    return {
        "recording": recording,
        "step": predictions.step,
        "rows": rows,
        "furthest_rows": predictions.furthest_rows,
        "notes": predictions.notes,
    }


def plan_fields(plan: TrainingPlan) -> TechniquePlan:
    """Techniques as a part of an answer."""
    return {
        "gradient_accumulation": plan.gradient_accumulation,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "optimizer_8bit": plan.optimizer_8bit,
        "no_foreach": plan.no_foreach,
    }


def _way(words: str) -> TrainingPlan:
    try:
        return parse_plan(words)
    except ValueError as fault:
        raise InvalidParameter(
            f"{fault}.",
            field="techniques",
            seen=words,
            expected="for example gradient_accumulation:4+gradient_checkpointing",
        ) from None
