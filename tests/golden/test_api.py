"""Answers of all GET routes for the stored runs are those of the golden files."""

from __future__ import annotations

from area_api import compute
from files import assert_same


def test_every_get_route_answers_as_the_golden_files_say() -> None:
    for area, result in compute().items():
        assert_same(area, result)
