"""Words from which arguments of the commands choose."""

from __future__ import annotations

from enum import Enum


class TableFormat(str, Enum):
    """Output formats of a comparison."""

    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


class TokenAction(str, Enum):
    """What to do with tokens."""

    create = "create"
    list = "list"
    revoke = "revoke"


class TokenRole(str, Enum):
    """Roles of a token."""

    read = "read"
    write = "write"
    admin = "admin"
