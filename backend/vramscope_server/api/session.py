"""Sign-in of the page: the token goes into a cookie that scripts cannot read. A proxy may have signed the user in."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.server import SessionFacts
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.request_checks import COOKIE, address_of, bearer_token, cookie_options, plain_token
from vramscope_server.services import Services
from vramscope_server.store.token_rows import Token, projects_of

router = APIRouter(tags=["session"])


_OPEN: Final = SessionFacts(required=False, authenticated=True, role="admin", projects=None, name=None, by=None)
"""Access to a server that requires no tokens."""


class SignIn(BaseModel):
    """Sign-in with a token."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    token: Annotated[str, Field(min_length=1, max_length=500)]
    """Access token."""


@router.get("/session", summary="Access of the caller", responses=answers_with(SessionFacts))
def get_session(request: Request) -> Response:
    """Requires no token."""
    services: Services = request.app.state.services
    if not services.settings.tokens_required:
        return answer(_OPEN)
    user = None if bearer_token(request) else services.proxy_users.caller(request, address_of(request))
    if user is not None:
        return answer(
            SessionFacts(required=True, authenticated=True, role=user.role, projects=None, name=user.name, by="proxy")
        )
    plain = plain_token(request)
    return answer(_facts(services.tokens.find(plain) if plain else None))


@router.post("/session", summary="Sign in", responses=answers_with(SessionFacts))
def post_session(request: Request, body: SignIn) -> Response:
    """Sets a cookie that is HttpOnly and SameSite=Strict. A wrong token is 401, too many of them are 429."""
    services: Services = request.app.state.services
    if not services.settings.tokens_required:
        return answer(_OPEN)
    token = services.tokens.identify(address_of(request), body.token.strip())
    response = answer(_facts(token))
    response.set_cookie(COOKIE, body.token.strip(), **cookie_options(request.headers, request.url.scheme))
    return response


@router.delete("/session", summary="Sign out", status_code=204, response_class=Response)
def delete_session(request: Request) -> Response:
    """Removes the cookie."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


def _facts(token: Token | None) -> SessionFacts:
    if token is None:
        return SessionFacts(required=True, authenticated=False, role=None, projects=None, name=None, by=None)
    return SessionFacts(
        required=True,
        authenticated=True,
        role=token.role,
        projects=projects_of(token.scope),
        name=token.name,
        by="token",
    )
