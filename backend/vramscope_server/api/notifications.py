"""Messages about runs: where they are sent, and a test."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from vramscope_server.answers.server import NotificationTarget
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.audit_log import Action, Done, noted

router = APIRouter(tags=["server"])


@router.get("/notifications", summary="Targets of messages", responses=answers_with(list[NotificationTarget]))
def get_notifications(request: Request) -> Response:
    """As ``VRAMSCOPE_NOTIFY`` has them."""
    return answer(_targets(request.app.state.services))


@router.post("/notifications/test", summary="Send a test message", responses=answers_with(list[NotificationTarget]))
def post_test(request: Request) -> Response:
    """To each target. The answer has the results; it waits for the targets, some seconds each."""
    services: Services = request.app.state.services
    note = noted(caller_of(request).actor, Done(Action.message_tested))
    change(services, lambda connection, _: note(connection))
    services.notifier.send_test()
    return answer(_targets(services))


def _targets(services: Services) -> list[NotificationTarget]:
    return [
        NotificationTarget(name=one.name, last_sent_seconds=one.last_sent_seconds, problem=one.problem)
        for one in services.notifier.targets
    ]
