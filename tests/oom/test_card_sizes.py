"""Cards that are named as large enough have the memory of the dry run's cards, which have sources."""

from __future__ import annotations

from vramscope_server.analysis.oom.remedies.card_sizes import CARD_SIZES, smallest_card
from vramscope_server.cli.dryrun.cards import CARDS

GIB = 1 << 30


def test_figures_are_those_of_the_dry_runs_cards() -> None:
    known = {card.name: card.total_bytes for card in CARDS}
    for card in CARD_SIZES:
        found = [size for name, size in known.items() if card.name.split()[0] in name or card.name in name]
        assert card.total_bytes in found, card


def test_the_smallest_card_that_is_large_enough() -> None:
    assert [card.total_bytes for card in CARD_SIZES] == sorted(card.total_bytes for card in CARD_SIZES)
    assert smallest_card(19 * GIB + GIB // 2) == next(card for card in CARD_SIZES if card.name == "L4")
    assert smallest_card(23 * GIB) == next(card for card in CARD_SIZES if card.name == "RTX 4090"), "an L4 has less"
    assert smallest_card(400 * GIB) is None
