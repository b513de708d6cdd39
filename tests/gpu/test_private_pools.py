"""What CUDA graphs keep: read of the real allocator, to the byte."""

from __future__ import annotations

import gc

import pytest

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SEEDS_BYTES = 4096
"""Most bytes that may differ: each graph has two numbers for random kernels in the common pool."""


def test_what_a_graph_keeps_is_told_with_what_of_it_is_in_use() -> None:
    import torch

    from vramscope.memory.private_pools import RESERVED, PrivatePools

    def stats() -> dict:  # type: ignore[type-arg]
        return torch._C._cuda_memoryStats(0)

    inputs = torch.zeros(8 * MIB, device="cuda", dtype=torch.uint8)
    if RESERVED not in stats():
        assert PrivatePools().read(0, stats()) == {}, "a torch that does not tell: unknown, not nothing"
        return
    pools = PrivatePools()
    first = torch.cuda.CUDAGraph()  # with it comes what all graphs share, in no private pool
    with torch.cuda.graph(first):
        kept_output = inputs + 1
    gc.collect()
    torch.cuda.empty_cache()
    before, seen = stats(), pools.read(0, stats())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        temporary = inputs + 1  # freed within: replays write there, and nobody else may
        output = (temporary + 1)[: 4 * MIB].clone()
        del temporary
    after, grown = stats(), pools.read(0, stats())

    def risen(name: str) -> int:
        return int(after[name]["all"]["current"] - before[name]["all"]["current"])

    assert grown["private_pools_bytes"] - seen["private_pools_bytes"] == risen("reserved_bytes") > 0
    for name in ("requested", "active", "inactive_split"):
        column = f"private_{name}_bytes"
        assert grown[column] > seen[column]
        assert grown[column] - seen[column] == pytest.approx(risen(f"{name}_bytes"), abs=SEEDS_BYTES), name
    kept = grown["private_pools_bytes"] - grown["private_active_bytes"]
    assert kept >= 8 * MIB, "what replays write to counts as free"
    del output, kept_output
    assert pools.read(0, stats()) == grown, "read now and then"
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    gone = pools.read(0, stats())
    assert gone["private_pools_bytes"] == seen["private_pools_bytes"], "read at once where the pools shrink"
    assert set(gone) == set(grown), "what was reported once stays reported, also where it is nothing"
