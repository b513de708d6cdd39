"""Categories of allocations against the ground truth: parameters, gradients, states, saved tensors, inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from observed import JUDGED

from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope_server.analysis.ownership.allocation_owners import name_of, ownership_of
from vramscope_server.analysis.ownership.amounts import allocated_after, allocated_at, peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, UNKNOWN, categories_of
from vramscope_server.analysis.ownership.stack_categories import with_phases
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.analysis.trace.stacks import Stacks

# The first test waits for twenty trainings.
pytestmark = [pytest.mark.xdist_group("anatomy"), pytest.mark.timeout(600)]

RIGHT = 0.98
MOST_UNKNOWN = 0.02


def right(one: Any, *, made_in_it: bool = False) -> tuple[float, float]:
    """Share with the true category, of the bytes at the peak and of bytes times events."""
    lives, count = one.trace.lives, len(one.trace.events)
    same = np.array(CATEGORIES)[categories_of(one.trace)] == np.array(one.truth)
    held = allocated_at(one.trace, peak_event(one.trace))
    at_peak = lives.size_bytes[held]
    lasted = np.minimum(lives.free_requested_event, count) - np.maximum(lives.alloc_event, 0)
    weight = lives.size_bytes * lasted * ((lives.alloc_event >= 0) | (not made_in_it))
    return at_peak[same[held]].sum() / at_peak.sum(), weight[same].sum() / weight.sum()


@pytest.mark.parametrize("name", JUDGED)
def test_98_percent_of_peak_bytes_have_the_true_category(observed, name) -> None:
    assert right(observed[name])[0] >= RIGHT


@pytest.mark.parametrize("name", JUDGED)
def test_95_percent_of_all_bytes_have_the_true_category(observed, name) -> None:
    """Recomputed activations of a step without stacks are found by a step with stacks."""
    assert right(observed[name])[1] >= 0.95


@pytest.mark.parametrize("name", JUDGED)
def test_less_than_2_percent_of_the_peak_is_unknown(observed, name) -> None:
    summarized = summary(observed[name].trace)
    assert summarized["coverage"]["basis"] == "owners"
    assert summarized["coverage"]["unknown_fraction"] < MOST_UNKNOWN


@pytest.mark.parametrize("name", JUDGED)
def test_less_than_2_percent_is_unknown_at_every_event(observed, name) -> None:
    """The limit holds at every event, not on average."""
    trace = observed[name].trace
    unknown = allocated_after(trace, categories_of(trace) == UNKNOWN)
    share = unknown / np.maximum(allocated_after(trace), 1)
    assert share.max() < MOST_UNKNOWN


def test_buckets_of_ddp_are_known(observed) -> None:
    """It allocates new ones in the second forward pass, and keeps them."""
    trace = observed["ddp"].trace
    assert not allocated_after(trace, categories_of(trace) == UNKNOWN).any()


@pytest.mark.parametrize("name", JUDGED)
def test_categories_add_up_to_allocated_bytes(observed, name) -> None:
    """Their maximum is the allocator's peak counter."""
    trace = observed[name].trace
    codes = categories_of(trace)
    parts = sum(allocated_after(trace, codes == code) for code in range(len(CATEGORIES)))
    whole = allocated_after(trace)
    assert np.array_equal(parts, whole)
    assert whole[0] == trace.start.counters["allocated_bytes.all.current"]
    assert whole[-1] == trace.end.counters["allocated_bytes.all.current"]
    assert whole.max() == trace.end.counters["allocated_bytes.all.peak"] == observed[name].peak_allocated_bytes
    summarized = summary(trace)
    for part in ("categories", "phases"):
        assert sum(row["bytes"] for row in summarized[part]) == summarized["allocated_bytes"] == whole.max()


def test_gradient_has_an_owner_name(observed) -> None:
    trace = observed["gpt2"].trace
    of = ownership_of(trace)
    names = {
        category: {name_of(trace, of, int(row)) for row in np.flatnonzero(of.category == code)}
        for code, category in enumerate(OWNER_CATEGORIES)
    }
    weight = "transformer.h.0.mlp.c_fc.weight"
    assert weight in names["parameters"]
    assert f"gradient of {weight}" in names["gradients"]
    assert {f"exp_avg of {weight}", f"exp_avg_sq of {weight}"} <= names["optimizer"]
    assert "input_ids" in names["input"]


def test_phases_alone_classify_a_steps_allocations(observed) -> None:
    """Parameters from before the recording are unknown; allocations of the steps are not."""
    one = observed["gpt2"]
    blind = one._replace(trace=dataclasses.replace(one.trace, owners={}, owner_names=[]))
    assert right(blind, made_in_it=True)[1] > RIGHT
    codes = np.array(CATEGORIES)[categories_of(blind.trace)]
    fresh = blind.trace.lives.alloc_event >= 0
    assert set(codes[~fresh]) == {"unknown"}
    assert summary(blind.trace)["coverage"]["basis"] == "phases"


@pytest.mark.parametrize("name", ["gpt2.snapshot", "gpt2.snapshot_with_cpp"])
def test_pytorch_snapshot_is_classified_by_stacks(observed, name: str) -> None:
    """Without phases and owners, functions identify forward and optimizer; no Python, or the C++ engine, identifies backward."""
    one = observed[name]
    assert not (one.trace.events.phase >= 0).any() and not one.trace.owners
    assert right(one)[0] > RIGHT - 0.01
    summarized = summary(one.trace)
    assert summarized["coverage"]["basis"] == "stacks"
    assert summarized["coverage"]["unknown_fraction"] < MOST_UNKNOWN
    read = with_phases(one.trace)
    assert sorted(set(read.events.step)) == [1, 2, 3]
    without = dataclasses.replace(one.trace, frames={}, stacks=Stacks.of([]), words=[])
    lives = dataclasses.replace(without.lives, stack=np.full(len(without.lives), -1))
    without.__dict__["lives"] = lives
    assert set(np.array(CATEGORIES)[categories_of(without)]) == {"unknown"}, "and without stacks nothing is made up"


def test_owner_of_another_lifetime_is_ignored(observed) -> None:
    """Addresses are reused: only the allocation at that event has the owner."""
    trace = observed["gpt2"].trace
    moved = {**trace.owners, "address": trace.owners["address"] + 64}
    assert not (ownership_of(dataclasses.replace(trace, owners=moved)).category >= 0).any()
    before = {**trace.owners, "event": np.zeros_like(trace.owners["event"])}
    of = ownership_of(dataclasses.replace(trace, owners=before))
    assert set(trace.lives.alloc_event[of.category >= 0]) == {-1}


def test_trace_without_events_has_unknown_categories(observed) -> None:
    trace = observed["gan"].trace
    none = dataclasses.replace(
        trace,
        events=dataclasses.replace(
            trace.events, **{one.name: getattr(trace.events, one.name)[:0] for one in dataclasses.fields(trace.events)}
        ),
        end=trace.start,
        owners={},
    )
    summarized = summary(none)
    assert summarized["phase"] is None and summarized["event"] == -1
    assert summarized["allocated_bytes"] == trace.start.allocated_bytes == summarized["coverage"]["unknown_bytes"]
    assert set(categories_of(none)) <= {UNKNOWN}
