"""Sign-in of the page by OpenID Connect: to the provider, and back."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from vramscope_server.api.problems import Forbidden, NotFound
from vramscope_server.oidc import FLOW_COOKIE, FLOW_SECONDS, PATH, USER_COOKIE, USER_SECONDS, OidcSignIn, SignInFailed
from vramscope_server.request_checks import cookie_options
from vramscope_server.services import Services

REFUSAL_COOKIE: Final = "vramscope_sign_in_refusal"
"""Reason of a refusal, for the sign-in page. frontend/pages/sign_in.js reads it once."""
_REFUSAL_SECONDS: Final = 60

router = APIRouter(tags=["session"])


@router.get("/session/oidc", summary="Sign in by OpenID Connect", status_code=303, response_class=Response)
def get_oidc(request: Request) -> Response:
    """Redirects to the provider. 404 if the server has none."""
    sign_in = _sign_in(request)
    try:
        start = sign_in.begin(_callback(request))
    except SignInFailed as fault:
        return _refused(request, fault)
    response = Response(status_code=303, headers={"Location": start.url, "Cache-Control": "no-store"})
    secure = cookie_options(request.headers, request.url.scheme)["secure"]
    # The provider's page leads back here: a strict cookie would not come along.
    response.set_cookie(
        FLOW_COOKIE, start.cookie, max_age=FLOW_SECONDS, path=PATH, httponly=True, samesite="lax", secure=secure
    )
    return response


@router.get("/session/oidc/callback", summary="Answer of the OpenID provider", status_code=303, response_class=Response)
def get_oidc_callback(request: Request) -> Response:
    """Sets a cookie that is HttpOnly and SameSite=Strict, and redirects to the pages. A user without access is 403.

    A browser is redirected to the sign-in page instead of the 403, which shows the reason.
    """
    sign_in = _sign_in(request)
    try:
        user = sign_in.finish(request.query_params, request.cookies.get(FLOW_COOKIE))
    except SignInFailed as fault:
        return _refused(request, fault)
    response = Response(status_code=303, headers={"Location": "/", "Cache-Control": "no-store"})
    options = cookie_options(request.headers, request.url.scheme)
    options["max_age"] = USER_SECONDS
    response.set_cookie(USER_COOKIE, user.cookie, **options)
    response.delete_cookie(FLOW_COOKIE, path=PATH)
    return response


def _sign_in(request: Request) -> OidcSignIn:
    services: Services = request.app.state.services
    if not services.oidc.is_on:
        raise NotFound(
            "This server has no OpenID provider.",
            field="path",
            seen=PATH,
            expected="VRAMSCOPE_OIDC_ISSUER",
            suggestions=[],
        )
    return services.oidc


def _callback(request: Request) -> str:
    services: Services = request.app.state.services
    base = services.settings.public_url or str(request.base_url).rstrip("/")
    return f"{base}{PATH}/callback"


def _refused(request: Request, fault: SignInFailed) -> Response:
    """Show the reason on the sign-in page, or raise Forbidden if a program asks."""
    if "text/html" not in request.headers.get("accept", ""):
        raise Forbidden(str(fault), field="sign-in") from None
    response = Response(status_code=303, headers={"Location": "/sign-in", "Cache-Control": "no-store"})
    # The reason is not in the address: anybody could write a link with words of their own.
    secure = cookie_options(request.headers, request.url.scheme)["secure"]
    response.set_cookie(
        REFUSAL_COOKIE, quote(str(fault)), max_age=_REFUSAL_SECONDS, path="/sign-in", samesite="strict", secure=secure
    )
    return response
