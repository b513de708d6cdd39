"""Tokens: listed without their secret, made (shown once), revoked."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.server import CreatedToken, TokenRow
from vramscope_server.api.problems import NotFound
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import storing
from vramscope_server.services import House
from vramscope_server.store.rows import seconds

router = APIRouter(tags=["tokens"])


class NewToken(BaseModel):
    """What a token is for."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    scopes: Annotated[list[Literal["ingest", "read"]], Field(min_length=1, max_length=2)]


@router.get("/tokens", summary="All tokens, without their secrets", responses=answers_with(list[TokenRow]))
def get_tokens(request: Request) -> Response:
    """``[{id, name, scopes, created_seconds, last_used_seconds}]``."""
    house: House = request.app.state.house
    return answer(house.tokens.listed())


@router.post("/tokens", summary="Make a token", status_code=201, responses=answers_with(CreatedToken, status=201))
def post_token(request: Request, wanted: NewToken) -> Response:
    """The answer holds the plain token, this once."""
    house: House = request.app.state.house
    with storing("stored"):
        token, plain = house.tokens.make(wanted.name, sorted(set(wanted.scopes)))
    told = {"id": token.id, "name": token.name, "scopes": list(token.scopes)}
    return answer({**told, "created_seconds": seconds(token.created_ns), "token": plain}, 201)


@router.delete("/tokens/{token_id}", summary="Revoke a token", status_code=204, response_class=Response)
def delete_token(request: Request, token_id: str) -> Response:
    """At once, sign-ins with it included."""
    house: House = request.app.state.house
    try:
        with storing("changed"):
            house.tokens.delete(token_id)
    except LookupError:
        raise NotFound(f"There is no token {token_id[:40]!r}.", field="token_id", seen=token_id[:40]) from None
    return Response(status_code=204)
