"""The demo of the server: its state, and its start."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Request, Response

from vramscope_server.answers.server import DemoAnswer
from vramscope_server.api.problems import Conflict, Forbidden
from vramscope_server.api.project_rights import require_project
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import storing
from vramscope_server.caller import caller_of
from vramscope_server.demo_run import PROJECT, DemoRunning, has_pytorch
from vramscope_server.services import Services
from vramscope_server.settings import is_loopback
from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.run_queries import UnknownRun, find_run
from vramscope_server.store.writer import QueueFull, StorageTrouble, WriterClosed

router = APIRouter(tags=["server"])
log = logging.getLogger("vramscope_server")

_NO_PYTORCH: Final = "The demo needs PyTorch in the server's environment: pip install torch"
_NOT_ALLOWED: Final = "Only the server's own machine, or the role admin, may start the demo."
_SEVERAL: Final = "A server of several processes has no demo. Run vramscope demo in a terminal."
_TOKEN_NAME: Final = "demo on the server"


@router.get("/demo", summary="State of the demo", responses=answers_with(DemoAnswer))
def get_demo(request: Request) -> Response:
    """The newest demo since the server started, and whether the caller can start one."""
    return answer(_answer(request))


@router.post("/demo", summary="Start the demo", status_code=202, responses=answers_with(DemoAnswer, status=202))
def post_demo(request: Request) -> Response:
    """Trains a small model on the server's machine, on the CPU or an emulated GPU. 409 while one is running, or without
    PyTorch there."""
    services: Services = request.app.state.services
    if not _may_start(request):
        raise Forbidden(_NOT_ALLOWED, expected="admin")
    if services.settings.workers > 1:
        raise Conflict(_SEVERAL)
    if not has_pytorch():
        raise Conflict(_NO_PYTORCH)
    require_project(caller_of(request), PROJECT)
    address = _own_address(request)
    token, forget = _token(request)
    try:
        services.demo.start(address, token, forget)
    except DemoRunning:
        forget()
        raise Conflict("The demo is already running.") from None
    except RuntimeError:  # the system starts no more threads
        forget()
        raise
    return answer(_answer(request), 202)


def _answer(request: Request) -> DemoAnswer:
    services: Services = request.app.state.services
    status = services.demo.status
    step = None
    if status.run_id is not None:
        with contextlib.suppress(UnknownRun), reader(request) as connection:
            step = find_run(connection, status.run_id, suggest=False).steps
    return DemoAnswer(
        state=status.state.value,
        device=status.device and status.device.value,
        run_id=status.run_id,
        step=step,
        steps=services.demo.steps,
        started_seconds=status.started_at,
        problem=status.problem,
        unavailable=_unavailable(request),
    )


def _unavailable(request: Request) -> str | None:
    services: Services = request.app.state.services
    if not _may_start(request) or not caller_of(request).scope.has(PROJECT):
        return _NOT_ALLOWED
    if services.settings.workers > 1:
        return _SEVERAL
    return None if has_pytorch() else _NO_PYTORCH


def _may_start(request: Request) -> bool:
    """A server without tokens gives everybody the role admin: there, only the machine itself counts."""
    services: Services = request.app.state.services
    caller = caller_of(request)
    return caller.allows("admin") and (services.settings.tokens_required or is_loopback(caller.address))


def _own_address(request: Request) -> str:
    """Address of this server for a process on its machine: the end of the request's own connection."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _token(request: Request) -> tuple[str | None, Callable[[], None]]:
    """A token for the training where one is required, and what revokes it."""
    services: Services = request.app.state.services
    if not services.settings.tokens_required:
        return None, lambda: None
    actor = caller_of(request).actor
    with storing("stored"):
        token, plain = services.tokens.make(_TOKEN_NAME, "write", ProjectScope.of([PROJECT]), actor)

    def forget() -> None:
        try:
            services.tokens.delete(token.id)
        except (LookupError, QueueFull, StorageTrouble, WriterClosed, concurrent.futures.TimeoutError) as error:
            log.warning("the token of the demo could not be revoked: %s", error)

    return plain, forget
