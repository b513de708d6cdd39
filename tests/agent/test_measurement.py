"""``vramscope.measure()``: exact, nested, in several threads, with and without an agent."""

from __future__ import annotations

import threading

import pytest
import torch

import vramscope
from vramscope.guard import guard
from vramscope.memory.peak_counters import share_peak_counters

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def megabytes(n: int) -> torch.Tensor:
    return torch.empty(n * MIB, dtype=torch.uint8, device="cuda")


def test_a_block_has_its_peak_and_what_it_retains(emulated_gpu: None) -> None:
    before = megabytes(64)
    high = megabytes(256)
    del high  # a higher peak, before the block
    with vramscope.measure() as m:
        short = megabytes(100)
        kept = megabytes(8)
        del short
    assert (m.added_bytes, m.retained_bytes) == (108 * MIB, 8 * MIB)
    assert m.peak_bytes == m.start_bytes + 108 * MIB
    assert m.end_bytes == torch.cuda.memory_allocated()
    assert m.peak_reserved_bytes >= m.peak_bytes
    assert (m.device, m.failed) == (0, False)
    assert "108 MiB above the start; 8.00 MiB stay allocated" in repr(m)
    del before, kept


def test_blocks_in_one_another_are_each_exact(emulated_gpu: None) -> None:
    with vramscope.measure() as outer:
        first = megabytes(200)
        del first
        with vramscope.measure() as inner:
            second = megabytes(50)
            del second
        with vramscope.measure() as highest:
            third = megabytes(300)
            del third
    assert [one.added_bytes for one in (outer, inner, highest)] == [300 * MIB, 50 * MIB, 300 * MIB]
    assert outer.retained_bytes == 0


def test_the_users_own_counters_read_as_without_it(emulated_gpu: None) -> None:
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    high = megabytes(120)
    del high
    with vramscope.measure() as m:
        low = megabytes(20)
        assert torch.cuda.max_memory_allocated() == start + 120 * MIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == start + 20 * MIB
        del low
        least = megabytes(2)
        assert torch.cuda.max_memory_allocated() == start + 20 * MIB
        del least
    assert m.added_bytes == 20 * MIB
    assert torch.cuda.max_memory_allocated() == start + 20 * MIB


def test_an_agents_interval_keeps_its_peak(emulated_gpu: None) -> None:
    """What the agent reads at the end of a phase is the same, whether something was measured within it or not."""
    torch.cuda.init()  # it may be the first test of its process
    counter = share_peak_counters().watch(0)
    counter.cut()
    start = torch.cuda.memory_allocated()
    high = megabytes(150)
    del high
    with vramscope.measure() as m:
        low = megabytes(30)
        del low
    assert counter.peak_now() == start + 150 * MIB
    cut = counter.cut()
    assert (cut.peak_allocated_bytes, cut.reset_seen) == (start + 150 * MIB, 0)
    assert counter.cut().peak_allocated_bytes == start
    assert m.added_bytes == 30 * MIB


def test_a_cut_of_the_agent_within_a_block_loses_nothing(emulated_gpu: None) -> None:
    torch.cuda.init()  # it may be the first test of its process
    counter = share_peak_counters().watch(0)
    with vramscope.measure() as m:
        high = megabytes(90)
        del high
        counter.cut()
        low = megabytes(10)
        del low
    assert m.added_bytes == 90 * MIB


def test_blocks_of_several_threads_do_not_disturb_one_another(emulated_gpu: None) -> None:
    found: dict[str, vramscope.Measurement] = {}
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with vramscope.measure() as found["other"]:
            began.set()
            assert ended.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert began.wait(60)
    with vramscope.measure() as found["here"]:
        high = megabytes(40)
        del high
    ended.set()
    thread.join()
    assert found["here"].added_bytes == 40 * MIB
    assert found["other"].added_bytes == 40 * MIB, "the counters are those of the process"


def test_a_block_that_fails_is_measured_and_its_exception_passes(emulated_gpu: None) -> None:
    seen: list[vramscope.Measurement] = []
    with pytest.raises(torch.OutOfMemoryError), vramscope.measure(report=seen.append):
        high = megabytes(70)
        megabytes(1 << 24)
    assert [(m.failed, m.added_bytes) for m in seen] == [(True, 70 * MIB)]
    del high


def test_a_report_that_fails_does_not_replace_the_blocks_exception(
    emulated_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "raise_faults", False)

    def report(m: vramscope.Measurement) -> None:
        raise OSError("closed")

    with pytest.raises(torch.OutOfMemoryError), vramscope.measure(report=report):
        megabytes(1 << 24)
    with pytest.raises(OSError, match="closed"), vramscope.measure(report=report):
        pass


def test_a_function_is_measured_at_each_call(emulated_gpu: None) -> None:
    seen: list[int | None] = []

    @vramscope.measure(report=lambda m: seen.append(m.added_bytes))
    def step(n: int, *, deeper: int = 0) -> int:
        """Documentation of its own."""
        part = megabytes(n)
        if deeper:
            step(deeper)
        return part.numel()

    assert step.measured is None
    assert step(4, deeper=2) == 4 * MIB
    assert seen == [2 * MIB, 6 * MIB]
    assert step.measured.added_bytes == 6 * MIB
    assert (step.__name__, step.__doc__) == ("step", "Documentation of its own.")


def test_what_cannot_be_measured_is_refused_with_a_reason(emulated_gpu: None) -> None:
    with pytest.raises(ValueError, match="must be a CUDA device"), vramscope.measure("cpu"):
        pass
    with pytest.raises(ValueError, match="this process sees 1 CUDA devices"), vramscope.measure(7):
        pass

    def batches():  # type: ignore[no-untyped-def]
        yield 1

    with pytest.raises(TypeError, match="batches is a generator"):
        vramscope.measure()(batches)
    block = vramscope.measure()
    with block, pytest.raises(RuntimeError, match="has not ended"), block:
        pass


def test_without_a_device_nothing_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with vramscope.measure() as m:
        assert "has not ended" in repr(m)
    assert (m.device, m.peak_bytes, m.added_bytes, m.retained_bytes) == (None, None, None, None)
    assert m.seconds is not None and "no counters of a CUDA device" in repr(m)
