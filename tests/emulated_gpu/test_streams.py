"""Streams, events and CUDA graphs, as far as the allocator notices them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from vramscope_emulated_gpu.symbols import driver_functions_of_triton


def test_a_graph_keeps_its_memory_in_a_private_pool():
    """Segments of a captured graph carry its pool, and come back when the graph is reset."""
    x = torch.randn(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        z = y + 1
    graph.replay()
    private = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0)]
    assert sum(s["allocated_size"] for s in private) >= y.nbytes + z.nbytes
    del y, z
    graph.reset()
    torch.cuda.empty_cache()
    assert all(s["segment_pool_id"] == (0, 0) for s in torch.cuda.memory_snapshot())


def test_the_driver_knows_which_streams_are_captured():
    """Triton asks the driver, where PyTorch asks the runtime."""
    driver, status, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1), []
    x = torch.randn(8, device="cuda")

    def ask() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert driver.cuStreamIsCapturing(stream, ctypes.byref(status)) == 0
        found.append(status.value)

    ask()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1
        ask()
    ask()
    assert found == [0, 1, 0]


def test_the_driver_has_each_function_that_triton_calls():
    """Triton compiles its part at its first kernel. A missing function would end each program with torch.compile."""
    pytest.importorskip("triton")
    names = driver_functions_of_triton(Path(torch.__file__).parents[1])
    driver = ctypes.CDLL("libcuda.so.1")
    assert "cuModuleLoadData" in names
    assert [name for name in sorted(names) if not hasattr(driver, name)] == []


def test_a_recorded_stream_delays_the_free(run_python):
    """With work in flight, a block that another stream used is free only after that stream's event."""
    shown = run_python(
        """
        import time, torch
        side = torch.cuda.Stream()
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        x.record_stream(side)
        del x
        held = torch.cuda.memory_stats()["active_bytes.all.current"] >> 20
        time.sleep(0.3)
        torch.empty(1, device="cuda")  # the allocator looks at its events when it is asked for memory
        print(held, torch.cuda.memory_stats()["active_bytes.all.current"] >> 20)
        """,
        EMULATED_GPU_ASYNC_US="200000",
    )
    assert shown.split() == ["64", "0"]


def test_events_measure_time():
    """elapsed_time is the host's clock between two records."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    torch.cuda.synchronize()
    assert 0 <= first.elapsed_time(second) < 1000
