"""NVML reads the same books: device memory, this process, and readings that tell busy from idle."""

from __future__ import annotations

import os

import pynvml
import pytest
import torch

pytestmark = pytest.mark.xdist_group("emulated-nvml")


@pytest.fixture
def device():
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def test_device_memory_falls_and_rises_with_the_allocator(device):
    """A tensor of 1 GiB is 1 GiB in NVML, and in its list under this process."""
    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")
    before = pynvml.nvmlDeviceGetMemoryInfo(device).used
    own_before = own_bytes(device)
    x = torch.empty(1 << 28, device="cuda")
    assert pynvml.nvmlDeviceGetMemoryInfo(device).used - before == 1 << 30
    assert own_bytes(device) - own_before == 1 << 30
    del x
    torch.cuda.empty_cache()
    assert pynvml.nvmlDeviceGetMemoryInfo(device).used <= before


def own_bytes(device):
    [used] = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if p.pid == os.getpid()]
    return used


def test_both_versions_of_memory_info_close(device):
    """used + free (+ reserved, in version 2) is the total, which is what the driver keeps above PyTorch's."""
    torch.empty(1, device="cuda")
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    assert first.used + first.free == first.total
    assert second.used + second.free + second.reserved == second.total == first.total
    assert second.total - second.reserved == torch.cuda.get_device_properties(0).total_memory


def test_nvml_and_torch_name_the_same_device(device):
    """By name, by UUID and by PCI address: the agent matches the two by UUID."""
    properties = torch.cuda.get_device_properties(0)
    assert pynvml.nvmlDeviceGetName(device) == properties.name
    uuid = pynvml.nvmlDeviceGetUUID(device)
    assert uuid == f"GPU-{properties.uuid}"
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
    assert pynvml.nvmlDeviceGetPciInfo(device).bus == properties.pci_bus_id


def test_readings_say_busy_after_a_kernel(device):
    """Utilisation, temperature and power, as torch.cuda gives them too."""
    torch.empty(8, device="cuda").add_(1)
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 97
    assert torch.cuda.utilization() == 97
    assert torch.cuda.temperature() == 62
    assert torch.cuda.power_draw() == 595_000


def test_readings_can_be_fixed(run_python):
    """For tests of pages that show them."""
    shown = run_python(
        "import torch; print(torch.cuda.utilization(), torch.cuda.temperature(), torch.cuda.power_draw())",
        EMULATED_GPU_UTIL="12",
        EMULATED_GPU_TEMP="50",
        EMULATED_GPU_POWER_W="333",
    )
    assert shown.split() == ["12", "50", "333000"]


@pytest.mark.parametrize(("model", "mib"), [("h100", 81079), ("h200", 143167), ("a100", 81050), ("t4", 15095)])
def test_each_model_has_the_memory_of_its_card(run_python, model, mib):
    """What PyTorch may use: NVML's total without what the driver keeps."""
    code = """
        import pynvml as n
        n.nvmlInit()
        memory = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0), version=n.nvmlMemory_v2)
        print((memory.total - memory.reserved) >> 20)
    """
    assert int(run_python(code, EMULATED_GPU_MODEL=model)) == mib
