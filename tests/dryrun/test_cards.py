"""The cards of a dry run."""

from __future__ import annotations

import pytest

from vramscope_server.cli.client import Failure
from vramscope_server.cli.dryrun.cards import CARDS, card_named, cards_named


@pytest.mark.parametrize("words", ["l4", "L4", "NVIDIA L4"])
def test_a_card_is_found_by_its_word_and_its_name(words):
    assert card_named(words).name == "NVIDIA L4"


@pytest.mark.parametrize("words", ["4090", "rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090"])
def test_a_maker_s_word_may_be_left_out(words):
    assert card_named(words).key == "4090"


def test_an_unknown_card_is_refused_with_the_known_ones():
    for words in ("l40x", "NVIDIA L40X"):
        with pytest.raises(Failure, match=rf"'{words}' is not known\. Did you mean l40s") as refused:
            card_named(words)
        assert refused.value.code == 2


@pytest.mark.parametrize("words", ["MI300X", "Radeon 7900", "TPU v5"])
def test_a_card_of_another_maker_is_refused_with_the_reason(words):
    with pytest.raises(Failure, match="NVIDIA's cards only"):
        card_named(words)


def test_each_card_has_a_source_and_a_word_of_its_own():
    assert len({card.key for card in CARDS}) == len({card.name for card in CARDS}) == len(CARDS)
    assert all(card.source.startswith(("https://", "measured")) for card in CARDS)


def test_memory_is_that_of_the_card_s_name():
    """A slip of a digit in the table would be a wrong answer."""
    sizes = {"v100-16": 16, "v100-32": 32, "t4": 16, "2080ti": 11, "3060": 12, "3090": 24, "a10": 24, "a10g": 24, "a100-40": 40,
             "a100-80": 80, "a6000": 48, "l4": 24, "l40s": 48, "4070ti-super": 16, "4080": 16, "4090": 24, "5090": 32,
             "6000-ada": 48, "h100": 80, "h200": 141, "gh200": 96, "b200": 180, "a100-1g.5gb": 5, "a100-3g.20gb": 20}  # fmt: skip
    assert {card.key for card in CARDS} == sizes.keys()
    for card in CARDS:
        assert 0.88 < card.total_bytes / (sizes[card.key] << 30) < 1.02, card.key


def test_several_cards_and_all():
    assert [card.key for card in cards_named("l4, RTX 4090,l4")] == ["l4", "4090"]
    assert cards_named("all") == list(CARDS)
    with pytest.raises(Failure, match="is not known"):
        cards_named("l4,")
