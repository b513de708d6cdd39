"""The thread that reads one sample per interval, and moves finished steps from the clock to the ring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vramscope.guard import guarded
from vramscope.memory.host import Host, PinnedMemoryReader
from vramscope.memory.nvml import NOT_KNOWN, DeviceReading, Nvml
from vramscope.memory.other_accelerator import OtherAccelerator, other_accelerator
from vramscope.memory.peak_counters import SharedPeakCounters, Stats, share_peak_counters
from vramscope.memory.private_pools import RESERVED, PrivatePools
from vramscope.memory.process_tree import TreeMemoryReader
from vramscope.memory.unified_memory import CAPTURES, is_unified
from vramscope.memory.unusable import UnusableReader
from vramscope.process import identity
from vramscope.process.redaction import Secrets
from vramscope.protocol import messages, series
from vramscope.protocol.other_process import OtherProcess
from vramscope.sampling.other_processes import OtherProcesses
from vramscope.sampling.overhead import OverheadMeter
from vramscope.sampling.step_blocks import packed, step_block
from vramscope.steps.clock import StepClock
from vramscope.steps.records import StepRecord
from vramscope.transport.ring import Ring

OVERHEAD_EVERY_S = 5.0
FIND_DEVICES_EVERY_S = 1.0
QUICK_S = 10.0
"""Time after the start in which finished steps are carried with each sample, as the sender is quick then, too."""
CARRY_EVERY_S = 0.5
"""Afterwards. Packing many rows at once takes less than half the time."""
NVML_SHARE = 0.1
"""Maximum share of the time for NVML. A slow device is read less often than once per interval."""


class Sampler:
    """Samples all devices ten times a second by default, at ``start + n * interval``. Late samples are skipped.

    on_devices   called with all watched devices when a new one is found (CUDA may be initialized after attach)
    on_sample    called with each row of a device, on the sampler's thread
    on_steps     called with the steps that have ended, on the sampler's thread
    """

    def __init__(
        self,
        *,
        interval_ms: int,
        clock: StepClock,
        ring: Ring,
        on_devices: Callable[[tuple[int, ...]], None],
        others_cpu_seconds: Callable[[], float] = lambda: 0.0,
        dropped_samples: Callable[[], int | None] = lambda: None,
        on_sample: Callable[[int, dict[str, int]], None] = lambda device, row: None,
        on_steps: Callable[[list[StepRecord]], None] = lambda steps: None,
        host: Host | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._ring = ring
        self._on_devices = on_devices
        self._others_cpu_seconds = others_cpu_seconds
        self._dropped_samples = dropped_samples
        self._on_sample, self._on_steps = on_sample, on_steps
        self._host = host or Host()
        self._others = OtherProcesses(ring.put, lambda: clock.step, secrets or Secrets())
        self.fragments = UnusableReader()
        self._private_pools = PrivatePools()
        self._pinned = PinnedMemoryReader()
        self._tree = TreeMemoryReader()
        self.at_ticks: Callable[[], None] = lambda: None
        """Called after each reading, on this thread."""
        self.nvml: Nvml | None = None
        self._overhead = OverheadMeter()
        self._shared: SharedPeakCounters | None = None
        self._uuids: dict[int, str | None] = {}
        self._unified: set[int] = set()
        """Devices that share the host's memory."""
        self._readings: dict[int, DeviceReading] = {}
        self._others_columns: dict[int, dict[str, int]] = {}
        self._read_nvml_from = 0.0
        self._find_devices_from = 0.0
        self._overhead_from = time.monotonic() + OVERHEAD_EVERY_S
        self._quick_until = time.monotonic() + QUICK_S
        self._carry_from = 0.0
        self._wall_offset_ns = time.time_ns() - time.perf_counter_ns()
        self._before_ns = time.perf_counter_ns()
        self._finding_devices = threading.Lock()
        self._watched_cpu = False
        self._is_unused = False
        """Whether CUDA is up, and this process has no memory on any device."""
        self._other = other_accelerator()
        self._other_devices: list[int] = []
        self._find_other_from = 0.0
        self._cuda_was_up = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-sampler", daemon=True)

    # -- from the training thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find devices, so that the first step is measured from its start, and start the thread."""
        self._cuda_was_up = cuda_is_up()
        self._find_devices()
        self._clock.find_devices = self._find_devices
        self._thread.start()
        self._tree.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread, and put the last steps and one last sample into the ring."""
        self._stop.set()
        self._tree.stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            with guarded("the last sample"):
                self._tick()
                self._others.finish()
                self._ring.put(self._overhead.message(self.cpu_seconds(), self._dropped_samples()))

    def wall_ns(self, perf_counter_ns: int) -> int:
        """Convert perf_counter_ns to nanoseconds since 1970. Changes of the host's clock have no effect."""
        return perf_counter_ns + self._wall_offset_ns

    def processes(self, device: int) -> tuple[int | None, list[OtherProcess]] | None:
        """Return the bytes of this process on a device, and all other processes on it, by NVML.

        None if NVML does not report processes, or if this one cannot be found among them. In a container the others have the
        pids of the host, and no names.
        """
        uuid = self._uuids.get(device)
        if self.nvml is None or uuid is None:
            return None
        running = dict(self.nvml.processes(uuid) or ())
        own_bytes = None if self._shared is None else held_bytes(self._shared.read(device))
        own = self.nvml.own_process(uuid, own_bytes).own_pid
        if own is None or own not in running:
            return None
        mine = running.pop(own)
        return mine, self._others.described(device, running, own)

    def cpu_seconds(self) -> float:
        """Return the processor time of this thread (until its last sample), of the tree's and of the sender's."""
        return self._own_cpu_seconds + self._tree.cpu_seconds + self._others_cpu_seconds()

    _own_cpu_seconds = 0.0
    _taken_before = 0.0
    """Processor time of both threads at the last Overhead message."""

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tick = guarded("the sampler")(self._tick)
        with guarded("NVML"):
            self.nvml = Nvml()
        due = time.monotonic()
        while not self._stop.is_set():
            tick()
            self._own_cpu_seconds = time.thread_time()
            now = time.monotonic()
            due += self._interval_s * max(1, int((now - due) / self._interval_s) + 1)
            self._stop.wait(max(0.0, due - now))

    def _tick(self) -> None:
        steps = self._clock.step  # read before the devices: what is found unused below was so in these steps
        self._is_unused = False
        if time.monotonic() >= self._find_devices_from:
            self._find_devices()
        if self._other is not None and time.monotonic() >= self._find_other_from:
            self._find_other_devices(self._other)
        counters = self._clock.counters
        if counters:
            read_ns = time.perf_counter_ns()
            counted = {counter.device: counter.sample() for counter in counters}
            readings = self._read_devices(counted)
            for device, stats in counted.items():
                columns = self._allocator_columns(device, stats) | readings.get(device, NOT_KNOWN)._asdict()
                self._ring.put(self._sample(device, columns, read_ns))
        elif self._other is not None and self._other_devices:
            for device in self._other_devices:
                read_ns = time.perf_counter_ns()
                self._ring.put(self._sample(device, self._other.read(device), read_ns))
        elif self._is_cpu_training(steps):
            self._ring.put(self._sample(series.CPU, {}, time.perf_counter_ns()))
        now = time.monotonic()
        if now >= self._carry_from or self._stop.is_set():
            self._carry_from = now + (0.0 if now < self._quick_until else CARRY_EVERY_S)
            self._carry_steps()
        self.at_ticks()
        if now >= self._overhead_from:
            taken = self.cpu_seconds()
            self._clock.threads_take((taken - self._taken_before) / (now - self._overhead_from + OVERHEAD_EVERY_S))
            self._overhead_from, self._taken_before = now + OVERHEAD_EVERY_S, taken
            self._ring.put(self._overhead.message(taken, self._dropped_samples()))

    def _allocator_columns(self, device: int, stats: Stats) -> dict[str, int]:
        """Return what CUDA's allocator has counted on a device."""
        row = {
            name: stats[array]["all"]["current"]
            for name, array in (
                ("allocated_bytes", "allocated_bytes"),
                ("reserved_bytes", "reserved_bytes"),
                ("active_bytes", "active_bytes"),
                ("requested_bytes", "requested_bytes"),
                ("inactive_split_bytes", "inactive_split_bytes"),
                ("segments", "segment"),
            )
        }
        row["alloc_retries"], row["ooms"] = stats["num_alloc_retries"], stats["num_ooms"]
        row["unusable_bytes"] = self.fragments.read(device)
        row.update(self._pinned.read()._asdict())
        return row | self._private_pools.read(device, stats)

    def _sample(self, device: int, columns: dict[str, int], read_ns: int) -> messages.Block:
        """Return the row of a device. ``columns``: its memory at ``read_ns``."""
        clock = self._clock
        row: dict[str, int] = {"step": clock.step}
        if clock.watched:
            row["phase"] = clock.phase
        row.update(columns)
        row["time_ns"] = self.wall_ns(read_ns)
        row.update(self._others_columns.pop(device, {}))
        row.update(self._host.read()._asdict() | self._tree.newest._asdict())
        self._on_sample(device, row)
        known = {name: packed((value,)) for name, value in row.items() if value != series.UNKNOWN}
        return messages.Block(stream="samples", device=device, rows=1, columns=known)

    def _read_devices(self, counted: dict[int, Stats]) -> dict[int, DeviceReading]:
        """Return NVML's values by device, or CUDA's for a device that shares the host's memory.

        Between two readings of a slow device they are unknown; old values are not repeated.
        """
        began = time.monotonic()
        if self.nvml is None or began < self._read_nvml_from:
            return {}
        readings = {}
        for device, stats in counted.items():
            uuid = self._uuids.get(device)
            if uuid is not None:
                readings[device] = self.nvml.read(uuid, held_bytes(stats))
                self._others_columns[device] = self._others.note(device, self.nvml.newest.get(uuid))
            before = readings.get(device, NOT_KNOWN)
            if device in self._unified and before.device_used_bytes == series.UNKNOWN:
                readings[device] = before._replace(device_used_bytes=CAPTURES.used_bytes(device))
        self._read_nvml_from = began + (time.monotonic() - began) / NVML_SHARE - self._interval_s
        return readings

    def _carry_steps(self) -> None:
        steps = self._clock.finished.take()
        if not steps:
            return
        self._on_steps(steps)
        for step in steps:
            self._overhead.add(step)
        # A device without counters of peaks has the steps' durations alone.
        without_peaks = tuple(self._other_devices[:1]) or (series.CPU,)
        for device in sorted({device for step in steps for device in step.devices or without_peaks}):
            mine = [step for step in steps if device in (step.devices or without_peaks)]
            self._ring.put(step_block(mine, self._end_before(mine[0], steps), device, self.wall_ns))
        self._before_ns = steps[-1].end_ns

    def _end_before(self, step: StepRecord, steps: list[StepRecord]) -> int:
        position = steps.index(step)
        return steps[position - 1].end_ns if position else self._before_ns

    # -- devices ------------------------------------------------------------------------------------------------------

    def _find_devices(self) -> None:
        """Watch every device on which this process has memory. Never initializes CUDA."""
        self._find_devices_from = time.monotonic() + (FIND_DEVICES_EVERY_S if self._clock.counters else 0.0)
        if not cuda_is_up() or not self._finding_devices.acquire(blocking=False):
            return
        try:
            self._watch_fresh_devices()
        finally:
            self._finding_devices.release()

    def _watch_fresh_devices(self) -> None:
        import torch

        if torch.cuda.get_allocator_backend() != "native":
            return  # cudaMallocAsync has no such counters
        self._shared = self._shared or share_peak_counters()
        watched = {counter.device for counter in self._clock.counters}
        fresh = [
            device
            for device in range(torch.cuda.device_count())
            if device not in watched and self._shared.read(device)["reserved_bytes"]["all"]["peak"] > 0
        ]
        for device in fresh:
            properties = torch.cuda.get_device_properties(device)
            self._uuids[device] = identity.uuid_of(properties)
            if is_unified(properties):
                self._unified.add(device)
            was_measured = device in self._shared.counters
            counter = self._shared.watch(device, from_the_start=not self._cuda_was_up)
            if was_measured and self._cuda_was_up:
                counter.cut()  # memory from before attach does not belong to the first step
            self._clock.watch(counter)
        self._is_unused = not watched and not fresh
        if fresh:
            self._on_devices(tuple(counter.device for counter in self._clock.counters))

    def _find_other_devices(self, other: OtherAccelerator) -> None:
        fresh = [device for device in other.devices_in_use() if device not in self._other_devices]
        if fresh:
            self._other_devices = [*self._other_devices, *fresh]
            self._on_devices(tuple(self._other_devices))
        # Before the first is found, each reading asks, so that no step belongs to the CPU.
        self._find_other_from = time.monotonic() + (FIND_DEVICES_EVERY_S if self._other_devices else 0.0)

    def _is_cpu_training(self, steps: int) -> bool:
        """Whether to report a training on the CPU: there is no GPU, or a step was made without it.

        Frameworks initialize CUDA where they train on the CPU, too.
        """
        if not self._watched_cpu and cuda_is_up():
            if self._is_unused and steps:
                self._watched_cpu = True
                self._on_devices((series.CPU,))
        elif not self._watched_cpu:
            import torch

            has_nvml = self.nvml is None or self.nvml.available
            no_other = self._other is None or self._other.is_missing()
            no_gpu = no_other and torch.version.hip is None and (torch.version.cuda is None or not has_nvml)
            if no_gpu or steps:
                self._watched_cpu = True
                self._on_devices((series.CPU,))
        return self._watched_cpu


def held_bytes(stats: Stats) -> int:
    """What this process certainly has on a device. An engine that sleeps has released a private pool behind PyTorch."""
    pools = stats.get(RESERVED, {})
    return int(stats["reserved_bytes"]["all"]["current"] - sum(pool["all"]["current"] for pool in pools.values()))


def cuda_is_up() -> bool:
    """Return whether this process has initialized CUDA. Does not initialize it."""
    import torch

    return bool(torch.cuda.is_initialized())
