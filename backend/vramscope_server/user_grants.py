"""What users may do, by the groups that a proxy or an OpenID provider names: ``VRAMSCOPE_GROUPS``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.token_rows import ROLES, Role

EVERYBODY: Final = "*"
"""Group of all users who signed in."""


@dataclass(frozen=True, slots=True)
class UserGrant:
    """Role and projects of the users of a group."""

    group: str
    role: Role
    scope: ProjectScope

    @classmethod
    def parse(cls, text: str) -> UserGrant:
        """Read ``GROUP=ROLE`` or ``GROUP=ROLE:PROJECT+PROJECT``. Raises ValueError."""
        group, separator, rest = text.rpartition("=")
        role, bound, names = rest.partition(":")
        projects = [name.strip() for name in names.split("+") if name.strip()]
        role = role.strip()
        if not separator or not group.strip() or role not in ROLES or (bound and not projects):
            raise ValueError(
                f"{text!r} is not GROUP=ROLE or GROUP=ROLE:PROJECT+PROJECT, with a role of {', '.join(ROLES)}"
            )
        known = next(one for one in ROLES if one == role)
        return cls(group.strip(), known, ProjectScope.of(projects if bound else None))


class UserGrants:
    """Grants in their order. The first one whose group a user has decides alone, so that no two add up."""

    def __init__(self, grants: Sequence[str]) -> None:
        """Raises ValueError."""
        self._grants = [UserGrant.parse(text) for text in grants]

    def find(self, groups: Iterable[str]) -> UserGrant | None:
        """Grant of a user with these groups; None if there is none."""
        known = {*groups, EVERYBODY}
        return next((grant for grant in self._grants if grant.group in known), None)
