"""The projects whose runs a caller may see and change: those of its token, or all.

A reading connection carries the scope of its request (:func:`scoped`). Each query that finds runs, recordings or snapshots
by something that a caller chose has the condition :func:`visible`, so that those of other projects do not exist for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

_OPTION: Final = "vramscope_projects"


@dataclass(frozen=True, slots=True)
class ProjectScope:
    """Names of projects, in alphabetical order; None: all projects, and what belongs to none."""

    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, names: Iterable[str] | None) -> ProjectScope:
        """The scope of these projects; of None, all."""
        return ALL_PROJECTS if names is None else cls(tuple(sorted(set(names))))

    def has(self, project: str | None) -> bool:
        """Whether what belongs to this project (None: to no project) is visible."""
        return self.names is None or project in self.names

    def covers(self, other: ProjectScope) -> bool:
        """Whether all that the other scope shows is visible."""
        return self.names is None or (other.names is not None and set(other.names) <= set(self.names))

    @property
    def words(self) -> str:
        """The names for people."""
        return "all projects" if self.names is None else ", ".join(self.names)


ALL_PROJECTS: Final = ProjectScope()


def scoped(connection: Connection, scope: ProjectScope) -> Connection:
    """The connection, whose queries find only what is in this scope."""
    return connection.execution_options(**{_OPTION: scope})


def scope_of(connection: Connection) -> ProjectScope:
    """Scope of a connection. The server's own connections, and the writer's, see all projects."""
    scope: ProjectScope = connection.get_execution_options().get(_OPTION, ALL_PROJECTS)
    return scope


def visible(connection: Connection, project: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Condition of a query: ``project``, a column, is in the scope of the connection."""
    names = scope_of(connection).names
    return sa.true() if names is None else project.in_(names)
