"""What was held at any moment of a real history, and the replay under its own settings."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from history_windows import window_of

from vramscope.memory.allocator_settings import settings_in_force as agents_in_force
from vramscope.protocol.window import ACTIONS, STATES, BadWindow, pack, unpack
from vramscope_server.analysis.simulator.program import EMPTY_CACHE
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.trace import Trace, checked, layout_at
from vramscope_server.analysis.trace.types import Events
from vramscope_server.analysis.whatif.baseline_replay import check
from vramscope_server.analysis.whatif.program import derivation_of, reserved_after
from vramscope_server.analysis.whatif.sweep import predict, sweep

DIVISIONS = ",".join(f"{1 << slot}:{8 if slot < 2 else 2 if slot == 6 else 0}" for slot in range(16))
KINDS = ["lengths", "evaluation", "late", "ring", "died"]


@pytest.fixture(scope="module")
def traces(recorded: dict[str, Any]) -> dict[str, Trace]:
    return {kind: read(recorded[kind].path).devices[0] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_are_whole_at_every_moment_and_end_as_recorded(traces: dict[str, Trace], kind: str) -> None:
    """Blocks fill their segments; reserved, and what the program holds, go as the events say."""
    trace = traces[kind]
    reserved = reserved_after(trace)
    held = {ACTIONS.index("alloc"): 1, ACTIONS.index("free_completed"): -1}
    change = np.array([held.get(int(action), 0) for action in trace.events.action])
    last = len(trace.events) - 1
    in_use = len(np.flatnonzero(trace.end.blocks.state)) - change.sum()
    for at in [-1, *range(0, last, max(1, last // 40)), last]:
        layout = checked(layout_at(trace, at), "layout")
        assert layout.reserved_bytes == reserved[at + 1]
        assert np.count_nonzero(layout.blocks.state) == in_use + change[: at + 1].sum()
    end = layout_at(trace, last)
    for name in ("address", "size_bytes", "stream", "large", "expandable", "pool"):
        assert np.array_equal(getattr(end.segments, name), getattr(trace.end.segments, name)), name
    for name in ("segment", "address", "size_bytes", "state"):
        assert np.array_equal(getattr(end.blocks, name), getattr(trace.end.blocks, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_replay_under_its_own_settings_is_identical(
    traces: dict[str, Trace], recorded: dict[str, Any], kind: str
) -> None:
    """Each address, each moment's reserved bytes; late, overwritten and failed histories as well."""
    residual = check(traces[kind])
    assert residual.exact, residual.words
    assert int(reserved_after(traces[kind]).max()) <= recorded[kind].counted["peak_reserved_bytes"]


@pytest.mark.parametrize("recorder", ["a snapshot file", "the agent"])
@pytest.mark.parametrize(
    ("kind", "conf"),
    [
        ("grown", f"large_segment_size_mb:32,roundup_power2_divisions:[{DIVISIONS}],expandable_segments:True"),
        ("split", "large_segment_size_mb:64,max_split_size_mb:128"),
    ],
)
def test_settings_that_were_given_to_a_running_process_one_after_the_other_are_all_in_force(
    recorded: dict[str, Any], kind: str, conf: str, recorder: str
) -> None:
    """What the last text does not say again goes on to hold, or is reset, as PyTorch has it (allocator.md, 4.2)."""
    trace = read(recorded[kind].path).devices[0]
    if recorder == "the agent":
        with gzip.open(recorded[kind].path) as file:
            snapshot = pickle.load(file)["allocator_settings"]
        in_force = agents_in_force(snapshot, trace.settings)
        trace = from_window(window_of(trace, settings_in_force=in_force))
    settings, unknown = trace.parsed_settings
    assert unknown == ""
    for text in (settings.text, conf):  # (divisions are given by the sizes at which they change)
        assert replace(AllocatorSettings.parse(text), text="") == replace(settings, text=""), text
    residual = check(trace)
    assert residual.exact, residual.words
    assert predict(trace, conf).peak_reserved_bytes == recorded[kind].counted["peak_reserved_bytes"]
    alone = replace(trace, settings_in_force={}, settings="")
    assert not check(alone).exact, "under default settings it would have come out otherwise"
    told_of_it = " ".join(sweep(trace, []).notes)
    assert trace.settings in told_of_it and settings.text in told_of_it


def test_the_peak_of_a_late_history_is_what_the_allocator_counted(recorded: dict[str, Any]) -> None:
    """``late`` cut the allocator's peaks when its history began: they are the window's own, what was there included."""
    trace = read(recorded["late"].path).devices[0]
    assert trace.start is None
    lives, held = trace.lives, np.zeros(len(trace.events) + 1, np.int64)
    late = lives.alloc_event >= 0
    np.add.at(held, lives.alloc_event[late], lives.size_bytes[late])
    np.subtract.at(held, lives.free_requested_event, lives.size_bytes)
    held = np.cumsum(held[:-1]) + lives.size_bytes[~late].sum()
    assert held.max() == recorded["late"].counted["peak_allocated_bytes"]
    assert layout_at(trace, int(held.argmax())).allocated_bytes == held.max()


@pytest.mark.parametrize("kind", ["lengths", "evaluation"])
def test_a_history_that_begins_at_any_event_is_rolled_back(traces: dict[str, Trace], kind: str) -> None:
    """As if its beginning had been overwritten: the same segments and blocks are found, and the replay is identical."""
    whole = traces[kind]
    for first in np.linspace(40, len(whole.events) - 200, 9).astype(int):
        rows = {one.name: getattr(whole.events, one.name)[first:] for one in fields(Events)}
        late = replace(whole, events=Events(**rows))
        assert check(late).exact, first
        found, true = late.beginning, layout_at(whole, int(first) - 1)
        assert np.array_equal(found.segments.address, true.segments.address)
        used = [layout.blocks.address[layout.blocks.state > 0] for layout in (found, true)]
        assert np.array_equal(*used)


def test_empty_cache_is_told_from_a_retry(traces: dict[str, Trace], recorded: dict[str, Any]) -> None:
    """The evaluation empties the cache after its third step; the run that died emptied it by itself, before it gave up."""
    evaluation, died = derivation_of(traces["evaluation"]), derivation_of(traces["died"])
    assert evaluation.empty_caches == 1
    assert len(evaluation.releases) == 0
    assert np.count_nonzero(evaluation.program.op == EMPTY_CACHE) == 1
    assert recorded["died"].counted["out_of_memory"]
    assert died.empty_caches == 0
    assert len(died.failed) == 1
    # The failed request was retried, too. Whether that retry had a cached segment to return is not known.
    retries = recorded["died"].counted["retries"]
    assert retries > 0
    assert retries - len(died.failed) <= len(died.releases) <= retries


# ---- recorded windows ----


def test_a_window_gives_the_trace_that_the_snapshot_gave(traces: dict[str, Trace]) -> None:
    """With a start that was recorded, and not rolled back."""
    made = from_window(unpack(pack(window_of(traces["late"]))))
    assert made.start is not None
    assert np.array_equal(made.lives.size_bytes, traces["late"].lives.size_bytes)
    assert made.lives.unended == 0
    assert check(made).exact
    middle = len(made.events) // 2
    assert layout_at(made, middle).allocated_bytes == layout_at(traces["late"], middle).allocated_bytes


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("events", "action"), len(ACTIONS), "events.action"),
        (("events", "stack"), 1 << 30, "events.stack"),
        (("events", "pool"), 5, "events.pool"),
        (("end", "blocks", "state"), len(STATES), "end.blocks.state"),
        (("end", "blocks", "size_bytes"), 0, "end.blocks"),
        (("end", "blocks", "segment"), -1, "end.blocks"),
        (("start", "segments", "size_bytes"), 1 << 60, "start.segments"),
        (("frames", "file"), 1 << 40, "frames.file"),
    ],
)
def test_a_column_that_says_what_cannot_be_is_named(
    traces: dict[str, Trace], where: tuple[str, ...], value: int, words: str
) -> None:
    window = window_of(traces["late"])
    table: Any = window
    for step in where[:-1]:
        table = getattr(table, step)
    column = np.frombuffer(table[where[-1]], "<i8").copy()
    column[0] = value
    table[where[-1]] = column.tobytes()
    with pytest.raises(BadWindow, match=words.replace(".", r"\.")):
        from_window(window)


def test_a_window_with_far_more_stacks_than_events_is_refused(traces: dict[str, Trace]) -> None:
    """200,000 empty stacks are a few hundred bytes when packed."""
    window = window_of(traces["late"])
    stacks = [*window.stacks, *[[]] * 200_000]
    with pytest.raises(BadWindow, match="stacks: 200"):
        from_window(msgspec.structs.replace(window, stacks=stacks))


@pytest.mark.parametrize("frame", [-1, 5, 1 << 40])
def test_a_stack_of_frames_that_are_not_there_is_named(traces: dict[str, Trace], frame: int) -> None:
    window = msgspec.structs.replace(window_of(traces["late"]), stacks=[[], [0, frame]], frames={})
    with pytest.raises(BadWindow, match="stacks: a frame number outside of 0 frames"):
        from_window(window)


def test_stacks_are_lists_again() -> None:
    seen = [[2, 1, 0], [], [7]]
    stacks = Stacks.of(seen)
    assert (list(stacks), len(stacks), stacks.offsets.tolist()) == (seen, 3, [0, 3, 3, 4])
    for beyond in (3, -1):
        with pytest.raises(IndexError, match="there are 3"):
            stacks[beyond]


def test_there_is_no_layout_of_an_event_that_is_not_there(traces: dict[str, Trace]) -> None:
    with pytest.raises(IndexError, match="use 0 to"):
        layout_at(traces["ring"], len(traces["ring"].events))
