"""What people set at the pages, for everybody who looks at this server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.answers.server import AlertRules
from vramscope_server.store.tables import preferences

Changes = Mapping[str, Mapping[str, Any]]
"""Alert -> field -> value."""

ALERTS: Final = "alerts"
ALERT_RULES: Final[AlertRules] = {
    "leaks": {"on": True, "least_bytes": 0},
    "out_of_memory": {"on": True},
    "findings": {"on": True},
    "resets": {"on": True},
    "headroom": {"on": False, "below_fraction": 0.05},
    "never_needed": {"on": False, "above_fraction": 0.25},
    "forecast": {"on": True, "below_seconds": 3600.0},
}
"""Rules of a new installation: alerts for what is wrong in itself, none for matters of taste."""


def alert_rules(connection: Connection) -> AlertRules:
    """Rules in force: those of ALERT_RULES with the stored changes."""
    row = connection.execute(sa.select(preferences.c.value).where(preferences.c.name == ALERTS)).one_or_none()
    return _changed(ALERT_RULES, {} if row is None else row.value)


def change_alert_rules(connection: Connection, changes: Changes) -> AlertRules:
    """Store changes of rules. Returns the rules in force."""
    rules = _changed(alert_rules(connection), changes)
    connection.execute(sa.delete(preferences).where(preferences.c.name == ALERTS))
    connection.execute(sa.insert(preferences).values(name=ALERTS, value=rules))
    return rules


def _changed(rules: AlertRules, changes: Changes) -> AlertRules:
    changed = {name: {**rule, **changes.get(name, {})} for name, rule in cast("Changes", rules).items()}
    return cast("AlertRules", changed)
