"""Refusals as ``application/problem+json``: one class a reason. Each names the field, its value and what would be valid.

The ``type`` of each (``urn:vramscope:problem:<slug>``) is stable and listed in docs/wire.md.
"""

from __future__ import annotations

import http
import logging
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from typing_extensions import NotRequired, TypedDict

from vramscope.protocol import messages
from vramscope_server.store.storage_errors import storage_trouble

log = logging.getLogger("vramscope_server")

_MOST_TOLD = 200
"""Maximum characters of a value in an answer: a sender of a megabyte does not get it back."""


class ProblemAnswer(TypedDict):
    """A refusal (RFC 9457)."""

    type: str
    """`urn:vramscope:problem:` and a stable word, as docs/wire.md lists them."""
    title: str
    """Kind of the problem in words."""
    status: int
    """HTTP status."""
    detail: str
    """Explanation."""
    field: NotRequired[str]
    """Parameter or field of the body that was refused."""
    seen: NotRequired[Any]
    """Its value, at most 200 characters."""
    expected: NotRequired[str]
    """Description of a valid value."""
    suggestions: NotRequired[list[str]]
    """Names or identifiers that are similar."""
    id: NotRequired[str]
    """Number of the entry in the server's log; of a fault of the server."""


class Problem(Exception):
    """A refusal. ``extra`` is added to the answer."""

    status: ClassVar[int] = 400
    slug: ClassVar[str] = "bad-request"
    title: ClassVar[str] = "Bad request"

    def __init__(self, detail: str, *, headers: dict[str, str] | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = headers or {}
        self.extra = extra

    def response(self) -> Response:
        """The answer."""
        body = {
            "type": f"urn:vramscope:problem:{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
        }
        return Response(_encoded(body), self.status, headers=self.headers, media_type="application/problem+json")


def _encoded(body: Mapping[str, object]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # the value contains half a character, which JSON can express and UTF-8 cannot
        whole = {k: v.encode(errors="replace").decode() if isinstance(v, str) else v for k, v in body.items()}
        return msgspec.json.encode(whole)


class InvalidBatch(Problem):
    """A field of a batch is invalid; nothing of the batch was stored."""

    status, slug, title = 422, "invalid-batch", "Invalid field in the batch"


class NotMessagePackProblem(Problem):
    """The body of a batch is not MessagePack, or is cut short."""

    status, slug, title = 400, "not-messagepack", "The body is not a batch"


class DamagedBody(Problem):
    """A body that is not the one that was sent: a proxy cut or changed it."""

    status, slug, title = 400, "damaged", "The body was changed on its way"


class WireVersion(Problem):
    """Sender and server speak different versions of the wire contract."""

    status, slug, title = 409, "wire-version", "Agent and server speak different versions"

    def __init__(self, seen: object) -> None:
        super().__init__(
            f"The agent speaks wire version {seen}, this server speaks {messages.WIRE_VERSION}: "
            "update the older one. Nothing was stored.",
            field="wire",
            seen=seen,
            expected=str(messages.WIRE_VERSION),
        )


class UnknownSessionProblem(Problem):
    """A batch of an unknown session: the agent sends it again, starting with Attached."""

    status, slug, title = 409, "unknown-session", "Unknown session"


class TooLarge(Problem):
    """A body above the limit."""

    status, slug, title = 413, "too-large", "The body is too large"


def too_large(what: str, seen: str, most_bytes: int) -> TooLarge:
    """The refusal of a body above the limit: ``what`` is a batch, a file, or the body."""
    return TooLarge(
        f"The {what} has {seen}; the maximum is {most_bytes}.",
        field="body",
        seen=seen,
        expected=f"at most {most_bytes} bytes",
        # The rest of the body is not read: the connection cannot be used again.
        headers={"Connection": "close"},
    )


class Slow(Problem):
    """A body that does not arrive in time."""

    status, slug, title = 408, "slow", "The body did not arrive in time"


class UnsupportedType(Problem):
    """A batch that is not MessagePack."""

    status, slug, title = 415, "content-type", "Unsupported content type"


class Busy(Problem):
    """Too much waits to be stored; retry later."""

    status, slug, title = 503, "busy", "The server is busy"


class Storage(Problem):
    """The storage accepts nothing at the moment: a full or read-only disk, a database that does not answer."""

    status, slug, title = 503, "storage", "Nothing can be stored at the moment"


class NotFound(Problem):
    """Unknown run, figure, page or token. ``suggestions`` are similar ones."""

    status, slug, title = 404, "not-found", "Not found"


class InvalidParameter(Problem):
    """A parameter or a field of a JSON body is invalid."""

    status, slug, title = 422, "invalid-parameter", "Invalid parameter"


class BadRecording(Problem):
    """A recording whose bytes are invalid: damaged, or not made by the agent."""

    status, slug, title = 422, "bad-recording", "The recording cannot be read"


class Conflict(Problem):
    """Not possible now: deleting a live run, for example."""

    status, slug, title = 409, "conflict", "Not possible now"


class Unauthorized(Problem):
    """No token, or an unknown one."""

    status, slug, title = 401, "unauthorized", "Token required"


class Forbidden(Problem):
    """A token without the scope, or a request from a page of another site."""

    status, slug, title = 403, "forbidden", "Not allowed"


class OtherProjectProblem(Problem):
    """A project that the token is not bound to."""

    status, slug, title = 403, "project", "Not a project of the token"


class TooManyFailures(Problem):
    """Too many wrong tokens from one address."""

    status, slug, title = 429, "too-many-failures", "Too many wrong tokens"


class MisdirectedHost(Problem):
    """The Host header names another machine, as in DNS rebinding."""

    status, slug, title = 421, "host", "Unknown host name"


def install(app: FastAPI) -> None:
    """Answer every refusal, FastAPI's own included, with a problem."""

    @app.exception_handler(Problem)
    async def refuse(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        field = ".".join(path[1:])[:_MOST_TOLD] or "body"
        seen = first.get("input")
        seen = seen if isinstance(seen, str | int | float | bool | None) else type(seen).__name__
        seen = seen[:_MOST_TOLD] if isinstance(seen, str) else seen
        return InvalidParameter(f"{field}: {first['msg']}.", field=field, seen=seen, expected=first["msg"]).response()

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        problem = Problem(str(error.detail), headers=dict(error.headers or {}))
        phrase = http.HTTPStatus(error.status_code).phrase
        slug = "not-found" if error.status_code == 404 else phrase.lower().replace(" ", "-")
        vars(problem).update(status=error.status_code, title=phrase, slug=slug)
        return problem.response()

    @app.exception_handler(DBAPIError)
    async def storage(_: Request, error: DBAPIError) -> Response:
        log.warning("the database cannot be read: %s", error)
        why = storage_trouble(error) or "see the server's log"
        return Storage(f"The database cannot be read: {why}.", headers={"Retry-After": "5"}).response()


def fault(method: str, path: str, error: Exception) -> Response:
    """Answer to a fault of the server. Its text may be confidential: it stays in the log, under a number."""
    number = secrets.token_hex(4)
    log.error("fault %s in %s %s", number, method, path, exc_info=error)
    problem = Problem(f"Internal error {number}; see the server's log.", id=number)
    vars(problem).update(status=500, title="Internal error", slug="fault")
    return problem.response()
