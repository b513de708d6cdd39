"""What-if jobs: a recording replayed under other allocator settings. A sweep takes seconds, and one runs at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.analysis.numba_compile import compiling
from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.versions import AllocatorVersion, profile_of
from vramscope_server.answers.whatif import SweepAnswer, SweepRow, WhatifJob
from vramscope_server.api.problems import BadRecording, Busy, InvalidParameter, NotFound
from vramscope_server.api.recording_request import open_recording, readable
from vramscope_server.api.recordings import require_recording
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact
from vramscope_server.store.whatif_questions import WhatifTask, find_question, keep_question
from vramscope_server.whatif_jobs import GivenUp, Job, Progress, TooMany

if TYPE_CHECKING:
    from vramscope_server.analysis.whatif.sweep import Row, Sweep

router = APIRouter(tags=["recordings"])

MAX_CONFS: Final = 32
_RETRY: Final = {"Retry-After": "5"}


class WhatifQuestion(BaseModel):
    """Settings to replay."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    confs: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(min_length=1, max_length=MAX_CONFS)] | None = (
        None
    )
    """Values of `PYTORCH_CUDA_ALLOC_CONF`; by default a set of usual ones."""
    device_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 50)] | None = None
    """Memory of the device in bytes; by default that of the recorded device."""


@router.post(
    "/recordings/{recording}/whatif",
    summary="Start a what-if",
    status_code=202,
    responses=answers_with(WhatifJob, text="The result is known.")
    | answers_with(WhatifJob, status=202, text="The job waits or runs."),
)
def post_whatif(request: Request, recording: str, question: WhatifQuestion | None = None) -> Response:
    """Replays a recording under other allocator settings. Settings that PyTorch refuses are 422."""
    services: Services = request.app.state.services
    question = question or WhatifQuestion()
    stored, opened = open_recording(request, recording)
    confs = question.confs
    with readable(stored):
        profile, _ = profile_of(opened.trace.torch)
        _ = opened.trace.beginning  # contradicting events are refused here, not in the job
    if confs is not None:
        confs = list(dict.fromkeys(conf.strip() for conf in confs))
        for position, conf in enumerate(confs):
            _check(conf, profile, position)

    job = _ask(services, WhatifTask(stored.id, confs, question.device_bytes))
    if services.is_shared:
        with services.database.changing() as connection:
            keep_question(connection, job.id, WhatifTask(stored.id, confs, question.device_bytes), time.time_ns())
    return answer(_job(request, job, stored.id), 200 if job.state == "done" else 202)


@router.get(
    "/recordings/{recording}/whatif/{job}",
    summary="State and result of a what-if",
    responses=answers_with(WhatifJob),
)
def get_whatif(request: Request, recording: str, job: str) -> Response:
    """Ask at least every 15 seconds, or the job is given up."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = require_recording(connection, recording)
    found = services.whatif_jobs.scan(job)
    if found is None and services.is_shared:  # another process may have it; the same question has the same answer
        with reader(request) as connection:
            task = find_question(connection, job)
        if task is not None and task.recording == stored.id:
            found = _ask(services, task)
    if found is None or found.question[0] != stored.id:
        raise NotFound(
            f"What-if {job[:40]!r} not found: it may have expired. Start it again.",
            field="job",
            seen=job[:40],
            expected="the job of an answer to POST /recordings/RECORDING/whatif",
            suggestions=[],
        )
    return answer(_job(request, found, recording))


def _ask(services: Services, task: WhatifTask, *, keep: bool = False) -> Job:
    def work(progress: Progress) -> Any:
        from vramscope_server.analysis.whatif.sweep import DEFAULT_SWEEP, sweep

        trace = services.recordings.open(task.recording).trace
        return sweep(trace, task.confs or DEFAULT_SWEEP, device_bytes=task.device_bytes, progress=progress)

    try:
        return services.whatif_jobs.ask([task.recording, task.confs, task.device_bytes], work, keep=keep)
    except TooMany:
        raise Busy("Too many what-ifs are waiting. Try again in a few seconds.", headers=_RETRY) from None


def _check(conf: str, profile: AllocatorVersion, position: int) -> None:
    try:
        settings = AllocatorSettings.parse(conf, profile)
    except BadSetting as refused:
        raise InvalidParameter(
            f"PyTorch refuses {conf!r}: {refused}",
            field=f"confs.{position}",
            seen=conf,
            expected="a value of PYTORCH_CUDA_ALLOC_CONF",
        ) from None
    if settings.backend != "native":
        raise InvalidParameter(
            f"{conf!r} cannot be replayed: backend:{settings.backend} is the driver's allocator, not PyTorch's.",
            field=f"confs.{position}",
            seen=conf,
            expected="settings of PyTorch's own allocator",
        )


def sweep_answer(made: Sweep) -> SweepAnswer:
    """A sweep as an answer; the recorded settings are the first row."""
    residual, recommendation = made.residual, made.recommendation
    return {
        "device_bytes": made.device_bytes,
        "outside_bytes": made.outside_bytes,
        "residual": {
            "peak_reserved_bytes": residual.peak_reserved_bytes,
            "end_reserved_bytes": residual.end_reserved_bytes,
            "first_different_event": residual.first_different_event,
            "events": residual.events,
            "words": residual.words,
            "exact": residual.exact,
        },
        "rows": [_sweep_row(row) for row in made.rows],
        "recommendation": {
            "conf": recommendation.conf,
            "words": recommendation.words,
            "variable": recommendation.variable,
        },
        "notes": made.notes,
    }


def _sweep_row(row: Row) -> SweepRow:
    prediction, risk = row.prediction, row.risk
    return {
        "conf": prediction.conf,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "uncapped_peak_reserved_bytes": prediction.uncapped_peak_reserved_bytes,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "retries": prediction.retries,
        "device_allocs": prediction.device_allocs,
        "out_of_memory": prediction.out_of_memory,
        "out_of_memory_at_event": prediction.out_of_memory_at_event,
        "certainty": prediction.certainty,
        "reasons": prediction.reasons,
        "band": prediction.band,
        "notes": prediction.notes,
        "smallest_card_bytes": row.smallest_device_bytes,
        "uncertainty_bytes": row.uncertainty_bytes,
        "is_bounded": row.is_bounded,
        "saved_bytes": row.saved_bytes,
        "risk": {"level": risk.level, "words": risk.words, "source": risk.source},
        "recorded": row.recorded,
    }


def recorded_sweep(
    request: Request, stored: StoredArtifact, opened: OpenRecording, wait_seconds: float
) -> tuple[Sweep | None, bool]:
    """The default sweep of a recording, whose recommendation all views of the recording share; None if it has none.

    The second value is true while the sweep is still waiting or running after ``wait_seconds``.
    """
    services: Services = request.app.state.services
    try:
        with readable(stored):
            _ = opened.trace.beginning
    except BadRecording:  # events that contradict each other cannot be replayed
        return None, False
    if opened.trace.backend != "native" or not len(opened.trace.events):
        return None, False
    try:
        job = _ask(services, WhatifTask(stored.id, None, None), keep=True)
    except Busy:
        return None, True
    settled = services.whatif_jobs.wait(job, wait_seconds)
    if not settled or job.given_up:
        return None, True
    return None if job.result is None else _in_view_of_run(request, job.result, stored.id), False


def _in_view_of_run(request: Request, made: Sweep, recording: str) -> Sweep:
    """The sweep in view of the whole run, which may have reserved more outside this window, on any rank."""
    with reader(request) as connection:
        stored = require_recording(connection, recording)
        most = require_run(connection, stored.run_id).peak_reserved_bytes if stored.run_id else None
    return made.in_view_of(most)


def _job(request: Request, job: Job, recording: str) -> WhatifJob:
    services: Services = request.app.state.services
    problem = None
    if job.error is not None:
        problem = str(job.error) if isinstance(job.error, ValueError | GivenUp) else "see the server's log"
    return WhatifJob(
        job=job.id,
        recording=recording,
        state=job.state,
        place=services.whatif_jobs.place(job),
        done=job.done,
        total=job.total,
        compiling=job.state == "running" and compiling(),
        seconds=job.seconds,
        result=None if job.result is None else sweep_answer(_in_view_of_run(request, job.result, recording)),
        problem=problem,
    )
