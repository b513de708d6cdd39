"""What people set at the pages, for everybody who looks at this server."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.tables import preferences

Rules = dict[str, dict[str, Any]]

ALERTS: Final = "alerts"
ALERT_RULES: Final[Rules] = {
    "leaks": {"on": True, "least_bytes": 0},
    "out_of_memory": {"on": True},
    "findings": {"on": True},
    "resets": {"on": True},
    "headroom": {"on": False, "below_fraction": 0.05},
    "never_needed": {"on": False, "above_fraction": 0.25},
}
"""Which alerts a run's page counts, and from where on, until somebody sets them: what is wrong by itself, and nothing that is a
matter of taste."""


def alert_rules(connection: Connection) -> Rules:
    """As they were set; what was not is as ALERT_RULES has it."""
    row = connection.execute(sa.select(preferences.c.value).where(preferences.c.name == ALERTS)).one_or_none()
    stored: Rules = {} if row is None else row.value
    return {name: rule | stored.get(name, {}) for name, rule in ALERT_RULES.items()}


def change_alert_rules(connection: Connection, changes: Rules) -> Rules:
    """Set what is given, leave the rest; gives all of them back."""
    before = alert_rules(connection)
    rules = {name: rule | changes.get(name, {}) for name, rule in before.items()}
    connection.execute(sa.delete(preferences).where(preferences.c.name == ALERTS))
    connection.execute(sa.insert(preferences).values(name=ALERTS, value=rules))
    return rules
