"""What the terminal shows about leaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from wire_maker import leak

from vramscope.leaks.holders.wording import NAMELESS
from vramscope.leaks.peak_effects import TO_COME
from vramscope.leaks.registry import DROPPED
from vramscope.leaks.terminal_lines import LeakLines
from vramscope.protocol import messages

URL = "http://localhost:8000/runs/r"

Said = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Said:
    """The lines of one scan of a session."""
    lines = LeakLines(URL)

    def after(*leaks: messages.Leak) -> str:
        lines.looked(leaks)
        return capsys.readouterr().err

    return after


def said_at_the_end(capsys: pytest.CaptureFixture[str], **fields: Any) -> str:
    LeakLines(URL).ended([leak(**fields)])
    return capsys.readouterr().err


def test_names_stay_as_they_are_written_and_other_words_begin_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert " Keep the number" in said_at_the_end(capsys, name="history", advice="keep the number (.item())")
    own = said_at_the_end(capsys, name="replay.episodes", advice="replay.episodes takes more")
    assert " replay.episodes takes more" in own and f"{URL}/leaks" in own


def test_a_cycle_that_no_collector_sees_is_not_said_to_wait_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "until the garbage collector runs" in said_at_the_end(capsys, kind="cycle", holder="Patch.schedule")
    through = said_at_the_end(capsys, kind="cycle", holder="param.grad holds the parameter by its graph, in C++")
    assert "that no garbage collector sees" in through and "collector runs" not in through


def test_graphs_that_no_variable_retains_are_named_after_their_model(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_at_the_end(capsys, kind="no_grad-missing", name="Sequential", holder=f"{DROPPED}Sequential")
    assert (
        "each batch builds the autograd graph of Sequential's output (train.py:87), and no backward pass uses it. "
        in said
    )


def test_of_what_lowers_no_peak_nothing_is_said_and_of_the_rest_when_that_is_known(printed: Said) -> None:
    """A result that is held until the next forward has replaced it: most loops do that, and few peaks are higher for it."""
    coming = leak("overlap", "loss", peak_effect_bytes=None, peak_effect=TO_COME)
    for_nothing = leak("overlap", "loss", peak_effect_bytes=0)
    assert printed(coming) == printed(for_nothing) == printed() == ""
    assert " logits" in printed(for_nothing, leak("overlap", "logits", holder="local 'logits'", peak_effect_bytes=4096))
    assert printed(for_nothing, leak("overlap", "out", peak_effect_bytes=4096)) == "", "one line a run"


def test_what_grows_is_told_whatever_was_told_before_and_taken_back_where_it_stops(printed: Said) -> None:
    """A small result that is held over is found first; the list that takes more and more must not stay unsaid for that."""
    over = leak("overlap", "logits", holder="local 'logits' of train()")
    early = leak("overlap", "rows", holder="local 'rows' of train() -> list[2]", first_step=3, last_step=7)
    assert printed(early) == "", "it may be a list that takes more, of which `del` would be the wrong advice"
    assert " logits" in printed(over).replace("'", " ")
    assert "more with each step" in printed(over, leak("growing", "rows", file="train.py", line=9))
    assert printed(over, leak("growing", "rows", file="train.py", line=9), leak("tensor-growth", "more")) == ""
    assert "rows has stopped growing: ignore the earlier report" in printed(over)
    assert printed(over) == ""


def test_what_is_emptied_is_told_with_when_and_what_it_holds_then(printed: Said) -> None:
    emptied = leak("growing", "losses", emptied_at="reset() (train.py:40)", emptied_after=100, held_bytes=3 << 20)
    assert (
        "more with each step until reset() (train.py:40) empties it after 100 steps, with 3.00 MiB by then. "
        in printed(emptied)
    )


def test_what_was_told_before_it_was_emptied_stands_while_it_is_filled_anew(printed: Said) -> None:
    waiting = leak("growing", "model.losses", emptied_at="reset() (train.py:40)", line=9, file="train.py")
    assert "until reset() (train.py:40) empties it, which has not happened so far. " in printed(waiting)
    assert (
        printed(
            leak("growing", "self.losses", emptied_at="reset() (train.py:40)", emptied_after=9, line=9, file="train.py")
        )
        == ""
    )
    assert "model.losses has been emptied: ignore the earlier report" in printed()


def test_a_result_that_somebody_else_has_too_is_waited_for(printed: Said) -> None:
    """Deleting it alone frees nothing; its holder may turn out to take one of each step."""
    beside = leak("overlap", "feats", holder="global 'feats'", first_step=2, last_step=9, exclusive_bytes=0)
    assert printed(beside) == ""
    beside = leak("overlap", "feats", holder="global 'feats'", first_step=2, last_step=20, exclusive_bytes=0)
    result = printed(beside, leak("tensor-growth", "store", file="train.py", line=9))
    assert "'store'" in result and "feats" not in result


def test_a_result_that_somebody_else_has_too_is_told_where_nothing_grows(printed: Said) -> None:
    assert "'out'" in printed(
        leak("overlap", "out", holder="global 'out'", first_step=2, last_step=20, exclusive_bytes=0)
    )


def test_what_nobody_could_name_is_not_taken_back_when_it_has_a_name(printed: Said) -> None:
    assert "more with each step" in printed(leak("growing", NAMELESS, file="", line=0))
    assert printed(leak("growing", "rows", file="train.py", line=9)) == ""


def test_of_the_ranks_of_a_host_the_first_speaks(printed: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert printed(leak("growing", "rows")) == ""


def test_one_of_what_its_holder_takes_is_not_taken_back_when_the_holder_is_named(printed: Said) -> None:
    assert "keeps more tensors" in printed(leak("tensor-growth", "state.adversarial[0]", file="train.py", line=9))
    assert printed(leak("tensor-growth", "state.adversarial", file="train.py", line=9)) == ""
    assert "has stopped growing" in printed(leak("overlap", "state.adversarial", file="train.py", line=9))


def test_what_a_wider_holder_takes_in_is_not_taken_back(printed: Said) -> None:
    assert "keeps the autograd" in printed(leak("growing", "log.current.losses", file="train.py", line=9))
    assert printed(leak("growing", "log", file="train.py", line=12)) == ""
    assert "has stopped growing" in printed(leak("growing", "logits", file="train.py", line=14))


def test_names_keep_their_letters(printed: Said) -> None:
    cached = leak("tensor-growth", "mask in lru_cache", advice="mask is cached, and asked for something new each step")
    assert ". mask is cached" in printed(cached)
