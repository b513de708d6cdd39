"""What if: a recording replayed under other allocator settings. A job, because a sweep takes seconds and one runs at a time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope.oom_diagnosis.demand import FRAGMENTATION_MARGIN
from vramscope_server.analysis.numba_compile import compiling
from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting
from vramscope_server.analysis.simulator.versions import AllocatorVersion, profile_of
from vramscope_server.analysis.units import amount
from vramscope_server.answers.whatif import WhatifJob
from vramscope_server.api.dependencies import open_recording, readable
from vramscope_server.api.problems import Busy, InvalidParameter, NotFound
from vramscope_server.api.recordings import the_recording
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader, the_run
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import House
from vramscope_server.whatif_jobs import GivenUp, Job, Progress, TooMany

if TYPE_CHECKING:
    from vramscope_server.analysis.whatif.sweep import Sweep

router = APIRouter(tags=["recordings"])

MAX_CONFS: Final = 32
_RETRY: Final = {"Retry-After": "5"}


class Question(BaseModel):
    """What to replay."""

    model_config = ConfigDict(extra="forbid")

    confs: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(min_length=1, max_length=MAX_CONFS)] | None = (
        None
    )
    """values of PYTORCH_CUDA_ALLOC_CONF; none given: the default sweep"""
    device_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 50)] | None = None
    """of the whole card; none given: the card it was recorded on"""


@router.post(
    "/recordings/{recording}/whatif",
    summary="Replay under other settings",
    status_code=202,
    responses=answers_with(WhatifJob, text="The result is known.")
    | answers_with(WhatifJob, status=202, text="The job waits or runs."),
)
def post_whatif(request: Request, recording: str, question: Question | None = None) -> Response:
    """202 with the job, 200 where its result is known. Ask for the job again, or it is given up after 15 seconds."""
    house: House = request.app.state.house
    question = question or Question()
    stored, opened = open_recording(request, recording)
    confs = question.confs
    with readable(stored):
        profile, _ = profile_of(opened.trace.torch)
        _ = opened.trace.beginning  # (events that contradict each other are told here, and not in the job)
    if confs is not None:
        confs = list(dict.fromkeys(conf.strip() for conf in confs))
        for position, conf in enumerate(confs):
            _check(conf, profile, position)

    def work(progress: Progress) -> Any:
        from vramscope_server.analysis.whatif.sweep import DEFAULT_SWEEP, sweep

        trace = house.shelf.open(stored.id).trace
        return sweep(trace, confs or DEFAULT_SWEEP, device_bytes=question.device_bytes, progress=progress)

    try:
        job = house.sweeps.ask([stored.id, confs, question.device_bytes], work)
    except TooMany:
        raise Busy("Too many what-ifs wait already; come again in a few seconds.", headers=_RETRY) from None
    return answer(_told(house, job, stored.id), 200 if job.state == "done" else 202)


@router.get(
    "/recordings/{recording}/whatif/{job}",
    summary="How far a what-if is, and its result",
    responses=answers_with(WhatifJob),
)
def get_whatif(request: Request, recording: str, job: str) -> Response:
    """``{job, state: waiting|running|done|failed, place, done, total, compiling, result, problem}``."""
    house: House = request.app.state.house
    found = house.sweeps.scan(job)
    if found is None:
        raise NotFound(
            f"There is no what-if {job[:40]!r} (any more): ask for it again.",
            field="job",
            seen=job[:40],
            expected="the job of an answer to POST /recordings/RECORDING/whatif",
            suggestions=[],
        )
    return answer(_told(house, found, recording))


def _check(conf: str, profile: AllocatorVersion, position: int) -> None:
    try:
        settings = AllocatorSettings.parse(conf, profile)
    except BadSetting as refused:
        raise InvalidParameter(
            f"PyTorch would refuse {conf!r}: {refused}",
            field=f"confs.{position}",
            seen=conf,
            expected="a value of PYTORCH_CUDA_ALLOC_CONF",
        ) from None
    if settings.backend != "native":
        raise InvalidParameter(
            f"{conf!r} cannot be replayed: backend:{settings.backend} is the driver's allocator, and none of PyTorch's.",
            field=f"confs.{position}",
            seen=conf,
            expected="settings of PyTorch's own allocator",
        )


def sweep_answer(made: Sweep, *more_notes: str) -> dict[str, Any]:
    """A sweep as the API shows it (docs/http.md); the recorded settings are the first row."""
    return {
        "device_bytes": made.device_bytes,
        "outside_bytes": made.outside_bytes,
        "residual": dataclasses.asdict(made.residual) | {"exact": made.residual.exact},
        "rows": [
            dataclasses.asdict(row.prediction)
            | {
                "smallest_card_bytes": row.smallest_card_bytes,
                "uncertainty_bytes": row.uncertainty_bytes,
                "is_bounded": row.is_bounded,
                "saved_bytes": row.saved_bytes,
                "risk": dataclasses.asdict(row.risk),
                "recorded": row.recorded,
            }
            for row in made.rows
        ],
        "recommendation": dataclasses.asdict(made.recommendation),
        "notes": [*made.notes, *filter(None, more_notes)],
    }


def _beyond(house: House, made: Sweep, recording: str) -> str:
    """Whether the run reserved more outside of this window, on whatever rank: what a setting does there is not in these figures."""
    with reader(house) as connection:
        stored = the_recording(connection, recording)
        most = the_run(connection, stored.run_id)["peak_reserved_bytes"] if stored.run_id else None
    here = made.rows[0].prediction.peak_reserved_bytes
    if most is None or most <= (1 + FRAGMENTATION_MARGIN) * here:
        return ""
    return (
        f"At other times, or on another rank, the run has reserved up to {amount(most)}, {amount(most - here)} more than in "
        "this window: what these settings would do there is not in the figures."
    )


def _told(house: House, job: Job, recording: str) -> dict[str, Any]:
    problem = None
    if job.error is not None:
        problem = str(job.error) if isinstance(job.error, ValueError | GivenUp) else "the server's log says why"
    return {
        "job": job.id,
        "recording": recording,
        "state": job.state,
        "place": house.sweeps.place(job),
        "done": job.done,
        "total": job.total,
        "compiling": job.state == "running" and compiling(),
        "seconds": job.seconds,
        "result": None if job.result is None else sweep_answer(job.result, _beyond(house, job.result, recording)),
        "problem": problem,
    }
