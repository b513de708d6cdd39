"""The ablation's variants exist, and leave the detector as it was."""

from __future__ import annotations

import pytest
from variants import RULES, changed, scaled, target, thresholds

from vramscope.leaks.policy import POLICY, LeakPolicy


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_names_something_that_exists(rule: str) -> None:
    assert callable(target(rule)[2])


def test_a_variant_is_undone() -> None:
    rule = "settled"
    before = target(rule)[2]
    with changed({"material_bytes": scaled("material_bytes", 2), "scan_at": [1, 2]}, [rule]):
        assert POLICY.material_bytes == 2 * LeakPolicy().material_bytes and POLICY.scan_at == {1, 2}
        assert target(rule)[2] is not before
    assert LeakPolicy() == POLICY and target(rule)[2] is before


def test_each_threshold_can_be_scaled() -> None:
    for name in thresholds():
        assert scaled(name, 2) != scaled(name, 0.5)
