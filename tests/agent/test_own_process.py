"""This process among those of NVML, when their numbers are those of another namespace: pure cases, and a fake of NVML."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.memory.nvml import Nvml, Running
from vramscope.memory.own_process import ProcessMemory, find_own
from vramscope.process.identity import uuid_of
from vramscope.protocol.series import UNKNOWN

MIB = 1 << 20
UUID = "GPU-11111111-2222-3333-4444-555555555555"
UNFOUND = ProcessMemory()


def test_its_own_number_counts() -> None:
    assert find_own({7: 900, 8: 100}, 7, 800, 1000) == (900, 100, 7)
    assert find_own({7: 900, 8: 100}, 7, None, None) == (900, 100, 7)
    assert find_own({7: None, 8: 100}, 7, 800, 1000) == (UNKNOWN, 100, 7), "Windows reports no memory of processes"
    assert find_own({7: 900, 8: None}, 7, 800, 1000) == (900, UNKNOWN, 7)


def test_in_a_container_the_only_process_with_enough_memory_is_ours() -> None:
    assert find_own({40_001: 900}, 7, 800, 950) == (900, 0, 40_001)
    assert find_own({40_001: 900, 40_002: 300}, 7, 800, 1250) == (900, 300, 40_001)


@pytest.mark.parametrize(
    ("running", "reserved", "used", "why"),
    [
        ({40_001: 900, 40_002: 850}, 800, 1800, "two may be ours"),
        ({40_001: 900}, 800, 1800, "a process that is not listed may be ours"),
        ({40_001: 900, 40_002: None}, 800, 950, "one may have more"),
        ({40_001: 900}, 0, 950, "nothing is reserved"),
        ({40_001: 900}, None, 950, "what is reserved is unknown"),
        ({40_001: 900}, 800, None, "what is used is unknown"),
        ({}, 800, 900, "none is listed"),
    ],
)
def test_otherwise_it_is_unknown(
    running: dict[int, int | None], reserved: int | None, used: int | None, why: str
) -> None:
    assert find_own(running, 7, reserved, used) == UNFOUND, why


def test_another_process_with_the_same_number_is_not_ours() -> None:
    assert find_own({7: 100, 40_001: 900}, 7, 800, 1050) == UNFOUND, "or ours, which has released memory since"
    assert find_own({7: 100}, 7, 800, 1050) == UNFOUND


@given(
    others=st.lists(st.integers(0, 5000), max_size=5),
    reserved=st.integers(1, 3000),
    context=st.integers(0, 600),
    driver=st.integers(0, 300),
    is_listed=st.booleans(),
    hidden=st.lists(st.integers(0, 5000), max_size=2),
    number=st.sampled_from([7, 40_000]),
)
def test_memory_of_others_is_never_called_ours(
    others: list[int], reserved: int, context: int, driver: int, is_listed: bool, hidden: list[int], number: int
) -> None:
    """A hidden process of others cannot mislead either: its memory is then missing in the sum."""
    ours = reserved + context
    running: dict[int, int | None] = {number + at + 1: size for at, size in enumerate(others)}
    if is_listed:
        running[number] = ours
    used = sum(others) + sum(hidden) + ours + driver
    found = find_own(running, 7, reserved, used)
    assert found.own_pid in ((number, None) if is_listed else (None,))


class Refused(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> Nvml:
    """NVML as a driver answers it; a function that is missing is not supported."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused(3)

    names = (
        "nvmlDeviceGetMemoryInfo nvmlDeviceGetUtilizationRates nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage "
        "nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetHandleByUUID"
    )
    module = SimpleNamespace(
        NVMLError=Refused,
        NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_FUNCTION_NOT_FOUND=13,
        NVML_TEMPERATURE_GPU=0,
        nvmlMemory_v2=2,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        **dict.fromkeys(names.split(), refuse) | functions,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return Nvml()


def listed(**sizes: int | None) -> list[Any]:
    return [SimpleNamespace(pid=int(name.lstrip("p")), usedGpuMemory=size) for name, size in sizes.items()]


def test_nvml_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has 40001 for this process, and a small one of others beside it."""
    nvml = fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle, version: SimpleNamespace(used=1300 * MIB),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: listed(p40001=900 * MIB, p40002=300 * MIB),
    )
    assert os.getpid() not in (40001, 40002)
    reading = nvml.read(UUID, 800 * MIB)
    assert (reading.process_device_bytes, reading.others_device_bytes) == (900 * MIB, 300 * MIB)
    assert nvml.own_process(UUID, 800 * MIB).own_pid == 40001
    assert nvml.newest == {UUID: Running(40001, {40001: 900 * MIB, 40002: 300 * MIB})}
    assert nvml.read(UUID, 200 * MIB).process_device_bytes == UNKNOWN, "both have enough"
    assert nvml.newest == {}, "which of them are others is unknown"
    assert nvml.read(UUID).process_device_bytes == UNKNOWN


SLICE = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("name", "visible", "uuid"),
    [
        ("NVIDIA H100 80GB HBM3", "", UUID),
        ("NVIDIA H100 80GB HBM3", SLICE.replace("1", "9"), UUID),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "", SLICE),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "0", SLICE),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-1111", SLICE),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", SLICE.replace("1", "9") + ",MIG-2", SLICE.replace("1", "9")),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", f"MIG-{UUID}/3/0", f"MIG-{UUID}/3/0"),
    ],
)
def test_a_slice_has_its_own_uuid(name: str, visible: str, uuid: str) -> None:
    properties = SimpleNamespace(name=name, uuid=UUID.removeprefix("GPU-"))
    assert uuid_of(properties, {"CUDA_VISIBLE_DEVICES": visible}) == uuid


def test_nvml_of_a_slice_is_never_that_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice reports its own memory and processes, and no power: that is the card's."""

    def handle_of(uuid: str) -> str:
        if uuid not in (UUID, SLICE):
            raise Refused(6)  # not found
        return uuid

    sizes = {UUID: 30_000 * MIB, SLICE: 1000 * MIB}
    nvml = fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID=handle_of,
        nvmlDeviceGetMemoryInfo=lambda handle, version: SimpleNamespace(used=sizes[handle]),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: listed(p40001=sizes[handle]),
    )
    reading = nvml.read(SLICE, 800 * MIB)
    assert (reading.device_used_bytes, reading.process_device_bytes) == (1000 * MIB, 1000 * MIB)
    assert reading.power_milliwatts == UNKNOWN
    assert set(nvml.read(SLICE.replace("1", "9"), 800 * MIB)) == {UNKNOWN}, "not known to this NVML"


def test_nvml_without_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """GB10 and Jetson share the host's memory, and their NVML reports none."""
    nvml = fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: listed(p40001=900 * MIB),
    )
    reading = nvml.read(UUID, 800 * MIB)
    assert set(reading) == {UNKNOWN}
