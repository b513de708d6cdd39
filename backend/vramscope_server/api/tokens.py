"""Access tokens: list, create, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.server import CreatedToken, TokenRow
from vramscope_server.api.problems import NotFound
from vramscope_server.api.project_rights import require_scope
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import storing
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.list_row import seconds
from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.token_rows import Role, projects_of, token_row

router = APIRouter(tags=["tokens"])


Word = Annotated[str, Field(min_length=1, max_length=200)]


class NewToken(BaseModel):
    """A new token."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the token."""
    role: Role
    """`read` looks at everything. `write` also sends and changes runs. `admin` also deletes, and makes tokens."""
    projects: Annotated[list[Word], Field(min_length=1, max_length=64)] | None = None
    """Projects to which it is bound: it sees, changes and sends only their runs. By default those of the caller."""


@router.get("/tokens", summary="Access tokens", responses=answers_with(list[TokenRow]))
def get_tokens(request: Request) -> Response:
    """Without their secrets. A caller that is bound to projects sees those that are bound to no others."""
    services: Services = request.app.state.services
    scope = caller_of(request).scope
    return answer([token_row(token) for token in services.tokens.listed() if scope.covers(token.scope)])


@router.post("/tokens", summary="Create a token", status_code=201, responses=answers_with(CreatedToken, status=201))
def post_token(request: Request, wanted: NewToken) -> Response:
    """No other answer contains the secret."""
    services: Services = request.app.state.services
    caller = caller_of(request)
    scope = caller.scope if wanted.projects is None else ProjectScope.of(wanted.projects)
    require_scope(caller, scope)
    with storing("stored"):
        token, plain = services.tokens.make(wanted.name, wanted.role, scope, caller.actor)
    created = CreatedToken(
        id=token.id,
        name=token.name,
        role=token.role,
        projects=projects_of(token.scope),
        created_seconds=seconds(token.created_ns),
        token=plain,
    )
    return answer(created, 201)


@router.delete("/tokens/{token_id}", summary="Revoke a token", status_code=204, response_class=Response)
def delete_token(request: Request, token_id: str) -> Response:
    """At once, also for callers who signed in with it."""
    services: Services = request.app.state.services
    caller = caller_of(request)
    try:
        with storing("changed"):
            services.tokens.delete(token_id, caller.scope, caller.actor)
    except LookupError:
        raise NotFound(f"Token {token_id[:40]!r} not found.", field="token_id", seen=token_id[:40]) from None
    return Response(status_code=204)
