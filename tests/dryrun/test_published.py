"""Published figures: their page is generated, each has a source, and small programs still give what the page says."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def published() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("published")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def results(published: ModuleType) -> Any:
    return json.loads(published.RESULTS.read_text())


def test_the_page_is_generated_from_the_results(published: ModuleType, results: Any) -> None:
    made = f"{published.BEGIN}\n{published.table(results)}\n{published.END}"
    assert made in published.DOCS.read_text(), "run: python benchmarks/published.py --table"


def test_each_figure_has_a_source_and_a_result(published: ModuleType, results: Any) -> None:
    for figure in published.figures():
        assert figure.source.url.startswith("https://") and figure.published_bytes > 0
        assert published.emulated(figure, results["runs"]) is not None, figure.what


def test_figures_of_a_kind_without_known_gaps_are_hits(published: ModuleType, results: Any) -> None:
    """The goal of dry runs: by PyTorch's counters, without convolutions, nine of ten within 2 %."""
    chosen = [
        figure
        for figure in published.figures()
        if figure.counter is not published.Counter.NVIDIA_SMI and figure.kind is not published.Kind.CONVOLUTION
    ]
    hits = [figure for figure in chosen if published.is_hit(figure, published.emulated(figure, results["runs"]))]
    assert len(chosen) >= 40 and len({figure.source for figure in chosen}) >= 12
    assert len(hits) >= 0.9 * len(chosen)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tensors_of_a_function", "layer_norm", "attention_parts"])
def test_small_programs_give_the_stored_results(published: ModuleType, results: Any, name: str) -> None:
    figure = next(figure for figure in published.figures() if figure.program == name)
    assert published.alone(figure)["bytes"] == results["runs"][published.run_key(figure)]["bytes"]
