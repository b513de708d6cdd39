"""Sign-in of the page: the token goes into a cookie that scripts cannot read.

A proxy or an OpenID provider may have signed the user in.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.server import SessionFacts
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.caller import Caller
from vramscope_server.oidc import USER_COOKIE
from vramscope_server.request_checks import COOKIE, address_of, bearer_token, cookie_options, plain_token
from vramscope_server.services import Services
from vramscope_server.store.token_rows import Token, projects_of

router = APIRouter(tags=["session"])


_OPEN: Final = SessionFacts(
    required=False, authenticated=True, role="admin", projects=None, name=None, by=None, oidc=False
)
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
    if not bearer_token(request):
        address = address_of(request)
        named = services.proxy_users.caller(request, address)
        user = named or services.oidc.caller(request, address)
        if user is not None:
            return answer(_facts(services, user, "proxy" if named else "oidc"))
    plain = plain_token(request)
    return answer(_facts(services, services.tokens.find(plain) if plain else None, "token"))


@router.post("/session", summary="Sign in", responses=answers_with(SessionFacts))
def post_session(request: Request, body: SignIn) -> Response:
    """Sets a cookie that is HttpOnly and SameSite=Strict. A wrong token is 401, too many of them are 429."""
    services: Services = request.app.state.services
    if not services.settings.tokens_required:
        return answer(_OPEN)
    token = services.tokens.identify(address_of(request), body.token.strip())
    response = answer(_facts(services, token, "token"))
    response.set_cookie(COOKIE, body.token.strip(), **cookie_options(request.headers, request.url.scheme))
    return response


@router.delete("/session", summary="Sign out", status_code=204, response_class=Response)
def delete_session(request: Request) -> Response:
    """Removes the cookies. The session at an OpenID provider goes on."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    response.delete_cookie(USER_COOKIE, path="/")
    return response


def _facts(services: Services, access: Token | Caller | None, by: str) -> SessionFacts:
    oidc = services.oidc.is_on
    if access is None:
        return SessionFacts(required=True, authenticated=False, role=None, projects=None, name=None, by=None, oidc=oidc)
    return SessionFacts(
        required=True,
        authenticated=True,
        role=access.role,
        projects=projects_of(access.scope),
        name=access.name,
        by=by,
        oidc=oidc,
    )
