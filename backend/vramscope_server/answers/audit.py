"""The audit log."""

from __future__ import annotations

from typing_extensions import TypedDict


class AuditChange(TypedDict):
    """A field that was changed."""

    field: str
    """Name of the field."""
    before: str | None
    """Value before, as text; null: none."""
    after: str | None
    """Value after, as text; null: none."""


class AuditEntry(TypedDict):
    """A change."""

    time_seconds: float
    """Time of the change, since 1970."""
    actor: str | None
    """Name of the token, or of the part of the server; null where no token was required."""
    token: str | None
    """Identifier of the token; null: none."""
    address: str | None
    """Address that the request came from; null: from the server's machine."""
    action: str
    """Kind of change: `token_created`, `token_revoked`, `run_changed`, `run_moved`, `run_deleted`, `recording_deleted`,
    `profile_deleted`, `snapshot_deleted`, `session_ended`, `alerts_changed` or `message_tested`."""
    subject: str | None
    """Identifier of what was changed."""
    name: str | None
    """Its name at that time."""
    project: str | None
    """Its project at that time."""
    changes: list[AuditChange]
    """Fields that were changed."""


class AuditLog(TypedDict):
    """Entries of the audit log."""

    entries: list[AuditEntry]
    """Newest first."""
    next: int | None
    """Value of `before` for the next page; null: there is none."""
    max_entries: int
    """Maximum number of entries that are kept (`VRAMSCOPE_AUDIT_ENTRIES`)."""
