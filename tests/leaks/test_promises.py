"""What a finding promises of its fix comes true, on loops of each sort; docs/leaks.md has them all."""

from __future__ import annotations

import pytest
from corpus import cases
from promises import Promise, row

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("leaks-cuda")]


@pytest.mark.parametrize(
    "name",
    [
        "growing.list_of_losses",
        "growing_odd.forward_hook",
        "evaluation.total_of_an_evaluation",
        "tensors.detached_features",
        "overlap.logits_of_a_language_model",
        "overlap.output_as_an_attribute",
    ],
)
def test_held_peak_and_growth_come_as_promised(watched, scales, name: str) -> None:
    found = row(watched["cuda"], scales, cases()[name])
    assert found.leak is not None
    assert found.peak is not None and found.peak.verdict == "kept", str(found)
    assert [promise.verdict for promise in found.numbers] == ["kept"] * len(found.numbers), str(found)


def test_held_is_not_saved(watched, scales) -> None:
    """The output that a model keeps is half a MiB; the peak falls by nothing, and that is what is said."""
    found = row(watched["cuda"], scales, cases()["overlap.output_as_an_attribute"])
    assert found.held is not None and found.held.promised >= 1 << 19
    assert found.peak is not None and found.peak.promised == found.peak.came == 0


@pytest.mark.parametrize(
    ("promised", "came", "verdict"),
    [(100, 100, "kept"), (100, 94, "kept"), (100, 80, "less"), (100, 120, "more"), (None, 5, "unknown")],
)
def test_a_promise_that_is_not_kept_is_named(promised: float | None, came: float, verdict: str) -> None:
    assert Promise(promised, came, slack=10).verdict == verdict
