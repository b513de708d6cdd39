"""Snapshot files of programs that record in unusual ways, against the allocator's own counters."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.ownership.categories import WORKSPACES, categories_of
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.frames import is_native
from vramscope_server.analysis.trace.missing_events import missing_event_notes
from vramscope_server.analysis.trace.trace import Trace, reserved_after
from vramscope_server.analysis.whatif.baseline_replay import check
from vramscope_server.analysis.whatif.program import derivation_of
from vramscope_server.analysis.whatif.sweep import sweep

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def taken(mib: float) -> Any:
    import torch

    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def trace_of(tree: Any) -> Trace:
    (one,) = (trace for trace in read(pickle.dumps(tree)).devices if trace.device == 0)
    return one


@pytest.fixture
def record() -> Iterator[Callable[..., None]]:
    """Switches PyTorch's own history on, from a cache that is empty."""
    import torch

    gc.collect()
    torch.empty(1, device="cuda")
    torch.cuda.empty_cache()

    def begin(**options: Any) -> None:
        torch.cuda.memory._record_memory_history(stacks="python", **options)
        torch.cuda.reset_peak_memory_stats()

    yield begin
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed"])
def test_a_history_that_tells_one_half_of_each_free_is_replayed_to_the_byte(record, skipped: str) -> None:
    import torch

    record(skip_actions=[skipped])
    held: list[Any] = []
    for turn in range(30):
        held.append(taken((0.3, 3, 21.3, 1.2, 12)[turn % 5]))
        del held[: len(held) - 4]
    trace = trace_of(torch.cuda.memory._snapshot())
    assert ACTIONS.index(skipped) not in trace.events.action
    residual = check(trace)
    assert residual.exact, residual.words


def test_a_run_that_failed_at_its_own_limit_is_told_to_have_failed(record) -> None:
    """The file tells no limit; that a request failed while the device had room does."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 200 * MIB) / total)
    record()
    held = [taken(30) for _ in range(4)]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        taken(300)
    trace = trace_of(torch.cuda.memory._snapshot())
    peak = torch.cuda.max_memory_reserved()
    del held
    assert trace.device_total_bytes is None and trace.limit_bytes is None
    swept = sweep(trace, ["expandable_segments:True"])
    own, other = (row.prediction for row in swept.rows)
    assert (own.peak_reserved_bytes, own.out_of_memory, own.certainty) == (peak, True, "exact")
    assert other.out_of_memory and other.certainty == "estimate", "what did not fit does not fit under other settings"
    assert own.uncapped_peak_reserved_bytes == peak + 300 * MIB, "so large a card would have done"


def test_memory_that_was_given_back_as_by_a_retry_is_no_exact_ground_for_other_settings(record) -> None:
    """empty_cache() just before a request that nothing cached would have served, at the peak: nothing tells it from a retry."""
    import torch

    stream = torch.cuda.Stream()
    record()
    held, free = taken(30), taken(40)
    del free
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        held = [held, taken(50)]
    trace = trace_of(torch.cuda.memory._snapshot())
    peak = torch.cuda.max_memory_reserved()
    del held
    derived = derivation_of(trace)
    assert len(derived.releases) == 1 and derived.releases_are_guessed
    own, other = (row.prediction for row in sweep(trace, ["max_split_size_mb:64"]).rows)
    assert (own.peak_reserved_bytes, own.certainty) == (peak, "exact")
    assert other.certainty == "estimate"
    assert any("it is assumed that this made room" in reason for reason in other.reasons)


def test_events_without_a_pool_are_in_that_of_their_segment(record) -> None:
    """As before PyTorch 2.13, which tells it of segments alone. What the replay does there needs it."""
    import torch

    if "max_round_threshold" not in torch.cuda.memory._snapshot()["allocator_settings"]:
        pytest.skip("this PyTorch writes no event with a pool to compare with")
    record()
    held = [taken(3), taken(30)]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held += [taken(5), taken(30), taken(0.2)]
        del held[3]
        held.append(taken(28))
    held.append(taken(14))
    tree = torch.cuda.memory._snapshot()
    new = trace_of(tree)
    for events in tree["device_traces"]:
        for event in events:
            event.pop("pool_id", None)  # PyTorch before 2.13 does not write it
    del tree["allocator_settings"]["max_round_threshold"]
    old = trace_of(tree)
    assert (new.torch, old.torch) == ("2.13 or newer", "2.12 or older")
    there = new.events.pool > 0
    assert there.any() and (old.events.pool[there] == new.events.pool[there]).all()
    assert (old.events.pool[~there] <= 0).all()
    assert (old.lives.pool == new.lives.pool).all()
    residual = check(old)
    assert residual.exact, residual.words
    assert int(reserved_after(old).max()) == torch.cuda.max_memory_reserved()
    del held


def test_a_history_that_begins_late_says_what_was_in_use_then(record) -> None:
    import torch

    held = [taken(12)]
    record(max_entries=20)
    for turn in range(30):
        held.append(taken(0.5 + turn % 3))
        del held[1:-2]
    trace = trace_of(torch.cuda.memory._snapshot())
    before = int(trace.lives.size_bytes[trace.lives.alloc_event < 0].sum())
    assert before >= 12 * MIB
    (result,) = missing_event_notes(trace)
    assert result.startswith(f"{before / MIB:.1f} MiB were allocated before the first event")
    del held


def test_small_pages_that_are_unmapped_at_once_are_those_of_a_small_segment(record) -> None:
    """Four pages of 2 MiB go as one range of 8; a block that lay across the first of them was there when the history began."""
    import torch

    def sets(text: str) -> None:
        getattr(torch._C, "_accelerator_setAllocatorSettings", torch.cuda.memory._set_allocator_settings)(text)

    torch.cuda.empty_cache()
    sets("expandable_segments:True")
    try:
        with torch.cuda.stream(torch.cuda.Stream()):  # whose pool has no pieces that earlier tests left
            held = [taken(0.7) for _ in range(14)]
        before = torch.cuda.memory_allocated()
        record()
        del held[1:]
        torch.cuda.empty_cache()
        trace = trace_of(torch.cuda.memory._snapshot())
        assert ACTIONS.index("segment_unmap") in trace.events.action
        assert trace.beginning.allocated_bytes == before
        residual = check(trace)
        assert residual.exact, residual.words
        held.clear()
    finally:
        sets("expandable_segments:False")


def test_many_blocks_of_a_workspaces_size_are_no_workspaces(record) -> None:
    """Weights of a layer 4,096 wide in 16 bits have the size of a cuBLAS workspace."""
    weights = [taken(32) for _ in range(6)]
    record()
    for _ in range(4):
        taken(1)
    found = categories_of(trace_of(snapshot())) == WORKSPACES
    lives = trace_of(snapshot()).lives
    assert not found[lives.requested_bytes == 32 << 20].any()
    assert len(weights) == 6


def snapshot() -> Any:
    import torch

    return torch.cuda.memory._snapshot()


@pytest.mark.parametrize(
    ("file", "native"),
    [
        *(("thread48.o", True), ("libtorch_cpu.so.2", True), ("model.cxx", True), ("??", True)),
        *(("train.py", False), ("<stdin>", False), ("/usr/local/bin/train", False)),
    ],
)
def test_object_files_are_no_python(file: str, native: bool) -> None:
    assert is_native(file) == native
