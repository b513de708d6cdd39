"""Findings on the corpus of labelled loops are those of the golden files."""

from __future__ import annotations

from typing import Any

import pytest
from area_leaks import DEVICES, area_of, compared, loops
from child import ANSWER_WITHIN_SECONDS
from corpus import cases
from files import assert_same, recorded


def every_loop() -> list[Any]:
    parameters = []
    for device in DEVICES:
        for name in loops():
            marks = [pytest.mark.xdist_group(f"leaks-{device}"), pytest.mark.timeout(4 * ANSWER_WITHIN_SECONDS)]
            if device == "cuda":
                marks.append(pytest.mark.gpu)
            if cases()[name].truth.frameworks:
                marks.append(pytest.mark.frameworks)
            parameters.append(pytest.param(device, name, marks=marks, id=f"{device}-{name}"))
    return parameters


@pytest.mark.parametrize(("device", "loop"), every_loop())
def test_findings_are_the_golden_ones(answers, emulated_gpu: None, device: str, loop: str) -> None:
    """Of the same run that tests/leaks judges."""
    assert_same(area_of(device), compared(device, loop, answers), entries=[loop])


@pytest.mark.parametrize("device", DEVICES)
def test_golden_loops_are_those_of_the_corpus(device: str) -> None:
    assert sorted(recorded(area_of(device)).facts) == sorted(loops())
