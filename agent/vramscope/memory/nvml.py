"""Reads a device by NVML: used bytes of the whole device and of this process, utilization, temperature and power.

NVML is a library of the driver. If it is missing, all values are UNKNOWN, and the page says so.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from vramscope.memory.own_process import ProcessMemory, find_own
from vramscope.protocol.series import UNKNOWN


class DeviceReading(NamedTuple):
    device_used_bytes: int = UNKNOWN
    process_device_bytes: int = UNKNOWN
    gpu_utilization_percent: int = UNKNOWN
    temperature_celsius: int = UNKNOWN
    power_milliwatts: int = UNKNOWN
    others_device_bytes: int = UNKNOWN


NOT_KNOWN = DeviceReading()


class Running(NamedTuple):
    """Processes on a device."""

    own_pid: int
    """Number of this process as NVML reports it."""
    bytes_by_pid: dict[int, int | None]


class Nvml:
    """Reads devices by their UUID, because CUDA_VISIBLE_DEVICES changes the device numbers in this process.

    A value that a device does not report (power on some laptops) is UNKNOWN; the others are still read.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._refused: set[tuple[str, str]] = set()
        self.newest: dict[str, Running] = {}
        """Processes of the last reading, by device; none where they or this process are unknown."""
        self.driver: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
        except (ImportError, OSError):
            return
        except pynvml.NVMLError:
            return
        self._nvml = pynvml
        self.driver = self._ask("", "driver", pynvml.nvmlSystemGetDriverVersion)

    @property
    def available(self) -> bool:
        return self._nvml is not None

    def read(self, uuid: str, reserved_bytes: int | None = None) -> DeviceReading:
        """Read one device; ``uuid`` has the form ``GPU-xxxxxxxx-…``. Takes 20 µs to some milliseconds, without the GIL.

        reserved_bytes  What PyTorch has reserved on the device: it finds this process where NVML has other numbers of processes.
        """
        handle = self._handle(uuid)
        if handle is None:
            return NOT_KNOWN
        nvml = self._nvml
        memory = self._ask(uuid, "memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        use = self._ask(uuid, "utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        heat = self._ask(uuid, "temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        power = self._ask(uuid, "power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        used = None if memory is None else int(memory.used)
        running = dict(self.processes(uuid) or ())
        by_process = find_own(running, os.getpid(), reserved_bytes, used)
        if by_process.own_pid is None:
            self.newest.pop(uuid, None)
        else:
            self.newest[uuid] = Running(by_process.own_pid, running)
        return DeviceReading(
            UNKNOWN if used is None else used,
            by_process.own_bytes,
            UNKNOWN if use is None else int(use.gpu),
            UNKNOWN if heat is None else int(heat),
            UNKNOWN if power is None else int(power),
            by_process.others_bytes,
        )

    def processes(self, uuid: str) -> list[tuple[int, int | None]] | None:
        """Return (pid, bytes) of each process that computes on the device; None if NVML does not report them."""
        handle = self._handle(uuid)
        if handle is None:
            return None
        running = self._ask(uuid, "processes", lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if running is None:
            return None
        return [(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory)) for p in running]

    def own_process(self, uuid: str, reserved_bytes: int | None) -> ProcessMemory:
        """Memory of this process and of all others, and this process's number as NVML reports it."""
        reading = self._ask(
            uuid,
            "memory",
            lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid), version=self._nvml.nvmlMemory_v2),
        )
        running = dict(self.processes(uuid) or ())
        return find_own(running, os.getpid(), reserved_bytes, None if reading is None else int(reading.used))

    def _handle(self, uuid: str) -> Any:
        if self._nvml is None:
            return None
        if uuid not in self._handles:
            self._handles[uuid] = self._ask(uuid, "handle", lambda: self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        return self._handles[uuid]

    def _ask(self, uuid: str, what: str, question: Any) -> Any:
        """Return the result of ``question``, or None at an error. An unsupported query is not repeated."""
        if (uuid, what) in self._refused:
            return None
        try:
            answer = question()
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._refused.add((uuid, what))
            return None
        return answer.decode() if isinstance(answer, bytes) else answer
