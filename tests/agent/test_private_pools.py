"""What a training's CUDA graphs keep, and what others have of its card, from the sampler to the wire."""

import pytest
from training import Arrived, run

pytestmark = pytest.mark.gpu

CAPTURED = """
agent.attach(model, interval_ms=20, windows=False)
train(2); time.sleep(0.2)
graph, buffer = torch.cuda.CUDAGraph(), torch.zeros(1 << 20, device="cuda")
with torch.cuda.graph(graph):
    result = (buffer + 1) * 2
train(2); time.sleep(0.2)
print("known", "reserved_bytes_by_private_pools" in torch._C._cuda_memoryStats(0))
"""


def test_private_pools_are_told_from_the_capture_on(collector, spool) -> None:
    printed = run(CAPTURED, collector, spool)
    rows = [row for row in Arrived(collector).rows("samples") if row["device"] == 0]
    if "known False" in printed:
        assert not any("private_pools_bytes" in row for row in rows), "unknown, not nothing"
        return
    first, last = rows[0], rows[-1]
    assert first["private_pools_bytes"] == 0 and "private_active_bytes" not in first
    assert 0 < last["private_requested_bytes"] <= last["private_active_bytes"] < last["private_pools_bytes"]
    assert last["private_pools_bytes"] <= last["reserved_bytes"]
    assert 0 < last["private_inactive_split_bytes"] <= last["inactive_split_bytes"]


def test_what_others_have_of_the_card_is_the_sum_of_what_each_is_told_to_have() -> None:
    import os

    import torch

    from vramscope.memory.nvml import Nvml
    from vramscope.protocol.series import UNKNOWN

    torch.zeros(1, device="cuda")
    nvml = Nvml()
    if not nvml.available:
        pytest.skip("no NVML")
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    fields = dict(nvml.processes(uuid) or ())
    reading = nvml.read(uuid)
    if os.getpid() not in fields:
        assert reading.process_device_bytes == reading.others_device_bytes == UNKNOWN
        return
    assert reading.process_device_bytes == fields.pop(os.getpid())
    assert reading.others_device_bytes == sum(used or 0 for used in fields.values())
