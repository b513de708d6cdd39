"""The tables of docs/cost.md are those that the stored measurement gives."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "whole_cost.py"


@pytest.fixture
def whole_cost() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whole_cost", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_stored_figures(whole_cost: ModuleType) -> None:
    page = whole_cost.DOCS.read_text()
    marks = (whole_cost.BEGIN, whole_cost.END), (whole_cost.BEGIN_OTHERS, whole_cost.END_OTHERS)
    shown = [page.split(begin)[1].split(end)[0].strip() for begin, end in marks]
    assert shown == whole_cost.stored_tables()


def test_a_loop_of_the_other_measurement_counts_as_measured(whole_cost: ModuleType) -> None:
    found = json.loads(whole_cost.RESULTS.read_text())
    assert whole_cost.table(found).endswith(
        "Not measured: small Hugging Face Trainer; PPO, 8 environments; DCGAN; 20 layers that leak."
    )
    assert "Not measured" not in whole_cost.table(found, whole_cost.NAMES)


def test_a_median_beyond_its_goal_is_marked(whole_cost: ModuleType) -> None:
    assert whole_cost.cell([1.0, 1.03, 1.05], ".2f", 1.02) == "1.03 (1.00 to 1.05), **missed**"
    assert whole_cost.cell([1.0, 1.01, 1.05], ".2f", 1.02) == "1.01 (1.00 to 1.05)"
    assert whole_cost.cell([], ".2f", 1.02) == "not measured"
