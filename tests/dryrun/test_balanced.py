"""Rows that a router distributes to experts: equally, if the user says so, else every row to every expert."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from changed_programs import PROGRAMS

from vramscope.dry_run.routing import Routing
from vramscope.protocol.assumed_value import parse

PROGRAM = PROGRAMS / "experts.py"
ROUTING = "1,025 of 8,200 rows to each of 8 experts (balanced)"


def line_of(text: str) -> int:
    """Number of the only line of the program with this text."""
    (number,) = [at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if text in line]
    return number


def dry_run(url: str, style: str, *words: str, hand: str = "") -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    command = [sys.executable, "-m", "vramscope_server", "dryrun", "--json", "--card", "l4", "--server", url, *words]
    done = subprocess.run(
        [*command, "--", sys.executable, str(PROGRAM), style],
        capture_output=True,
        text=True,
        env={**environment, "HAND": hand},
        timeout=170,
        check=False,
    )
    return json.loads(done.stdout)


def peaks(answer: Any) -> tuple[int, int]:
    return answer["peak_allocated_bytes"], answer["peak_reserved_bytes"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("style", "reads", "before"),
    [
        ("masks", ["torch.where(mask)"], "fits"),
        pytest.param("one_hot", ["torch.where(masks[number])"], "fits", marks=pytest.mark.slow),
        ("counts", ["torch.bincount(", "number.tolist()"], "not trustworthy"),
    ],
)
def test_balanced_rows_have_the_peaks_of_a_program_with_their_sizes(url, style, reads, before):
    lines = [line_of(text) for text in reads]
    words = [word for line in lines for word in ("--assume", f"experts.py:{line}=balanced")]
    answer, plain, by_hand = dry_run(url, style, *words), dry_run(url, style), dry_run(url, style, hand="balanced")
    assert answer["answer"] == by_hand["answer"] == "fits"
    assert answer["assumptions"] == [f"experts.py:{line} sends {ROUTING}" for line in lines]
    assert peaks(answer) == peaks(by_hand)
    assert plain["answer"] == before
    if before == "fits":
        hint = f"if it selects the rows of one of 8 experts: --assume experts.py:{lines[0]}=balanced"
        assert plain["assumptions"] == [f"experts.py:{lines[0]} selects every element (an upper bound; {hint})"]
        assert plain["peak_allocated_bytes"] > 1.5 * answer["peak_allocated_bytes"], "every row in every expert"


@pytest.mark.gpu
def test_a_detection_head_gets_every_box(url):
    answer, by_hand = dry_run(url, "boxes"), dry_run(url, "boxes", hand="balanced")
    assert all("selects every element (an upper bound" in text for text in answer["assumptions"])
    assert any(text.startswith(f"experts.py:{line_of('> 0.5]')}") for text in answer["assumptions"])
    assert answer["peak_allocated_bytes"] > by_hand["peak_allocated_bytes"], "more than with 100 boxes"


def test_shares_are_as_equal_as_whole_numbers_can_be():
    routing = Routing(experts=8, choices=4100 * 2)
    assert routing.shares == [1025] * 8
    assert Routing(3, 10).shares == [4, 3, 3]


@pytest.mark.parametrize(("elements", "rows"), [(8200, 1025), (4100, 1025), (8, 8), (8200 * 8, 8200 * 8)])
def test_a_mask_over_rows_or_choices_selects_those_of_one_expert(elements, rows):
    assert Routing(8, 8200).selected(elements) == rows


@pytest.mark.parametrize(
    ("routing", "elements", "looks_so"),
    [
        (Routing(8, 8200, is_topk=True), 4100, True),
        (Routing(8, 8200, is_topk=True), 8200 * 8, False),
        (Routing(8, 8200), 4100, False),  # argmax() of a classifier
        (Routing(20_000, 1000, is_topk=True), 1000, False),  # the best boxes of a detector
    ],
)
def test_a_router_is_named_only_where_a_mask_may_be_its_own(routing, elements, looks_so):
    assert routing.looks_like_experts(elements) is looks_so


def test_the_word_is_parsed():
    one = parse("moe.py:40=balanced")
    assert one.is_balanced and one.bits(8, False) is None and one.is_for("/src/moe.py", 40)
    assert not parse("moe.py:40=1").is_balanced


def test_the_program_is_as_the_lines_say():
    assert Path(PROGRAM).read_text().count("torch.where(") == 2
