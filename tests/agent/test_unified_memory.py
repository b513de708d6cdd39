"""Memory in use on a device that shares the host's memory: fakes of NVML and of CUDA's answer, real captures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vramscope.memory.nvml import NOT_KNOWN
from vramscope.memory.unified_memory import GraphCaptures, is_unified
from vramscope.process.notices import Notice
from vramscope.protocol.series import UNKNOWN
from vramscope.sampling.sampler import Sampler
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.patches import cuda_graphs
from vramscope.transport.ring import Ring

GIB = 1 << 30


@pytest.fixture
def cuda_reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices of which CUDA was asked; each has 119 of 128 GiB free."""
    asked: list[int] = []

    def answer(device: int) -> tuple[int, int]:
        asked.append(device)
        return 119 * GIB, 128 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", answer)
    return asked


@pytest.mark.parametrize(
    ("nvml_used", "is_integrated", "expected"),
    [(UNKNOWN, True, 9 * GIB), (5 * GIB, True, 5 * GIB), (UNKNOWN, False, UNKNOWN)],
    ids=["NVML reports none", "NVML reports it", "a card"],
)
def test_cuda_is_asked_where_nvml_reports_no_memory(
    cuda_reports: list[int], nvml_used: int, is_integrated: bool, expected: int
) -> None:
    sampler = Sampler(interval_ms=100, clock=StepClock(), ring=Ring(100), on_devices=lambda _: None)
    reading = NOT_KNOWN._replace(device_used_bytes=nvml_used)
    sampler.nvml = SimpleNamespace(read=lambda *_: reading, newest={})  # type: ignore[assignment]
    sampler._uuids[0] = "GPU-x"
    if is_unified(SimpleNamespace(is_integrated=is_integrated)):
        sampler._unified.add(0)
    reading = sampler._read_devices({0: {"reserved_bytes": {"all": {"current": 0}}}})[0]
    assert reading.device_used_bytes == expected
    assert cuda_reports == ([0] if expected == 9 * GIB else [])


def test_properties_of_older_versions_of_pytorch_have_no_such_field() -> None:
    assert not is_unified(SimpleNamespace())


@pytest.mark.gpu
def test_cuda_is_not_asked_while_a_graph_is_captured(
    emulated_gpu: None, cuda_reports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = GraphCaptures()
    monkeypatch.setattr(cuda_graphs, "CAPTURES", captures)
    hooks = LoopHooks(StepClock())
    notice = Notice(lambda _: None, lambda: 0, cuda_graphs.UNSEEN)
    cuda_graphs.ReplayPatch(hooks, notice).install()
    try:
        graph, buffer = torch.cuda.CUDAGraph(), torch.zeros(16, device="cuda")
        assert captures.used_bytes(0) == 9 * GIB
        with torch.cuda.graph(graph):
            buffer + 1
            during = captures.used_bytes(0)
        assert during == UNKNOWN and cuda_reports == [0]
        with pytest.raises(RuntimeError, match="stopped"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            raise RuntimeError("stopped")
        assert captures.used_bytes(0) == 9 * GIB, "the failed capture has ended, too"
    finally:
        hooks.patches.remove()
        del graph, buffer
