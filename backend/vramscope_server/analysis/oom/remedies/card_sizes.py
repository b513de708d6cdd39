"""Memory sizes of common GPUs, as sold and as reported by CUDA."""

from __future__ import annotations

from typing import Final, NamedTuple

MIB: Final = 1 << 20


class CardSize(NamedTuple):
    """A memory size, with one GPU as an example."""

    label: str
    """Size as it is sold."""
    name: str
    total_bytes: int
    """Memory as CUDA reports it."""


CARD_SIZES: Final = (
    CardSize("12 GB", "RTX 3060", 12_011 * MIB),
    CardSize("16 GB", "T4", 15_102 * MIB),
    CardSize("16 GB", "RTX 4080", 16_049 * MIB),
    CardSize("24 GB", "L4", 22_491 * MIB),
    CardSize("24 GB", "RTX 4090", 24_207 * MIB),
    CardSize("32 GB", "RTX 5090", 32_120 * MIB),
    CardSize("40 GB", "A100 40GB", 40_339 * MIB),
    CardSize("48 GB", "L40S", 45_486 * MIB),
    CardSize("48 GB", "RTX A6000", 48_676 * MIB),
    CardSize("80 GB", "H100", 81_079 * MIB),
    CardSize("96 GB", "GH200", 97_280 * MIB),
    CardSize("141 GB", "H200", 143_167 * MIB),
    CardSize("192 GB", "B200", 182_642 * MIB),
)
"""Sizes, smallest first. The values are those of the dry run's devices, which have their sources."""


def smallest_card(needed_bytes: int) -> CardSize | None:
    """Return the smallest size with at least this memory; None if there is none."""
    return next((card for card in CARD_SIZES if card.total_bytes >= needed_bytes), None)
