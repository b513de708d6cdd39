"""Memory tests in CI without a GPU: ``@pytest.mark.gpu_memory(peak="8 GiB", card="a10")``.

A marked test runs in a child process on the emulated GPU, so that the suite's own PyTorch is untouched. pytest loads this
module by the entry point ``pytest11``; everything else is imported when a test is marked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vramscope_server.pytest_plugin.names import CHILD, REPORT, UPDATE, mark_of, skip_file

if TYPE_CHECKING:
    from vramscope.measurement import measure


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vramscope")
    group.addoption(
        REPORT,
        metavar="FILE",
        help="write what each test marked gpu_memory needed, and its baseline, to this file: a line of JSON for each test",
    )
    group.addoption(
        UPDATE,
        action="store_true",
        help="store the peaks of tests marked gpu_memory as their baselines, in gpu_memory.json beside each test file",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'gpu_memory(peak=None, card="h100", tolerance="2 %", retries=None, leaks=None): run the test on an emulated GPU, and fail '
        "above this peak of allocated memory, or above the stored baseline",
    )


@pytest.fixture
def gpu_memory() -> type[measure]:
    """Measure parts of a test, which runs on the emulated GPU: ``with gpu_memory() as memory: ...``, then ``memory.peak_bytes``."""
    from vramscope.measurement import measure

    return measure


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put a test on the emulated GPU in the place of each marked function."""
    if CHILD in os.environ:
        return
    for position, item in enumerate(items):
        if isinstance(item, pytest.Function) and (mark := mark_of(item)) is not None:
            from vramscope_server.pytest_plugin.emulated_test import EmulatedTest

            items[position] = EmulatedTest.in_place_of(item, mark)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note that the test skipped itself, in the child process."""
    file = os.environ.get(CHILD)
    if file is not None and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        skip_file(Path(file)).write_text(reason.removeprefix("Skipped: "))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Measure the test, in the child process."""
    file = os.environ.get(CHILD)
    if file is None or mark_of(pyfuncitem) is None:
        return None
    from vramscope_server.pytest_plugin.child import measure_into

    measure_into(file, pyfuncitem)
    return True
