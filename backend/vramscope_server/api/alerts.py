"""Which alerts a run's page counts, and from where on: set by people, for everybody."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vramscope_server.answers.server import Alerts
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.writes import change
from vramscope_server.services import House
from vramscope_server.store.preferences import ALERT_RULES, alert_rules, change_alert_rules

router = APIRouter(tags=["server"])

MOST_BYTES = 1 << 60


class Rule(BaseModel):
    """Whether an alert is counted; what is not given stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    on: bool | None = None


class Leaks(Rule):
    """Counted once they hold so much together."""

    least_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)] | None = None


class Headroom(Rule):
    """What the card had to spare at the highest, as a share of the card."""

    below_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None


class NeverNeeded(Rule):
    """Of the most that a step reserved, what no step allocated."""

    above_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None


class Rules(BaseModel):
    """A rule an alert; what is not given stays."""

    model_config = ConfigDict(extra="forbid")

    leaks: Leaks | None = None
    out_of_memory: Rule | None = None
    findings: Rule | None = None
    resets: Rule | None = None
    headroom: Headroom | None = None
    never_needed: NeverNeeded | None = None


@router.get("/alerts", summary="Which alerts are counted", responses=answers_with(Alerts))
def get_alerts(request: Request) -> Response:
    """``{rules, defaults}``: of each alert whether it is ``on``, and its threshold where it has one."""
    with reader(request.app.state.house) as connection:
        return answer({"rules": alert_rules(connection), "defaults": ALERT_RULES})


@router.patch("/alerts", summary="Set which alerts are counted, and from where on", responses=answers_with(Alerts))
def patch_alerts(request: Request, rules: Rules) -> Response:
    """Answers as GET does. Runs tell the rules in force with the next look at them."""
    house: House = request.app.state.house
    wanted = rules.model_dump(exclude_none=True)
    told = change(house, lambda connection, _: change_alert_rules(connection, wanted))
    return answer({"rules": told, "defaults": ALERT_RULES})
