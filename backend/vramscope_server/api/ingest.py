"""``POST /batches``: the entry of all data."""

from __future__ import annotations

import asyncio
import time

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from vramscope.protocol import messages
from vramscope.protocol.content_digest import HEADER, content_digest, is_damaged
from vramscope_server.api.problems import (
    Busy,
    DamagedBody,
    Forbidden,
    InvalidBatch,
    NotMessagePackProblem,
    OtherProjectProblem,
    Problem,
    Storage,
    UnknownSessionProblem,
    UnsupportedType,
    WireVersion,
    too_large,
)
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.batch_errors import (
    BadBatch,
    NotMessagePack,
    OtherProject,
    OtherToken,
    OtherWire,
    UnknownSession,
)
from vramscope_server.store.validation import ReadyBatch, Sender, prepare
from vramscope_server.store.writer import QueueFull, StorageTrouble, WriterClosed

router = APIRouter(tags=["ingest"])

_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack", "application/octet-stream")
_RETRY = {"Retry-After": "2"}
PATH = "/api/v1/batches"
_INLINE_BYTES = 64 * 1024
"""Bodies up to this size, about 400 rows, are prepared at once: 0.4 ms at most. Another thread would cost more while both
cores are busy."""


@router.post(
    "/batches",
    summary="Store a batch",
    response_class=Response,
    responses={200: {"content": {messages.CONTENT_TYPE: {}}, "description": "An Ack in MessagePack, after the commit"}},
    openapi_extra={"requestBody": {"required": True, "content": {messages.CONTENT_TYPE: {}}}},
)
async def post_batch(request: Request) -> Response:
    """The body is a Batch (docs/wire.md). A batch that is sent twice is stored once. Nothing of a refused batch is stored."""
    return await take(request.app.state.services, request)


class BatchIntake:
    """ASGI middleware: handles batches before FastAPI's routing, because they are most of the requests.

    Measured on 2 cores with batches of 256 samples: 0.34 ms of the loop each, 0.43 through the route above, which remains
    for its description.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST of a batch; pass all else on."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await take(self._services, Request(scope, receive))
        except Problem as problem:
            response = problem.response()
        except ClientDisconnect:  # the training was killed while it sent
            return
        await response(scope, receive, send)


async def take(services: Services, request: Request) -> Response:
    """Read, check and store a batch; returns the Ack. Raises Problem."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _TYPES or "content-encoding" in request.headers:
        seen = kind or "no Content-Type"
        raise UnsupportedType(
            f"A batch must be {messages.CONTENT_TYPE} without Content-Encoding.",
            field="Content-Type",
            seen=seen if kind not in _TYPES else request.headers["content-encoding"],
            expected=messages.CONTENT_TYPE,
        )
    if services.writer.trouble is not None and not services.writer.may_try():
        raise Storage(f"Nothing was stored: {services.writer.trouble}.", headers=_RETRY)
    announced = _announced_length(request)
    sender = _sender(request)
    try:
        with services.intake.place() as received:
            body = await services.intake.read(received, announced, request.stream())
            if is_damaged(body, request.headers.get(HEADER)):
                raise DamagedBody(
                    f"The {len(body)} bytes that arrived are not those that were sent: look at the proxies between.",
                    field=HEADER,
                    seen=content_digest(body),
                    expected=request.headers[HEADER][:200],
                )
            if len(body) <= _INLINE_BYTES:
                ready = prepare(body, time.time_ns(), sender)
            else:
                loop = asyncio.get_running_loop()
                ready = await loop.run_in_executor(services.preparers, prepare, body, time.time_ns(), sender)
            del body
            ack = await _store(services, ready)
    except BadBatch as bad:
        raise _problem(bad) from None
    if every_ms := services.send_interval.after_post(ready.batch.session):
        ack = msgspec.structs.replace(ack, send_every_ms=every_ms)
    return Response(messages.encode(ack), media_type=messages.CONTENT_TYPE)


async def _store(services: Services, ready: ReadyBatch) -> messages.Ack:
    try:
        return await asyncio.wrap_future(services.writer.submit(ready))
    except QueueFull:
        raise Busy("Too many batches wait to be stored. Retry in a second.", headers={"Retry-After": "1"}) from None
    except StorageTrouble as trouble:
        raise Storage(f"Nothing was stored: {trouble}.", headers=_RETRY) from None
    except WriterClosed:
        raise Busy("The server is shutting down.", headers={"Retry-After": "5"}) from None


def _sender(request: Request) -> Sender:
    caller = caller_of(request)
    return Sender(caller.token, caller.allows("admin"), caller.scope, caller.actor)


def _announced_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    length = int(text) if text.isdigit() else 0
    if length > messages.MAX_BATCH_BYTES:
        raise too_large("batch", f"{length} bytes", messages.MAX_BATCH_BYTES)
    return length


def _problem(bad: BadBatch) -> Problem:
    if isinstance(bad, OtherWire):
        return WireVersion(bad.seen)
    if isinstance(bad, OtherToken):
        return Forbidden(
            "Only the token that began a session, or one with the role admin, can end it. Nothing was stored.",
            field=bad.field,
            seen=bad.seen,
            expected=bad.expected,
        )
    if isinstance(bad, OtherProject):
        return OtherProjectProblem(
            f"The project is {bad.seen}; the token may send runs of {bad.expected} (VRAMSCOPE_PROJECT). Nothing was stored.",
            field=bad.field,
            seen=bad.seen,
            expected=bad.expected,
        )
    kind: type[Problem] = InvalidBatch
    if isinstance(bad, NotMessagePack):
        kind = NotMessagePackProblem
    elif isinstance(bad, UnknownSession):
        kind = UnknownSessionProblem
    seen = bad.seen if isinstance(bad.seen, str | int | float) else str(bad.seen)
    return kind(
        f"{bad.field} is {seen}; expected: {bad.expected}. Nothing was stored.",
        field=bad.field,
        seen=seen,
        expected=bad.expected,
    )
