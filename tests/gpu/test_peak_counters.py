"""Truth 1: each interval's peak is the allocator's own, and the user's counters stay what they would be without us."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

pytestmark = pytest.mark.gpu

OPERATIONS = textwrap.dedent(
    """
    import json, random, sys
    import torch

    cutting = sys.argv[1] == "cutting"
    if cutting:
        from vramscope.memory.peak_counters import share_peak_counters
    torch.empty(1, device="cuda")
    counter = share_peak_counters().watch(0) if cutting else None
    seen, cuts = [], 0
    for seed in range(8):
        random.seed(seed)
        held = []
        for number in range(300):
            choice = random.random()
            if choice < 0.45:
                held.append(torch.empty(random.choice((100, 5_000, 300_000, 3_000_000, 30_000_000)), device="cuda"))
            elif choice < 0.8 and held:
                held.pop(random.randrange(len(held)))
            elif choice < 0.84:
                torch.cuda.empty_cache()
            elif choice < 0.88:
                torch.cuda.reset_peak_memory_stats()
            elif choice < 0.9 and hasattr(torch.accelerator, "reset_peak_memory_stats"):
                torch.accelerator.reset_peak_memory_stats()
            elif choice < 0.95:
                stats = torch.cuda.memory_stats()
                seen.append([seed, number, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
                             {k: v for k, v in stats.items() if k.endswith(".peak")}])
                if hasattr(torch.accelerator, "max_memory_allocated"):
                    seen.append([seed, number, torch.accelerator.max_memory_allocated()])
            elif cutting:
                counter.cut()
                cuts += 1
    assert cuts > 50 or not cutting
    print(json.dumps(seen))
    """
)


def test_the_users_counters_read_the_same_with_and_without_the_agents_cuts() -> None:
    """Every peak of memory_stats(), over random allocations, frees, cache releases and the user's own resets."""

    def seen(how: str) -> list[object]:
        done = warm.run(OPERATIONS, arguments=[how])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    with_cuts, alone = seen("cutting"), seen("alone")
    assert len(alone) > 100
    assert with_cuts == alone


@pytest.fixture
def counter():
    import torch

    from vramscope.memory.peak_counters import share_peak_counters

    torch.empty(1, device="cuda")
    counter = share_peak_counters().watch(torch.cuda.current_device())
    counter.cut()
    return counter


def test_an_interval_has_the_exact_peak_of_what_lived_in_it(counter) -> None:
    """A transient that no sampler would see is in the peak of its interval, and in no other."""
    import torch

    resident = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    base = counter.cut()
    transient = torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
    del transient
    with_transient = counter.cut()
    after = counter.cut()

    assert with_transient.peak_allocated_bytes == base.allocated_bytes + (96 << 20)
    assert with_transient.allocated_bytes == base.allocated_bytes
    assert after.peak_allocated_bytes == base.allocated_bytes
    assert with_transient.reset_seen == 0
    del resident


def test_a_reset_through_pytorch_inside_an_interval_is_seen_and_costs_no_exactness(counter) -> None:
    import torch

    base = counter.cut().allocated_bytes
    transient = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    del transient
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == base

    interval = counter.cut()
    assert interval.peak_allocated_bytes == base + (64 << 20)
    assert interval.reset_seen == 1
    assert torch.cuda.max_memory_allocated() == base, "the user's reset stands after our cut"


def test_a_reset_behind_pytorchs_functions_is_found_out_where_a_sample_saw_more(counter) -> None:
    import torch

    base = counter.cut().allocated_bytes
    transient = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    counter.sample()
    del transient
    counter._reset(counter.device)  # what a C++ extension would do

    interval = counter.cut()
    assert interval.reset_seen == 2
    assert interval.peak_allocated_bytes == base + (64 << 20)


def test_a_user_reset_forgets_what_was_carried_before_it(counter) -> None:
    import torch

    transient = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    del transient
    counter.cut()
    assert torch.cuda.max_memory_allocated() >= 128 << 20, "carried over our reset"
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def test_the_private_pools_of_cuda_graphs_are_carried_too(counter) -> None:
    """torch 2.13 counts them by pool; before, there is nothing to carry. Either way the user's reading works."""
    import torch

    inputs = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = inputs * 2 + 1
    counter.cut()
    counter.cut()
    private = torch._C._cuda_memoryStats(0).get("reserved_bytes_by_private_pools")
    if private:
        pools = list(private.values())  # a test before this one may have left a pool of its own
        assert any(pool["all"]["current"] > 0 for pool in pools)
        assert all(pool["all"]["peak"] >= pool["all"]["current"] for pool in pools)
        assert any(pool["all"]["peak"] == pool["large_pool"]["peak"] + pool["small_pool"]["peak"] > 0 for pool in pools)
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= torch.cuda.memory_allocated()
    graph.replay()
    del output, graph
