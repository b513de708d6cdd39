"""Numbers in words: the same rule as in the pages, and numbers that add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.oom_diagnosis.prose import summed
from vramscope.protocol.number_format import amount, duration, percent

FORMATS = {  # JSON has no NaN and no infinity: they are texts
    name: [(float(value) if isinstance(value, str) else value, words) for value, words in rows]
    for name, rows in json.loads(
        (Path(__file__).parents[1] / "number_formats.json").read_text(encoding="utf-8")
    ).items()
}
FUNCTIONS: dict[str, Callable[..., str]] = {
    "bytes": amount,
    "seconds": duration,
    "percent": percent,
    "signedPercent": partial(percent, signed=True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_read_as_in_the_pages(name: str) -> None:
    """Only the minus differs: a terminal's is the hyphen, which programs can read."""
    seen = [(value, FUNCTIONS[name](value)) for value, _ in FORMATS[name]]
    assert seen == [(value, words.replace("\u2212", "-")) for value, words in FORMATS[name]]
    assert FUNCTIONS[name](None, "-") == "-"


@given(st.integers(0, 2**59))
def test_an_amount_is_within_half_a_percent_and_below_its_next_unit(value: int) -> None:
    number, unit = amount(value).replace(",", "").split()
    size = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert abs(size - value) <= 0.005 * value and float(number) < 1024


@given(st.lists(st.integers(0, 2**38), min_size=1, max_size=5), st.integers(0, 2**38))
def test_printed_parts_add_up_to_the_printed_sum(parts: list[int], limit: int) -> None:
    words, total, most = summed(parts, limit)
    values = [float(word.split()[0].replace(",", "")) for word in (*words, total, most)]
    assert sum(values[:-2]) == pytest.approx(values[-2], abs=1e-6)
    assert (values[-2] > values[-1]) == (sum(parts) > limit)


def test_a_sum_has_three_digits_where_they_suffice() -> None:
    mib = 2**20
    assert summed((412 * mib, 206 * mib), 512 * mib) == (["412 MiB", "206 MiB"], "618 MiB", "512 MiB")
    assert summed((int(15.81 * 2**30),), int(15.77 * 2**30)) == (["15.81 GiB"], "15.81 GiB", "15.77 GiB")
