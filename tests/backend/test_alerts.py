"""Which alerts are counted: set by people, kept by the server, told with each run."""

from __future__ import annotations

from typing import Any

import pytest
from running import RunningServer
from wire_maker import Agent

from vramscope_server.store.preferences import ALERT_RULES


def test_rules_are_kept_for_everybody_and_told_with_each_run(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3))
    assert server.get("/alerts") == {"rules": ALERT_RULES, "defaults": ALERT_RULES}
    assert server.get(f"/runs/{agent.run}")["alert_rules"] == ALERT_RULES
    wanted = {"headroom": {"on": True}, "leaks": {"least_bytes": 1 << 20}}
    answer = server.http.patch("/alerts", json=wanted)
    expected = ALERT_RULES | {
        "headroom": {"on": True, "below_fraction": 0.05},
        "leaks": {"on": True, "least_bytes": 1 << 20},
    }
    assert answer.status_code == 200 and answer.json()["rules"] == expected
    server.http.patch("/alerts", json={"findings": {"on": False}})
    expected["findings"] = {"on": False}
    assert server.get("/alerts")["rules"] == server.get(f"/runs/{agent.run}")["alert_rules"] == expected


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"headroom": {"below_fraction": 5}}, "headroom.below_fraction", "less than 1"),
        ({"headroom": {"below_fraction": 0}}, "headroom.below_fraction", "greater than 0"),
        ({"never_needed": {"above_fraction": "many"}}, "never_needed.above_fraction", "number"),
        ({"leaks": {"least_bytes": -1}}, "leaks.least_bytes", "greater than or equal to 0"),
        ({"leaks": {"least_bytes": 1.5}}, "leaks.least_bytes", "integer"),
        ({"forecast": {"below_seconds": 0}}, "forecast.below_seconds", "greater than 0"),
        ({"leaks": {"on": "yes"}}, "leaks.on", "boolean"),
        ({"temperature": {"on": True}}, "temperature", "not permitted"),
        ({"out_of_memory": {"least_bytes": 1}}, "out_of_memory.least_bytes", "not permitted"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name_and_nothing_changes(
    server: RunningServer, body: dict[str, Any], field: str, words: str
) -> None:
    before = server.get("/alerts")
    answer = server.http.patch("/alerts", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field and words in answer.json()["detail"]
    assert server.get("/alerts") == before
