"""What a leak's fix would bring, by replay of a recorded step: told to the byte where it can be, and else why not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from running import RunningServer
from test_recordings import cut
from window_maker import MIB, leaking
from wire_maker import Agent, leak, scan

from vramscope.protocol.window import BadWindow, Holding, Window, pack, unpack
from vramscope_server.__main__ import main
from vramscope_server.analysis.leaks.fix_effect import LeakEffect, leak_effect
from vramscope_server.analysis.leaks.leaked_allocations import CannotTell
from vramscope_server.analysis.trace.from_window import from_window

PLACE = ("/home/me/train.py", 87)


def effect_of(window: Window, kind: str = "overlap") -> LeakEffect:
    return leak_effect(from_window(unpack(pack(window))), kind, "output", *PLACE)


def test_what_was_alive_at_the_peak_is_what_the_peak_falls_by() -> None:
    """In forward old and new are there, 64 + 16 + 32 + 16 MiB; then backward is the highest."""
    effect = effect_of(leaking())
    assert (effect.peak_allocated_bytes, effect.peak_allocated_after_bytes) == (128 * MIB, 112 * MIB)
    assert (effect.phase, effect.held_bytes, effect.saved_bytes, effect.allocations) == (
        "forward",
        16 * MIB,
        16 * MIB,
        2,
    )
    assert effect.peak_reserved_bytes - effect.peak_reserved_after_bytes == 16 * MIB, (
        "the old one had a segment of its own"
    )
    assert (
        effect.words
        == "In the recorded step 1 it retains 16.0 MiB. With the fix the step's peak, in the forward pass, falls by 16.0 MiB."
    )


def test_held_is_not_saved() -> None:
    """The peak is in backward, when the new result is there, which the backward was made of."""
    effect = effect_of(leaking(backward_mib=40, needed=True))
    assert (effect.phase, effect.saved_bytes, effect.peak_allocated_bytes) == ("backward", 0, 152 * MIB)
    assert effect.words == (
        "In the recorded step 1 it retains 16.0 MiB. With the fix the step's peak, in the backward pass, falls by 0 or more: "
        "the backward pass may need this memory then."
    )
    effect = effect_of(leaking("cycle", backward_mib=40), "cycle")
    assert effect.saved_bytes == 0 and effect.words.endswith(
        "in the backward pass, does not fall: the new result has replaced the old one by then."
    )


def test_what_no_backward_needs_is_let_go_before_it() -> None:
    effect = effect_of(leaking(backward_mib=40))
    assert (effect.phase, effect.saved_bytes) == ("backward", 16 * MIB)


def test_a_peak_that_moves_says_where_to() -> None:
    """Forward was the highest by 8 MiB: of 16 MiB that were alive 8 are saved."""
    effect = effect_of(leaking("overlap-unfreed", backward_mib=8, needed=True), "overlap-unfreed")
    assert (effect.saved_bytes, effect.phase, effect.phase_after) == (8 * MIB, "forward", "backward")
    assert (
        "falls by 8.00 MiB: the fix frees 16.0 MiB there, and then the highest is 120 MiB, in the backward pass."
        in effect.words
    )


def test_of_what_grows_the_newest_stays_as_a_variable_does() -> None:
    """One result is held, and the mended loop holds one too until its successor is made."""
    assert effect_of(leaking("growing"), "growing").saved_bytes == 0
    window = leaking("growing")
    many = msgspec.structs.replace(window.holdings[0], counted_bytes=[80 * MIB, 96 * MIB])
    effect = effect_of(msgspec.structs.replace(window, holdings=[many]), "growing")
    assert (effect.held_bytes, effect.saved_bytes) == (96 * MIB, 80 * MIB), (
        "those that were counted from their like are old ones"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"holdings": [], "held": {}}, "no scan in this recording saw it"),
        ({"scans": [0, 0]}, "the recording has no whole step between two scans"),
        ({"held": {}}, "what it held lies in no block of this device's allocator"),
        ({"settings": "backend:cudaMallocAsync"}, "only PyTorch's native allocator can be replayed"),
    ],
)
def test_where_it_cannot_be_told_the_reason_is(change: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotTell, match=why):
        effect_of(msgspec.structs.replace(leaking(), **change))


def test_a_leak_that_was_found_later_has_no_effect_in_this_window() -> None:
    window = leaking()
    late = msgspec.structs.replace(window.holdings[0], counted_bytes=[-1, -1])
    with pytest.raises(CannotTell, match="found after the last scan"):
        effect_of(msgspec.structs.replace(window, holdings=[late]))


@pytest.mark.parametrize(
    "change",
    [
        {"scans": [0, 10_000]},
        {"holdings": [Holding(kind="overlap", name="output", file=None, line=None, counted_bytes=[0])]},
        {"holdings": [], "scans": [0, 1]},
    ],
)
def test_a_window_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadWindow, match=r"scans|holding"):
        effect_of(msgspec.structs.replace(leaking(), **change))


def test_it_is_told_by_the_api_and_in_the_terminal(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent()
    server.send(agent, scan(leak("overlap", "output"), leak(name="history")))
    by_name = {one["name"]: one for one in server.get(f"/runs/{agent.run}/leaks")["leaks"]}

    def replay(name: str) -> Any:
        return server.get(f"/runs/{agent.run}/leaks/{by_name[name]['id']}/replay")

    assert replay("output") | {"run_id": ""} == {
        "run_id": "", "leak": by_name["output"]["id"], "recording": None, "rank": None, "effect": None,
        "reason": "no recording was made since it was found",
    }  # fmt: skip
    about = {"device": 0, "first_step": 1, "last_step": 2, "reason": "a leak was found", "events": 24, "leaks": 1}
    server.send(agent, *cut(pack(leaking()), 1, about=about), sequence=2)
    replayed = replay("output")
    assert (replayed["reason"], replayed["rank"], replayed["effect"]["saved_bytes"]) == ("", 0, 16 * MIB)
    assert replay("history")["reason"] == "no scan in this recording saw it"
    answer = server.http.get(f"/runs/{agent.run}/leaks/nobody/replay")
    assert answer.status_code == 404 and answer.json()["field"] == "leak"

    capsys.readouterr()
    assert main(["leaks", agent.run, "--server", server.url]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "the peak is in backward, when all of it is alive" in output
    assert f"by replay: {replayed['effect']['words']} Reserved falls from 130 MiB to 114 MiB." in output
    assert "by replay: unknown, no scan in this recording saw it" in output
    assert main(["leaks", agent.run, "--json", "--server", server.url]) == 0
    first = {one["name"]: one["replay"] for one in json.loads(capsys.readouterr().out)}["output"]
    assert first == {name: replayed[name] for name in ("recording", "rank", "effect", "reason")}
