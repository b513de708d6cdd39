"""The audit log: who changed what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from vramscope_server.answers.audit import AuditChange, AuditEntry, AuditLog
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import Services
from vramscope_server.store.audit_log import Action, Entry, list_entries

router = APIRouter(tags=["server"])


@router.get("/audit", summary="Audit log", responses=answers_with(AuditLog))
def get_audit(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries.")] = 100,
    before: Annotated[int | None, Query(ge=0, description="`next` of the previous page.")] = None,
    action: Annotated[Action | None, Query(description="Kind of change; by default all.")] = None,
) -> Response:
    """Newest first. For admins that are bound to no project."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        found = list_entries(connection, limit=limit + 1, before=before, action=action)
    shown = found[:limit]
    return answer(
        AuditLog(
            entries=[_row(entry) for entry in shown],
            next=shown[-1].key if len(found) > limit else None,
            max_entries=services.settings.audit_entries,
        )
    )


def _row(entry: Entry) -> AuditEntry:
    actor, done = entry.actor, entry.done
    return AuditEntry(
        time_seconds=entry.time_ns / 1e9,
        actor=actor.name,
        token=actor.token,
        address=actor.address,
        action=done.action.value,
        subject=done.subject,
        name=done.name,
        project=done.project,
        changes=[AuditChange(field=change.field, before=change.before, after=change.after) for change in done.changes],
    )
