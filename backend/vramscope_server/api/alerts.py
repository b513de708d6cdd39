"""Alert rules: which alerts the pages of runs count, and from which value on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.engine import Connection

from vramscope_server.answers.server import AlertRules, Alerts
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.audit_log import Action, Done, differences, noted
from vramscope_server.store.preferences import ALERT_RULES, alert_rules, change_alert_rules

router = APIRouter(tags=["server"])

MOST_BYTES = 1 << 60
MOST_SECONDS = 30 * 86400.0


class RuleChange(BaseModel):
    """Change of an alert rule. A field that is left out keeps its value."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    on: bool | None = None
    """Whether the alert is counted."""


class LeakRuleChange(RuleChange):
    """Change of the rule for leaks."""

    least_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)] | None = None
    """Leaks count from this much retained memory on."""


class HeadroomChange(RuleChange):
    """Change of the rule for free device memory at the peak."""

    below_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Headroom counts below this share of the device."""


class NeverNeededChange(RuleChange):
    """Change of the rule for reserved memory that no step allocates."""

    above_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Never needed memory counts above this share of the reserved memory."""


class ForecastChange(RuleChange):
    """Change of the rule for memory that runs out soon."""

    below_seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None
    """A message is sent if the forecast time until the memory runs out is below it."""


class AlertRuleChanges(BaseModel):
    """Changes of alert rules. A rule that is left out keeps its value."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    leaks: LeakRuleChange | None = None
    """Leaks."""
    out_of_memory: RuleChange | None = None
    """Out-of-memory errors."""
    findings: RuleChange | None = None
    """Mistakes in the training script."""
    resets: RuleChange | None = None
    """Resets of PyTorch's peak counters by other code."""
    headroom: HeadroomChange | None = None
    """Free device memory at the peak."""
    never_needed: NeverNeededChange | None = None
    """Reserved memory that no step allocates."""
    forecast: ForecastChange | None = None
    """Memory that runs out soon at its present rate."""


@router.get("/alerts", summary="Alert rules", responses=answers_with(Alerts))
def get_alerts(request: Request) -> Response:
    """Rules in force and their defaults. They apply to all users of this server."""
    with reader(request) as connection:
        return answer(Alerts(rules=alert_rules(connection), defaults=ALERT_RULES))


@router.patch("/alerts", summary="Change alert rules", responses=answers_with(Alerts))
def patch_alerts(request: Request, rules: AlertRuleChanges) -> Response:
    """Answer as ``GET /alerts``. A field that is left out keeps its value."""
    services: Services = request.app.state.services
    wanted = rules.model_dump(exclude_none=True)
    actor = caller_of(request).actor

    def work(connection: Connection) -> AlertRules:
        before = alert_rules(connection)
        rules_now = change_alert_rules(connection, wanted)
        changes = differences(_flat(before), _flat(rules_now))
        noted(actor, Done(Action.alerts_changed, changes=changes))(connection)
        return rules_now

    rules_now = change(services, lambda connection, _: work(connection))
    return answer(Alerts(rules=rules_now, defaults=ALERT_RULES))


def _flat(rules: AlertRules) -> dict[str, object]:
    """Values by ``rule.field``."""
    of_each = cast("Mapping[str, Mapping[str, Any]]", rules)
    return {f"{name}.{field}": value for name, rule in of_each.items() for field, value in rule.items()}
