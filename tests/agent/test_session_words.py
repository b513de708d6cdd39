"""What a session says at the terminal of a leak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from wire_maker import leak

from vramscope import console
from vramscope.session import Session


def said_of(capsys: pytest.CaptureFixture[str], **told: Any) -> str:
    console.forget_said()
    Session()._tell_leak(leak(**told))
    return capsys.readouterr().err


def test_names_stay_as_they_are_written_and_other_words_begin_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert " Keep the number" in said_of(capsys, name="history", advice="keep the number (.item())")
    assert " replay.episodes takes more" in said_of(capsys, name="replay.episodes", advice="replay.episodes takes more")


def test_a_cycle_that_no_collector_sees_is_not_said_to_wait_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "until the garbage collector comes by" in said_of(capsys, kind="cycle", holder="objects of Patch")
    through = said_of(capsys, kind="cycle", holder="param.grad holds the parameter by its graph, in C++")
    assert "that no collector sees" in through and "comes by" not in through
