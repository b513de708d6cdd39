"""The text of a finding's source line is added where messages are packed, without its secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vramscope.leaks.source_text import MOST_CHARACTERS, with_source
from vramscope.process.redaction import Secrets
from vramscope.protocol import messages

LINES = ["import train", "    history.append(loss)", 'log(loss, token="hf_abcdefghijklmnopqrstuvwxyz")', "x" * 999]


def scan(file: str | None, line: int | None) -> messages.Scan:
    leak = messages.Leak(
        kind="growing", name="history", holder="local 'history'", file=file, line=line, count=2, first_step=1, last_step=2,
        held_bytes=8, exclusive_bytes=8, advice="keep the number", fix="item",
    )  # fmt: skip
    return messages.Scan(time_ns=1, step=2, reason="a test", seconds=0.0, tensors=1, leaks=[leak])


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that was written before this process began."""
    file = tmp_path / "train.py"
    file.write_text("\n".join(LINES))
    os.utime(file, (1e9, 1e9))
    return file


def source_of(file: str | None, line: int | None) -> str:
    found = with_source(scan(file, line), Secrets(environ={}).hide)
    assert isinstance(found, messages.Scan)
    return found.leaks[0].source


def test_the_line_comes_with_its_indentation_and_without_secrets(program: Path) -> None:
    assert source_of(str(program), 2) == "    history.append(loss)"
    hidden = source_of(str(program), 3)
    assert hidden.startswith("log(loss, token=") and "hf_abc" not in hidden


def test_a_file_that_was_edited_meanwhile_may_have_another_line_there(program: Path) -> None:
    os.utime(program)
    assert source_of(str(program), 2) == ""


def test_what_cannot_be_read_stays_empty(program: Path, tmp_path: Path) -> None:
    assert len(LINES[3]) > MOST_CHARACTERS
    for file, line in (
        (str(program), 4),
        (str(program), 99),
        (str(tmp_path / "none.py"), 1),
        ("a\0b", 1),
        (None, None),
    ):
        assert source_of(file, line) == ""


def test_other_messages_stay_as_they_are() -> None:
    event = messages.Event(time_ns=1, kind="notice")
    assert with_source(event, lambda text: text) is event
