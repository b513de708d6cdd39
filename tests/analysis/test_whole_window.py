"""The numbers of a legend count every row of the window, not the points that are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vramscope.protocol.series import UNKNOWN
from vramscope_server.figures.legend_numbers import whole_window

COLUMNS = {
    "total": np.array([10, 40, UNKNOWN, 20, 30]),
    "part": np.array([1, 2, 3, UNKNOWN, 40]),
    "phase": np.array([0, 1, 1, 0, 1]),
}


@pytest.mark.parametrize(
    ("feed", "values"),
    [
        ({}, [10, 40, 20, 30]),
        ({"minus": "part"}, [9, 38, 0]),
        ({"minus": ["part", "phase"]}, [9, 37, 0]),
        ({"needs": "part"}, [10, 40, 30]),
    ],
)
def test_unknown_rows_count_in_no_number(feed: dict[str, Any], values: list[int]) -> None:
    found = whole_window(COLUMNS, {"field": "total", **feed}, 0.5)
    drawn = [value * 0.5 for value in values]
    assert found == {
        "last": drawn[-1],
        "min": min(drawn),
        "mean": pytest.approx(sum(drawn) / len(drawn)),
        "max": max(drawn),
        "rows": len(drawn),
    }


@pytest.mark.parametrize("feed", [{"field": "absent"}, {"field": "total", "minus": "absent"}])
def test_without_its_columns_there_are_no_numbers(feed: dict[str, Any]) -> None:
    assert whole_window(COLUMNS, feed, 1.0) is None


def test_all_unknown_gives_no_numbers() -> None:
    assert whole_window({"total": np.full(3, UNKNOWN)}, {"field": "total"}, 1.0) is None


def test_negative_values_count_where_the_trace_has_a_sign() -> None:
    columns = {"change": np.array([-5, 5])}
    found = whole_window(columns, {"field": "change", "signed": True}, 1.0)
    assert found is not None
    assert (found["min"], found["mean"]) == (-5, 0)
