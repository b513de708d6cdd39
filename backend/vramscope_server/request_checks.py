"""Access control: the checks on every request before it reaches the API.

On loopback there are no tokens. Then a web page of another site must not reach the server through the user's browser: the
Host header must name this machine (against DNS rebinding), and unsafe methods must come from the server's own pages.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypedDict

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vramscope_server.api.problems import Forbidden, MisdirectedHost, Problem, Unauthorized, fault, too_large
from vramscope_server.caller import CALLER, Caller, anybody, nobody
from vramscope_server.intake import READ_SECONDS, too_slow
from vramscope_server.store.project_scope import ALL_PROJECTS
from vramscope_server.store.token_rows import TOKEN_PREFIX, Role

if TYPE_CHECKING:
    from vramscope_server.services import Services

COOKIE: Final = "vramscope_token"
MAX_BODY_BYTES: Final = 1 << 20
"""Maximum size of a JSON body; batches and snapshots have limits of their own."""
MAX_PUBLIC_BYTES: Final = 4096
"""Maximum size of the body of a call that needs no token, where the others do."""
_LARGE: Final = ("/api/v1/batches", "/api/v1/snapshots")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_WITHOUT_TOKEN: Final = ("/api/v1/health", "/api/v1/session", "/api/v1/session/oidc", "/api/v1/session/oidc/callback")
_AUDIT: Final = "/api/v1/audit"
_DEMO: Final = "/api/v1/demo"
_OF_THE_SERVER: Final = ("/api/v1/alerts", "/api/v1/notifications")
"""Paths of settings that all projects share."""
_QUESTION: Final = re.compile(r"/api/v1/recordings/[^/]+/whatif|/api/v1/oom/text")
"""A POST that changes nothing: it starts a computation, or its body is too long for an address."""

CSP: Final = (
    "default-src 'self'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Plotly.js sets styles inline. Scripts come from this server only, or have a hash (the import map)."""
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_POLICY: Final = [(b"content-security-policy", CSP.format(scripts="").encode())]


class Access:
    """ASGI middleware: checks the request, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        settings = services.settings
        self._demanded = settings.tokens_required
        self._hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]"), *settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises nothing: a refusal is answered here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # of monitors and proxies: uvicorn sends the head of the same answer alone
            scope = {**scope, "method": "GET"}

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                policy = () if any(name == b"content-security-policy" for name, _ in message["headers"]) else _POLICY
                message["headers"] = [*message["headers"], *_HEADERS, *policy]
            await send(message)

        request = Request(scope)
        try:
            self._check_origin(request)
            request.scope[CALLER] = self._caller(request)
            if request.method not in _SAFE and path_of(request) not in _LARGE:
                is_public = self._demanded and role_needed(request.method, path_of(request)) is None
                receive = await _bounded(request, receive, MAX_PUBLIC_BYTES if is_public else MAX_BODY_BYTES)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:  # the outermost handler: any fault becomes a problem response
            if has_begun:
                raise
            await fault(request.method, path_of(request), error)(scope, receive, send_with_headers)

    def _check_origin(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not self._demanded and _name(host) not in self._hosts:
            raise MisdirectedHost(
                "Without tokens this server answers only under its own names. To add this name, set VRAMSCOPE_ALLOWED_HOSTS.",
                field="Host",
                seen=host[:200],
                expected=", ".join(sorted(self._hosts)),
            )
        if request.method in _SAFE:
            return
        origin = request.headers.get("origin")
        if origin is not None and _place(origin) != host:
            raise Forbidden(
                "A page of another site may not change anything here. (A proxy must pass on the header Host with its port.)",
                field="Origin",
                seen=origin[:200],
                expected=host,
            )

    def _caller(self, request: Request) -> Caller:
        """Raises Unauthorized, TooManyFailures, Forbidden."""
        address = address_of(request)
        needed = role_needed(request.method, path_of(request))
        if not self._demanded:
            return anybody(address)
        if needed is None:
            return nobody(address)
        caller = self._user(request, address) or self._holder(request, address)
        if not caller.allows(needed):
            raise Forbidden(
                f"{caller.words} has the role {caller.role}; this needs the role {needed}.",
                seen=caller.role,
                expected=needed,
            )
        if caller.scope.names is not None and concerns_all_projects(request.method, path_of(request)):
            raise Forbidden(
                f"{caller.words} is bound to projects; this concerns all of them.",
                field="projects",
                seen=caller.scope.words,
                expected=ALL_PROJECTS.words,
            )
        return caller

    def _user(self, request: Request, address: str) -> Caller | None:
        """The user whom the proxy names, or who signed in at the provider. A token of ours in the header Authorization counts
        more: trainings send one. Other bearer tokens are the proxy's own."""
        if (bearer_token(request) or "").startswith(TOKEN_PREFIX):
            return None
        named = self._services.proxy_users.caller(request, address)
        return named or self._services.oidc.caller(request, address)

    def _holder(self, request: Request, address: str) -> Caller:
        """The caller by its token. Raises Unauthorized, TooManyFailures."""
        plain = plain_token(request)
        if plain is None:
            raise Unauthorized(
                "Send Authorization: Bearer TOKEN (VRAMSCOPE_TOKEN for agents), or sign in on the page.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        token = self._services.tokens.identify(address, plain)
        return Caller(token.name, token.role, token.scope, token.id, address)


async def _bounded(request: Request, receive: Receive, most_bytes: int) -> Receive:
    """Read the body here: the later layers would accept any size, even from a caller without a token.

    Raises TooLarge or Slow.
    """
    announced = request.headers.get("content-length", "")
    if len(announced) > 18 or (announced.isascii() and announced.isdigit() and int(announced) > most_bytes):
        raise too_large("body", f"{announced[:18]} bytes", most_bytes)
    body = bytearray()
    left: Message | None = None
    with anyio.move_on_after(READ_SECONDS):
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                left = message
                break
            body += message.get("body", b"")
            if len(body) > most_bytes:
                raise too_large("body", f"more than {most_bytes} bytes", most_bytes)
            more = message.get("more_body", False)
        else:
            left = {"type": "http.request", "body": bytes(body), "more_body": False}
    if left is None:
        raise too_slow(f"{len(body)} bytes")

    async def again() -> Message:
        nonlocal left
        if left is None:
            return await receive()
        message, left = left, None
        return message

    return again


def _place(origin: str) -> str | None:
    try:
        return urllib.parse.urlsplit(origin).netloc
    except ValueError:  # an incomplete IPv6 address, for example
        return None


def address_of(request: Request) -> str:
    """Address that a request comes from."""
    return request.client.host if request.client else "?"


def path_of(request: Request) -> str:
    """Path by which the request is routed.

    ``request.url`` would not do. Older versions of Starlette make it of the header Host: `Host: x/api/v1/health?` made
    every path one that needs no token.
    """
    return str(request.scope["path"])


def bearer_token(request: Request) -> str | None:
    """Token of a request in its header Authorization."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() or None if kind.lower() == "bearer" else None


def plain_token(request: Request) -> str | None:
    """Token of a request, from its header or cookie."""
    return bearer_token(request) or request.cookies.get(COOKIE) or None


def role_needed(method: str, path: str) -> Role | None:
    """Role that a request needs; None if it needs no token."""
    if path == "/metrics":
        return "read"
    if not path.startswith("/api/v1/") or path in _WITHOUT_TOKEN:
        return None
    if method == "DELETE" or path.startswith(("/api/v1/tokens", _AUDIT)):
        return "admin"
    if path == _DEMO and method not in _SAFE:  # it starts a process on the server's machine
        return "admin"
    if method in _SAFE or (method == "POST" and _QUESTION.fullmatch(path)):
        return "read"
    return "write"


def concerns_all_projects(method: str, path: str) -> bool:
    """Whether a request concerns the server as a whole: a token that is bound to projects is refused."""
    return path.startswith(_AUDIT) or (method not in _SAFE and path.startswith(_OF_THE_SERVER))


def _name(host: str) -> str:
    """Host without port; IPv6 without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


class CookieOptions(TypedDict):
    """Attributes of a cookie, as Response.set_cookie takes them."""

    httponly: bool
    samesite: Literal["strict"]
    path: str
    max_age: int
    secure: bool


def cookie_options(headers: Mapping[str, str], scheme: str) -> CookieOptions:
    """Attributes of the sign-in cookie: not readable by scripts, not sent to other sites, encrypted over HTTPS."""
    secure = scheme == "https" or headers.get("x-forwarded-proto") == "https"
    return {"httponly": True, "samesite": "strict", "path": "/", "max_age": 30 * 86_400, "secure": secure}
