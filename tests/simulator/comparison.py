"""The real allocator and the simulator side by side: the same script, every address and every statistic."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scripts import Script

from vramscope_server.analysis.simulator.initial_state import InitialState
from vramscope_server.analysis.simulator.program import Program
from vramscope_server.analysis.simulator.replay import STATISTICS, Replay, replay
from vramscope_server.analysis.simulator.segments import GRANULE
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.versions import profile_of


class Oracle:
    """A process that has imported torch and answers jobs by forked children."""

    def __init__(self, python: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("oracle.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "EMULATED_GPU_LEDGER": "private", "PYTHONWARNINGS": "ignore"},
        )
        self.version: str = pickle.load(self.process.stdout)  # type: ignore[arg-type]
        self.profile, self.note = profile_of(self.version)

    def ask(self, script: Script, snapshot_at: int = -1) -> dict[str, Any]:
        """What the real allocator did; a run whose timing left something open, or that PyTorch ended, is repeated."""
        job = {
            "script": script.steps,
            "snapshot_at": snapshot_at,
            "fraction": script.fraction,
            "streams": script.streams,
            "async_us": script.async_us,
            "scope_is_capture": self.profile.pool_is_capture,
            "reservation_bytes": AllocatorSettings.parse(script.conf, self.profile).reservation_bytes(
                script.total_mib << 20
            ),
            "environment": {
                "PYTORCH_CUDA_ALLOC_CONF": script.conf,
                "EMULATED_GPU_TOTAL_MEM": f"{script.total_mib}M",
                "EMULATED_GPU_ASYNC_US": str(script.async_us),
            },
        }
        assert self.process.stdin and self.process.stdout
        for attempt in range(10):
            job["guard_ns"] = 1_000_000 << attempt  # in the end everything pending is waited for, which is always sure
            pickle.dump(job, self.process.stdin)
            self.process.stdin.flush()
            answer: dict[str, Any] = pickle.load(self.process.stdout)
            if "cudaMalloc_count > 0" in answer.get("failed", ""):
                continue  # PyTorch's own assertion in a destructor, at some addresses: the process is gone, nothing to compare
            if "failed" in answer:
                raise AssertionError(f"the oracle failed on seed {script.seed}: {answer['failed']}")
            if answer["sure"]:
                return answer
        raise AssertionError(
            f"seed {script.seed}: ten times PyTorch's own assertion ended it, or nobody could tell what it saw"
        )

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


@contextmanager
def oracle(python: str = sys.executable) -> Iterator[Oracle]:
    asked = Oracle(python)
    try:
        yield asked
    finally:
        asked.close()


def segment_addresses(
    answer: dict[str, Any], settings: AllocatorSettings, until: int = 1 << 62
) -> tuple[list[int], list[int]]:
    """Where each new segment lay, in the order in which they were made or, of expandable ones, reserved.

    Those before this number of device allocations, and those from then on.
    """
    before: list[int] | None = None
    reserved = settings.reservation_bytes(answer["total_bytes"])
    addresses: list[int] = []
    stretches: dict[int, tuple[int, int]] = {}
    """End and mapped bytes of each segment, by its first address."""
    untouched = list(answer["untouched"])
    seen: list[int] = []
    """Addresses that are reserved, and counted as such, before they are mapped."""

    def tell(address: int) -> None:
        if address not in seen:
            seen.append(address)
            addresses.append(address)

    device_allocs = answer["before"][STATISTICS.index("num_device_alloc")]
    for action, address, size in answer["trace"]:
        while untouched and untouched[0][0] <= device_allocs:
            tell(untouched.pop(0)[1])
        if device_allocs >= until and before is None and action in ("segment_alloc", "segment_map"):
            before, addresses = addresses, []
        device_allocs += action in ("segment_alloc", "segment_map")
        if action == "segment_alloc":
            addresses.append(address)
        elif action in ("segment_map", "segment_unmap"):
            begin = next((begin for begin, (end, _) in stretches.items() if begin <= address < end), None)
            if begin is None:
                begin = address
                if begin in seen:
                    seen.remove(begin)
                else:
                    addresses.append(begin)
                page = GRANULE if size == GRANULE else settings.large_segment_bytes
                stretches[begin] = begin + -(-reserved // page) * page, 0
            end, mapped = stretches[begin]
            mapped += size if action == "segment_map" else -size
            if mapped:
                stretches[begin] = end, mapped
            else:
                del stretches[begin]
    for _, address in untouched:
        tell(address)
    return (addresses, []) if before is None else (before, addresses)


def replayed(
    script: Script,
    answer: dict[str, Any],
    profile: Any,
    first_row: int = 0,
    initial: InitialState | None = None,
    addresses: list[int] | None = None,
) -> Replay:
    """The simulator's answer; from ``first_row`` on with what lay there then."""
    settings = AllocatorSettings.parse(script.conf, profile)
    rows = np.array(answer["rows"], np.int64).reshape(-1, 5)[first_row:]
    program = Program(
        rows[:, 0].astype(np.uint8),
        rows[:, 1].astype(np.int32),
        rows[:, 2],
        rows[:, 3].astype(np.int32),
        rows[:, 4].astype(np.int32),
        np.arange(len(rows)),
    )
    return replay(
        program,
        settings,
        profile=profile,
        device_bytes=answer["device_bytes"],
        device_total_bytes=answer["total_bytes"],
        limit_bytes=None if script.fraction is None else int(script.fraction * answer["total_bytes"]),
        initial=initial,
        segment_addresses=segment_addresses(answer, settings)[0] if addresses is None else addresses,
        readings=True,
        stop_at_oom=False,
    )


def difference(script: Script, asked: Oracle) -> str:
    """The first operation after which the two differ, in words; "": none."""
    answer = asked.ask(script)
    mine = replayed(script, answer, asked.profile)
    assert mine.readings is not None
    before = np.array(answer["before"])
    names = ("address", *STATISTICS)
    # What was counted while CUDA began is no part of the script.
    counters = np.array([0, *(before * np.array([name.startswith("num_") for name in STATISTICS]))])
    for i, seen in enumerate(answer["seen"]):
        if seen is None:
            continue
        real = np.array(seen) - counters
        own = np.array([mine.readings.address[i], *mine.readings.statistics[i]])
        if i >= mine.operations or (real != own).any():
            apart = [f"{name} {r} not {o}" for name, r, o in zip(names, real, own, strict=True) if r != o]
            return f"operation {i} {answer['rows'][i]}: {'; '.join(apart)} (the simulator's), {mine.hazards!r}"
    if bool(answer["broke"]) != (mine.operations < len(answer["rows"]) or bool(mine.hazards & 7)):
        return f"the allocator broke off with {answer['broke']!r}, the simulator with {mine.hazards!r}"
    peaks = {
        "allocated_bytes": mine.peak_allocated_bytes,
        "active_bytes": mine.peak_active_bytes,
        "requested_bytes": mine.peak_requested_bytes,
        "reserved_bytes": mine.peak_reserved_bytes,
    }
    return "" if answer["broke"] or peaks == answer["peaks"] else f"peaks {answer['peaks']}, not {peaks}"


def difference_from_the_middle(script: Script, asked: Oracle, at: int) -> str:
    """The same for a replay that begins with what a snapshot before step ``at`` tells; "": none."""
    answer = asked.ask(script, at)
    middle = answer["middle"]
    then = dict(zip(STATISTICS, middle["statistics"], strict=True))
    settings = AllocatorSettings.parse(script.conf, asked.profile)
    before, after = segment_addresses(answer, settings, then["num_device_alloc"])
    segments = np.array(middle["segments"], np.int64).reshape(-1, 6).T
    blocks = np.array(middle["blocks"], np.int64).reshape(-1, 6).T
    # A range of an expandable segment is as old as the stretch in which it lies.
    made = {address: age for age, address in enumerate(before)}
    bases = np.array(sorted(made))
    own = bases[np.maximum(np.searchsorted(bases, segments[0], side="right") - 1, 0)] if len(bases) else segments[0]
    ages = np.array([made[base] for base in own.tolist()], np.int64)
    mine = replayed(script, answer, asked.profile, middle["row"], InitialState(*segments, ages, *blocks), after)
    assert mine.readings is not None
    counters = np.array([name.startswith("num_") for name in STATISTICS])
    offset = np.array(middle["statistics"]) * counters
    for i, seen in enumerate(answer["seen"][middle["row"] :]):
        if seen is not None:
            own_row = [mine.readings.address[i], *(mine.readings.statistics[i] + offset)]
            if list(seen) != own_row:
                return f"operation {i} of the rest: {seen} not {own_row}"
    return ""


def shrunk(script: Script, asked: Oracle, tries: int = 600) -> Script:
    """A shorter script that still differs: pieces are left out, large ones first."""
    piece = len(script.steps) // 2
    while piece and tries:
        start = 0
        while start < len(script.steps) and tries:
            shorter = replace(script, steps=script.steps[:start] + script.steps[start + piece :])
            tries -= 1
            if difference(shorter, asked):
                script = shorter
            else:
                start += piece
        piece //= 2
    return script
