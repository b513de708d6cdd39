"""Cards that are named as large enough have the memory of the dry run's cards, which have sources."""

from __future__ import annotations

from vramscope_server.analysis.oom.remedies.card_sizes import CARD_SIZES, smallest_card
from vramscope_server.cli.dryrun.cards import CARDS

GIB = 1 << 30


def test_figures_are_those_of_the_dry_runs_cards() -> None:
    known = {card.key: card.total_bytes for card in CARDS}
    keys = {
        "RTX 3060": "3060", "T4": "t4", "RTX 4080": "4080", "L4": "l4", "RTX 4090": "4090", "RTX 5090": "5090",
        "A100 40GB": "a100-40", "L40S": "l40s", "RTX A6000": "a6000", "H100": "h100", "GH200": "gh200", "H200": "h200",
        "B200": "b200",
    }  # fmt: skip
    assert {card.name: card.total_bytes for card in CARD_SIZES} == {name: known[key] for name, key in keys.items()}


def test_the_smallest_card_that_is_large_enough() -> None:
    assert [card.total_bytes for card in CARD_SIZES] == sorted(card.total_bytes for card in CARD_SIZES)
    assert smallest_card(19 * GIB + GIB // 2) == next(card for card in CARD_SIZES if card.name == "L4")
    assert smallest_card(23 * GIB) == next(card for card in CARD_SIZES if card.name == "RTX 4090"), "an L4 has less"
    assert smallest_card(400 * GIB) is None
