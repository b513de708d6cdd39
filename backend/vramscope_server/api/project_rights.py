"""Checks that a project which a request names is one of the caller's."""

from __future__ import annotations

from vramscope_server.api.problems import InvalidParameter, OtherProjectProblem
from vramscope_server.caller import Caller
from vramscope_server.store.project_scope import ProjectScope


def require_project(caller: Caller, project: str) -> None:
    """Raise OtherProjectProblem if the caller is bound to other projects."""
    if not caller.scope.has(project):
        raise OtherProjectProblem(
            f"The token is bound to {caller.scope.words}.",
            field="project",
            seen=project[:200],
            expected=caller.scope.words,
        )


def require_scope(caller: Caller, wanted: ProjectScope) -> None:
    """Raise OtherProjectProblem for projects that the caller does not have itself."""
    if not caller.scope.covers(wanted):
        raise OtherProjectProblem(
            f"The token is bound to {caller.scope.words}, and gives no right to others.",
            field="projects",
            seen=wanted.words[:200],
            expected=caller.scope.words,
        )


def project_of_upload(caller: Caller, project: str | None) -> str | None:
    """Project of a new snapshot: the named one, else the only one of the caller. None: of no project.

    Raises OtherProjectProblem, or InvalidParameter if a caller with several projects names none.
    """
    if project is not None:
        require_project(caller, project)
        return project
    if caller.scope.names is None:
        return None
    if len(caller.scope.names) > 1:
        raise InvalidParameter(
            "The token is bound to several projects: name the one that the file belongs to.",
            field="project",
            seen=None,
            expected=caller.scope.words,
        )
    return caller.scope.names[0]
