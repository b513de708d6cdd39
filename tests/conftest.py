"""What holds for every test: which GPU there is, what may be skipped, and that no test sees another's memory."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vramscope.guard import guard

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: what several rooms share is not a package

import selection
from hidden_objects import UNNOTICED, hide_objects

if TYPE_CHECKING:
    from disks import SmallDisk

# Tests run beside each other: each process has an emulated GPU of its own, unless a test asks for a shared one.
os.environ.setdefault("EMULATED_GPU_LEDGER", "private")
# As many workers as cores compute already. Threads of each worker's that wait for one another do so busily: small trainings took
# three times the CPU with them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing of the user's settings reaches a test, and no test reaches a server that runs on this machine.
for _name in [name for name in os.environ if name.startswith("VRAMSCOPE_")]:
    del os.environ[_name]

# What is spooled or stored without a test's saying where goes to a folder that ends with the session.
_home = tempfile.TemporaryDirectory(prefix="vramscope-tests-", ignore_cleanup_errors=True)
os.environ["XDG_STATE_HOME"] = os.path.join(_home.name, "state")
os.environ["XDG_DATA_HOME"] = os.path.join(_home.name, "data")

# A shell that starts us in the background ignores Ctrl-C for us and all our children; the tests send it on purpose.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A fault of ours is contained in the user's training, and loud at home.
guard.raise_faults = True

EMULATED = importlib.util.find_spec("_emulated_gpu") is not None
IN_CI = os.environ.get("CI") == "true"

skipped_in_ci: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: for a third of its time a worker waits for a training, a server or the browser."""
    return len(os.sched_getaffinity(0)) + 1


PYTEST_PACKAGES = ("_pytest", "pluggy", "xdist", "execnet")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what trains, starts processes or drives a browser")
    parser.addoption("--sample", action="store_true", help="a random sample of the corpora and of the slow tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("sample"):
        selection.choose_seed()  # before workers start


def pytest_report_header(config: pytest.Config) -> str | None:
    return selection.description_of_sample() if config.getoption("sample") else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (config.getoption("fast") and selection.is_in_a_left_out_file(collection_path)) or None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Select the tier and the sample; slow tests only where ``-m`` names them. Then order them.

    Tests for a GPU run on the emulated one and on a real card; ``realgpu`` on a real card.
    """
    with_slow = "slow" in config.getoption("markexpr")
    of_tier = [
        item
        for item in items
        if (selection.is_fast(item) or not config.getoption("fast"))
        and (with_slow or not item.get_closest_marker("slow"))
    ]
    left_out = selection.left_out_of_sample(of_tier) if config.getoption("sample") else set()
    kept = [item for item in of_tier if item not in left_out]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    yield  # folders mark their tests
    if hasattr(config, "workerinput"):
        # Whole groups first, and of them the browsers', which are the longest; what goes test by test then fills all workers
        # to the end.
        items.sort(key=lambda item: ("browser" not in item.keywords, item.get_closest_marker("xdist_group") is None))
    if IN_CI:
        # A browser on a busy machine may be late in a way that no test foresees: such a test fails if it fails twice.
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.flaky(reruns=1))
    needs_gpu = [item for item in items if item.get_closest_marker("gpu") or item.get_closest_marker("realgpu")]
    if not needs_gpu:
        return
    has_gpu = EMULATED or (importlib.util.find_spec("torch") is not None and cuda_is_available())
    for item in needs_gpu:
        if not has_gpu:
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU, real or emulated: make setup builds one"))
        elif item.get_closest_marker("realgpu") and EMULATED:
            item.add_marker(pytest.mark.skip(reason="needs a real card; here is the emulated GPU"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the objects of thousands of collected tests out of garbage collections and of the scans of the tests' own process.

    They hang on variables of pytest's frames and on marks of test functions: a scan would visit 70,000 of them.
    """
    from vramscope.leaks.scan import paths

    gc.collect()
    types = {type(one) for one in gc.get_objects()}
    pytest_types = {one for one in types if str(one.__module__).partition(".")[0] in PYTEST_PACKAGES}
    paths._SKIPPED = paths._SKIPPED | pytest_types
    gc.freeze()


def cuda_is_available() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(scope="module", autouse=True)
def of_earlier_modules_nothing_is_seen() -> None:
    """Objects that the tests of other files left are out of the garbage collections and scans of this one's."""
    hide_objects(more_than=UNNOTICED)


@pytest.fixture
def few_objects() -> None:
    """Hide also what earlier tests of the same file left."""
    hide_objects()


@pytest.fixture(scope="session")
def emulated_gpu() -> None:
    """Asked for by tests of the emulation itself: on a real card they have nothing to say."""
    if not EMULATED:
        pytest.skip("the emulated GPU is not built here: make setup does that where there is no real one")


@pytest.fixture
def two_gpus() -> None:
    """Skips a test of two devices on a machine with one real card."""
    import torch

    if not EMULATED and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture(autouse=True)
def empty_gpu(request: pytest.FixtureRequest) -> None:
    """A test of the GPU begins with as little reserved memory as the process allows.

    A cuBLAS workspace of an earlier test lives until the process ends. In a large segment it keeps that segment.
    """
    torch = sys.modules.get("torch")
    if request.node.get_closest_marker("gpu") is None or torch is None or not torch.cuda.is_initialized():
        return
    torch._C._cuda_clearCublasWorkspaces()
    if torch.cuda.memory_allocated():
        gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """``small_disk(KiB)`` mounts one for the time of a test."""
    from disks import SmallDisk

    mounted: list[SmallDisk] = []

    def make(kib: int) -> SmallDisk:
        try:
            mounted.append(SmallDisk(tmp_path / f"disk{len(mounted)}", kib))
        except PermissionError as reason:
            pytest.skip(str(reason))
        return mounted[-1]

    yield make
    for disk in mounted:
        disk.close()


# ---- in CI, a skip is a failure: it would hide that something was not tested ----


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and "realgpu" not in report.keywords:
        skipped_in_ci.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        skipped_in_ci.append(report.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    if IN_CI and skipped_in_ci and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if IN_CI and skipped_in_ci:
        terminalreporter.section("skipped, which CI does not allow", red=True)
        for nodeid in skipped_in_ci:
            terminalreporter.line(nodeid)
    repeated = terminalreporter.getreports("rerun")
    if repeated:
        terminalreporter.section("failed, and ran once more")
        for report in repeated:
            terminalreporter.line(f"{report.nodeid}\n{report.longreprtext}")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``vramscope`` with these words as a pipe would see it; gives exit code, stdout and stderr."""
    from vramscope_server.__main__ import main

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run
