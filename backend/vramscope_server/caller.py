"""Who calls: set by the access control for each request of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from vramscope_server.store.audit_log import Actor
from vramscope_server.store.project_scope import ALL_PROJECTS, ProjectScope
from vramscope_server.store.token_rows import ROLES, Role

CALLER: Final = "vramscope.caller"
"""Key of the Caller in the ASGI scope."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The one who sends a request, and what it may do."""

    name: str | None
    """Name of the token, or of the user who signed in; None where no token is required."""
    role: Role
    scope: ProjectScope
    token: str | None
    """Id of the token; None: a user, or none is required."""
    address: str
    """Address that the request came from."""

    @property
    def actor(self) -> Actor:
        """The caller as the audit log names it."""
        return Actor(self.name, self.token, self.address)

    @property
    def words(self) -> str:
        """The caller in sentences."""
        return f"{'The user' if self.token is None else 'The token'} {self.name!r}"

    def allows(self, role: Role) -> bool:
        """Whether this role is enough where ``role`` is needed."""
        return ROLES.index(self.role) >= ROLES.index(role)


def anybody(address: str) -> Caller:
    """A caller of a server that requires no tokens."""
    return Caller(None, "admin", ALL_PROJECTS, None, address)


def nobody(address: str) -> Caller:
    """A caller without a token, of what needs none where the rest does."""
    return Caller(None, "read", ProjectScope(()), None, address)


class _HasScope(Protocol):
    @property
    def scope(self) -> Mapping[str, Any]: ...


def caller_of(request: _HasScope) -> Caller:
    """Caller of a request that passed the access control."""
    caller: Caller = request.scope[CALLER]
    return caller
