"""Route that explains the text of an out-of-memory error of a training that no agent watched."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.message_kinds import KINDS
from vramscope.oom_diagnosis.parse_message import parse_parts
from vramscope_server.analysis.oom.error_text import numbers_of
from vramscope_server.answers.oom import OomTextExplained
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with

router = APIRouter(tags=["out of memory"])

MOST_CHARACTERS: Final = 200_000


class ErrorText(BaseModel):
    """A text to explain."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    """The error, or the end of a log that has it. Of several errors the last counts. It is not stored."""


@router.post("/oom/text", summary="Explain the text of an error", responses=answers_with(OomTextExplained))
def post_text(pasted: ErrorText) -> Response:
    """As ``vramscope oom --message`` does. ``sentence`` is null if the text has no known out-of-memory error."""
    message = parse_parts([pasted.text])
    found = diagnose(facts_of_message(message)) if message.is_known else None
    numbers = [] if found is None else numbers_of(message, found)
    return answer(
        OomTextExplained(
            cause=None if found is None else found.kind.value or None,
            sentence=None if found is None else found.sentence,
            first_aid=None if found is None else found.first_aid or None,
            certain=message.certain,
            errors=message.errors,
            numbers=[{"name": name, "bytes": value} for name, value in numbers],
            kind=KINDS[message.kind],
            wording=message.wording or None,
        )
    )
