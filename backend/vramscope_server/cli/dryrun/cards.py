"""Cards that a dry run can emulate."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from vramscope_server.analysis.number_format import amount
from vramscope_server.cli.client import Failure, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.tables import Column, console, print_table

MIB: Final = 1024 * 1024
COLUMNS: Final = (
    Column("CARD"),
    Column("NAME"),
    Column("CAPABILITY", needed=1, number=True),
    Column("MEMORY", number=True),
    Column("SOURCE", needed=2),
)


@dataclass(frozen=True)
class Card:
    """A GPU as PyTorch reports it."""

    key: str
    """Word for ``--card``."""
    name: str
    """Name as ``torch.cuda.get_device_name()`` returns it."""
    capability: int
    """Compute capability: 89 is 8.9."""
    multiprocessors: int
    total_bytes: int
    """Memory as CUDA reports it. It differs by some MiB with the driver; rounded figures of a source are rounded down."""
    source: str
    """Where a program printed these figures."""


def _read() -> tuple[Card, ...]:
    with Path(__file__).with_name("cards.csv").open(newline="") as file:
        return tuple(
            Card(
                key=row["key"],
                name=row["name"],
                capability=int(row["capability"]),
                multiprocessors=int(row["multiprocessors"]),
                total_bytes=int(row["total_mib"]) * MIB,
                source=row["source"],
            )
            for row in csv.DictReader(file)
        )


CARDS: Final = _read()

SIMILARITY: Final = 0.6
"""Likeness of two names from which on one is suggested for the other; 1 is equal."""
OTHERS: Final = re.compile(r"(?i)\b(mi\d{3}\w?|radeon|rx ?\d{4}|instinct|gaudi|tpu|m[1-4])\b")
"""Devices of other makers."""


def cards_named(words: str) -> list[Card]:
    """Find the cards of ``--card``: one, several with commas between them, or ``all``. Raises client.Failure."""
    if words.strip().lower() == "all":
        return list(CARDS)
    return list(dict.fromkeys(card_named(word) for word in words.split(",")))


def card_named(words: str) -> Card:
    """Find a card by its word or name. Raises client.Failure with the list if there is none."""
    wanted = _plain(words)
    for card in CARDS:
        if wanted in (_plain(card.key), _plain(card.name)):
            return card
    if OTHERS.search(words):
        raise Failure(
            f"--card {words}: the emulated GPU runs PyTorch's CUDA build, which is for NVIDIA's cards only",
            BAD_ARGUMENTS,
        )
    known = [card.key for card in CARDS]
    keys = {_plain(key): key for key in known}
    similar = difflib.get_close_matches(wanted, keys, 1, SIMILARITY)
    meant = f" Did you mean {keys[similar[0]]}?" if similar else ""
    raise Failure(f"--card {words!r} is not known.{meant} Known cards: {', '.join(known)}", BAD_ARGUMENTS)


def show(as_json: bool) -> None:
    """Print all cards."""
    if as_json:
        print_json([asdict(card) for card in CARDS])
        return
    rows = [[card.key, card.name, str(card.capability / 10), amount(card.total_bytes), card.source] for card in CARDS]
    print_table(console(), COLUMNS, rows)


def _plain(words: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", words.lower())
