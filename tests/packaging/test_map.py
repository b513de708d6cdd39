"""docs/architecture.md is the map: what it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAP = (ROOT / "docs" / "architecture.md").read_text().split("```")[1].strip("\n")
SERVER = ROOT / "backend" / "vramscope_server"


def is_path(word: str) -> bool:
    return "/" in word or bool(re.fullmatch(r"[\w.-]+\.(py|md|yml|toml)|Makefile", word))


def named() -> Iterator[Path]:
    """Paths at the head of a line, below the root or the room that an earlier line named; and what its words name of the root."""
    root = room = ROOT
    for line in MAP.splitlines():
        depth = len(line) - len(line.lstrip())
        head, _, words = line.strip().partition("   ")
        folder = {0: ROOT, 2: root, 4: room}.get(depth)
        heads = [] if folder is None else [folder / word for word in takewhile(is_path, head.split())]
        if depth == 0:
            root = heads[0]
            heads += [root / word for word in words.split() if word.endswith("/")]
        elif depth == 2:
            room = heads[0]
        yield from heads
        yield from (root / name for name in re.findall(r"(?<![\w/.])\w+\.py\b", re.sub("`.*?`", "", line)))


def nouns(room: str) -> set[str]:
    """The files of a room that the map lists as words, up to the first mark or the end of the indented lines."""
    found = re.search(rf"^  {room}/ +(?:one file a noun: )?([\w ]+(?:\n {{10,}}[\w ]+)*)", MAP, re.M)
    assert found is not None
    return set(found.group(1).split())


@pytest.mark.parametrize("path", sorted({*named()}), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_map_names_is_there(path: Path) -> None:
    assert path.exists()


def test_the_map_is_read_whole() -> None:
    """The test above would pass where nothing was read."""
    read = {*named()}
    assert len(read) > 60
    assert {ROOT / "agent" / "vramscope" / "exits.py", SERVER / "analysis" / "leaks", ROOT / "CONTRIBUTING.md"} <= read


@pytest.mark.parametrize("room", ["api", "store"])
def test_each_noun_of_a_room_is_a_file_of_it(room: str) -> None:
    there = {path.stem for path in (SERVER / room).glob("*.py")}
    assert len(nouns(room)) > 5 and nouns(room) <= there, nouns(room) - there
