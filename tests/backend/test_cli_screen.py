"""Numbers in words, and tables that fit: what a terminal shows."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vramscope_server.analysis.number_format import graphs, percent
from vramscope_server.cli.format import ABSENT, ago, cost, plain
from vramscope_server.cli.tables import Column, print_table


def test_other_words():
    assert (graphs(9_999), graphs(10_000), graphs(None, ABSENT)) == ("9,999", "10,000 or more", ABSENT)
    assert [ago(at, now=100_000) for at in (None, 99_999, 99_000, 90_000, 3)] == [
        "unknown", "1 s ago", "16 min ago", "2 h ago", "1 d ago",
    ]  # fmt: skip
    assert (percent(None), percent(0.0123), percent(-0.5, signed=True)) == ("unknown", "1.2 %", "-50.0 %")
    assert plain("a\x1b]0;x\x07\nb\u202e\u00e9") == "a\\x1b]0;x\\x07\\nb\\u202e\u00e9"


@pytest.mark.parametrize(
    ("overhead", "expected"),
    [
        (None, "not measured yet"),
        ({"fraction": None, "resolvable": False, "noise_fraction": None}, "not measured yet"),
        (
            {"fraction": None, "resolvable": False, "noise_fraction": None, "hook_seconds": 1.5},
            "1.50 s in total; the run is too short to estimate the cost per step",
        ),
        ({"fraction": 0.001, "resolvable": False, "noise_fraction": 0.002}, "below 0.5 % of a step"),
        ({"fraction": 0.001, "resolvable": False, "noise_fraction": 0.02}, "below 2.0 % of a step"),
        ({"fraction": 0.2, "resolvable": False, "noise_fraction": 3.2}, "not measured yet"),
        (
            {"fraction": 0.2, "resolvable": False, "noise_fraction": 3.2, "hook_seconds": 0.25},
            "250 ms in total; the run is too short to estimate the cost per step",
        ),
        (
            {"fraction": 0.011, "resolvable": True, "noise_fraction": 0.002, "seconds_per_step": 4e-5},
            "1.1 % of a step (40.0 µs), measured",
        ),
    ],
)
def test_the_cost_of_watching_is_told_only_as_far_as_it_was_measured(overhead, expected):
    assert cost(overhead) == expected


COLUMNS = [
    Column("NAME"),
    Column("PEAK", number=True),
    Column("MODEL", needed=2),
    Column("TIME", needed=1, number=True),
]
ROWS = [["a-name-of-thirty-six-characters-here", "24.3 GiB", "a model of a GPU", "412 ms"], ["b", ABSENT, "", ABSENT]]


def drawn(width: int, rows: list[list[str]] = ROWS) -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=width, highlight=False), COLUMNS, rows)
    return out.getvalue()


def test_the_least_needed_columns_go_first_and_no_name_or_number_is_cut():
    """Wide: all of them; narrower: without MODEL, then without TIME; the name is folded, never shortened."""
    assert [word in drawn(100) for word in ("MODEL", "TIME", "PEAK")] == [True, True, True]
    assert [word in drawn(50) for word in ("MODEL", "TIME", "PEAK")] == [False, True, True]
    assert [word in drawn(36) for word in ("MODEL", "TIME", "PEAK")] == [False, False, True]
    for width in (100, 50, 36, 24):
        text = drawn(width)
        assert "24.3 GiB" in text and "…" not in text
        folded = "".join(line[: max(0, width - 10)].split(" ")[0] for line in text.splitlines()[1:])
        assert ROWS[0][0] in folded


def test_a_column_without_content_is_left_out():
    assert "MODEL" not in drawn(100, [["a", "1.00 GiB", "", "1 s"]])


@given(st.integers(30, 200), st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_no_line_is_wider_than_the_terminal(width, names):
    rows = [[plain(name), "24.3 GiB", "NVIDIA H100 80GB HBM3", "412 ms"] for name in names]
    console = Console(width=width)
    assert all(
        console.render_str(line, markup=False, emoji=False).cell_len <= width
        for line in drawn(width, rows).splitlines()
    )


def test_in_a_pipe_no_line_is_filled_up_to_the_longest() -> None:
    out = io.StringIO()
    rows = [["a", "short"], ["b", "a much longer sentence that goes into the last column"]]
    print_table(Console(file=out, width=10_000), [Column("NAME"), Column("WORDS")], rows)
    lines = out.getvalue().splitlines()
    assert [line.split() for line in lines[:2]] == [["NAME", "WORDS"], ["a", "short"]]
    assert len(lines) == 3 and all(line == line.rstrip() for line in lines)
