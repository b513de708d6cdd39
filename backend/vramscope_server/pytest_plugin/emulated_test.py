"""A marked test: it runs in a child process on the emulated GPU and fails if it needs too much memory."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from vramscope.measured_test import LEAST_STEPS, LineMemory, TestMemory
from vramscope_server.analysis.number_format import amount, percent
from vramscope_server.cli.client import Failure
from vramscope_server.cli.dryrun.libraries import libraries_for, torch_of
from vramscope_server.pytest_plugin.baselines import MOST_LINES, Baseline, BaselineLine, Baselines
from vramscope_server.pytest_plugin.limits import Limits
from vramscope_server.pytest_plugin.measured_tests import MeasuredTest, write
from vramscope_server.pytest_plugin.names import CHILD, MARKER, REPORT, UPDATE, skip_file
from vramscope_server.pytest_plugin.preloaded_process import NotEnded, PreloadedProcess

SHOWN_LINES: Final = 8
LEAST_SHARE: Final = 0.001
"""Smallest share of the peak that a line is listed for."""
TIMEOUT_S: Final = 600
PROCESS: Final = pytest.StashKey["PreloadedProcess"]()


class TooMuchMemory(Exception):
    """The test needs more than its limit."""


class ChildFailed(Exception):
    """The test failed in the child process, by itself."""


def _check_leaks(memory: TestMemory, most: int) -> None:
    """Raise TooMuchMemory for more leaks than that, or if too few steps ended to tell."""
    if memory.leaks is None:
        raise TooMuchMemory(
            f"leaks are not known: {memory.steps} optimizer steps ended, and {LEAST_STEPS} or more tell whether memory leaks"
        )
    if len(memory.leaks) <= most:
        return
    rows = [f"{len(memory.leaks)} leak{'s' if len(memory.leaks) > 1 else ''} found:"]
    for leak in memory.leaks:
        place = "" if leak.file is None else f" ({leak.file}:{leak.line})"
        rows.append(f"  {leak.name}{place} retains {amount(leak.held_bytes)}. Fix: {leak.advice}")
    raise TooMuchMemory("\n".join(rows))


class EmulatedTest(pytest.Item):
    """Replaces a marked function. Its fixtures are made in the child process only."""

    limits: Limits
    place: tuple[str, int | None, str]
    """File, line and name of the function."""
    measures_itself: bool
    """Whether the function has the fixture, so that it needs neither a limit nor a baseline."""

    @classmethod
    def in_place_of(cls, item: pytest.Function, mark: pytest.Mark) -> EmulatedTest:
        """Raises pytest.UsageError for a wrong marker."""
        assert item.parent is not None
        if inspect.iscoroutinefunction(item.obj):
            raise pytest.UsageError(f"{item.nodeid}: gpu_memory does not run async tests")
        test = cls.from_parent(item.parent, name=item.name)
        test.own_markers = item.own_markers
        test.keywords.update(item.keywords)
        test.limits = Limits.of(mark)
        test.place = item.location
        test.measures_itself = MARKER in item.fixturenames
        return test

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, *self.place[1:]

    def runtest(self) -> None:
        """Run the test once and compare."""
        torch, memory = self._run()
        baselines = Baselines(self.path.parent)
        name = f"{self.path.name}::{self.nodeid.partition('::')[2]}"
        known = baselines.read(name)
        if (file := self.config.getoption(REPORT)) is not None:
            write(Path(file), self._measured(torch, memory, known))
        if self.config.getoption(UPDATE):
            baselines.store(name, self._baseline(torch, memory))
        elif self.limits.peak_bytes is None and (known is not None or self._needs_baseline):
            self._compare(memory, known, torch)
        if self.limits.peak_bytes is not None and memory.peak_allocated_bytes > self.limits.peak_bytes:
            raise TooMuchMemory(
                f"peak {amount(memory.peak_allocated_bytes)}, above the limit of {amount(self.limits.peak_bytes)}"
                + self._lines(memory, known)
            )
        if self.limits.retries is not None and memory.retries > self.limits.retries:
            times = f"{memory.retries} time{'s' if memory.retries > 1 else ''}"
            raise TooMuchMemory(f"the allocator gave back its cached memory {times} to fulfil a request")
        if self.limits.leaks is not None:
            _check_leaks(memory, self.limits.leaks)

    @property
    def _needs_baseline(self) -> bool:
        return self.limits.leaks is None and not self.measures_itself

    def _measured(self, torch: str, memory: TestMemory, known: Baseline | None) -> MeasuredTest:
        limit_bytes = self.limits.peak_bytes
        if limit_bytes is None and known is not None:
            limit_bytes = self._most_bytes(known)
        folder = self.path.parent.relative_to(self.config.rootpath).as_posix()
        return MeasuredTest(self.nodeid, folder, limit_bytes, known, self._baseline(torch, memory))

    def _most_bytes(self, known: Baseline) -> int:
        return int(known.peak_allocated_bytes * (1 + self.limits.tolerance))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, (TooMuchMemory, ChildFailed, Failure, ValueError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def _run(self) -> tuple[str, TestMemory]:
        torch = torch_of(sys.executable)
        libraries = libraries_for(torch)
        words = [self.nodeid, "-q", "--no-header", "-p", "no:cacheprovider"]
        words += ["--rootdir", str(self.config.rootpath), "--import-mode", self.config.getoption("importmode")]
        # Other options of the suite, such as the number of processes or a report, are for the suite as a whole.
        words += ["-o", "addopts=", *(word for name in self.config.getoption("plugins") for word in ("-p", name))]
        if self.config.inipath is not None:
            words += ["-c", str(self.config.inipath)]
        with tempfile.TemporaryDirectory(prefix="vramscope-pytest-") as folder:
            report = Path(folder) / "memory.json"
            environment = os.environ | {
                CHILD: str(report),
                "LD_PRELOAD": " ".join([*map(str, libraries), *os.environ.get("LD_PRELOAD", "").split()]),
                "TRITON_LIBCUDA_PATH": str(libraries[0].parent),
                "VRAMSCOPE_SPOOL_DIR": str(Path(folder) / "spool"),
                "EMULATED_GPU_LEDGER": str(Path(folder) / "ledger"),
                "EMULATED_GPU_NAME": self.limits.card.name,
                "EMULATED_GPU_CAPABILITY": str(self.limits.card.capability),
                "EMULATED_GPU_MULTIPROCESSORS": str(self.limits.card.multiprocessors),
                "EMULATED_GPU_TOTAL_MEM": str(self.limits.card.total_bytes),
            }
            environment.pop("CUDA_VISIBLE_DEVICES", None)
            environment.pop("PYTEST_ADDOPTS", None)
            environment.pop("PYTEST_XDIST_WORKER", None)
            try:
                ended = self._process().run(
                    words, self.config.rootpath, environment, Path(folder) / "output", TIMEOUT_S
                )
            except NotEnded as late:
                raise ChildFailed(f"it did not end within {TIMEOUT_S} s:\n{late}") from late
            skipped = skip_file(report)
            if skipped.exists():
                pytest.skip(skipped.read_text())
            if ended.exit_code != 0 or not report.exists():
                raise ChildFailed(f"on the emulated {self.limits.card.name}:\n{ended.output}")
            return torch.version, msgspec.json.decode(report.read_bytes(), type=TestMemory)

    def _process(self) -> PreloadedProcess:
        """The process of this suite, which ends with it."""
        if PROCESS not in self.config.stash:
            self.config.stash[PROCESS] = process = PreloadedProcess()
            self.config.add_cleanup(process.close)
        return self.config.stash[PROCESS]

    def _compare(self, memory: TestMemory, known: Baseline | None, torch: str) -> None:
        if known is None:
            raise TooMuchMemory(
                f"peak {amount(memory.peak_allocated_bytes)}, and there is neither a limit nor a baseline: give the marker "
                'peak="8 GiB", or store a baseline with --gpu-memory-update'
            )
        if memory.peak_allocated_bytes > self._most_bytes(known):
            more = memory.peak_allocated_bytes - known.peak_allocated_bytes
            raise TooMuchMemory(
                f"peak {amount(memory.peak_allocated_bytes)}, which is {amount(more)} "
                f"({percent(more / max(1, known.peak_allocated_bytes))}) above the baseline of "
                f"{amount(known.peak_allocated_bytes)}{self._other_conditions(known, torch)}{self._lines(memory, known)}"
            )

    def _other_conditions(self, known: Baseline, torch: str) -> str:
        now = (self.limits.card.key, torch)
        return "" if now == (known.card, known.torch) else f", stored with {known.card} and PyTorch {known.torch}"

    def _baseline(self, torch: str, memory: TestMemory) -> Baseline:
        lines = [
            BaselineLine(file, function, source, size)
            for (file, function, source), size in self._by_source(memory.lines).most_common(MOST_LINES)
        ]
        return Baseline(self.limits.card.key, torch, memory.peak_allocated_bytes, lines)

    def _by_source(self, lines: list[LineMemory]) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for line in lines:
            file = os.path.relpath(line.file, self.path.parent) if line.file else ""
            found[file, line.function, line.source] += line.bytes
        return found

    def _lines(self, memory: TestMemory, known: Baseline | None) -> str:
        """Lines whose memory at the peak has changed most; without a baseline, those with most memory."""
        now = self._by_source(memory.lines)
        before = Counter(
            {(one.file, one.function, one.source): one.bytes for one in ([] if known is None else known.lines)}
        )
        numbers = {
            (os.path.relpath(one.file, self.path.parent), one.function, one.source): f":{one.line}"
            for one in memory.lines
            if one.file
        }

        def rows(
            head: str, larger: Counter[tuple[str, str, str]], smaller: Counter[tuple[str, str, str]], sign: str
        ) -> list[str]:
            found = []
            for place, size in (larger - smaller).most_common(SHOWN_LINES):
                if size < LEAST_SHARE * memory.peak_allocated_bytes:
                    break
                file, function, source = place
                where = f"{file}{numbers.get(place, '')} {function}: {source}" if file else function
                found.append(f"  {sign + amount(size):>12}  {where}")
            return [head, *found] if found else []

        if known is None:
            return "\n".join(["", *rows("most memory at the peak:", now, before, "")])
        more = rows("more memory at the peak than in the baseline:", now, before, "+")
        # A line is known by its text, so that a changed line is in both lists.
        return "\n".join(["", *more, *rows("less:", before, now, "-")])
