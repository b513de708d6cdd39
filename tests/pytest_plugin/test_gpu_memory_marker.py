"""``@pytest.mark.gpu_memory``, as a user's own suite has it: pytest in a process of its own, the emulated GPU, real PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vramscope.measured_test import lines_at_peak
from vramscope_server.pytest_plugin.baselines import Baseline, Baselines
from vramscope_server.pytest_plugin.limits import Limits
from vramscope_server.pytest_plugin.measured_tests import read


def on_the_emulated_card(test: Any) -> Any:
    """Mark a test of the shared run: all of them go to one worker, and the first waits for the whole run."""
    return pytest.mark.gpu(pytest.mark.timeout(600)(pytest.mark.xdist_group("gpu_memory")(test)))


MODEL = """
import torch


def work(rows):
    kept = torch.zeros(rows, 1 << 18, device="cuda")
    {line}
    return kept


def other_work(rows):
    return torch.zeros(rows, 1 << 18, device="cuda")
"""
SUITE = """
import pytest
from model import work


@pytest.fixture
def rows():
    return 40


@pytest.mark.gpu_memory(peak="100 MiB", card="a10")
def test_fits(rows):
    import torch
    assert torch.cuda.get_device_name() == "NVIDIA A10"
    work(rows)


@pytest.mark.gpu_memory(peak="10 MiB")
def test_needs_too_much(rows):
    work(rows)


@pytest.mark.gpu_memory(peak="1 GiB")
def test_fails_by_itself(rows):
    assert rows == 3


@pytest.mark.skip(reason="not today")
@pytest.mark.gpu_memory(peak="1 GiB")
def test_skipped():
    pass


@pytest.mark.gpu_memory(peak="1 GiB")
def test_skips_itself(rows):
    pytest.skip("no weights")


def test_unmarked():
    import torch
    assert not torch.cuda.is_initialized()
"""
COMPARED = """
import pytest
from model import other_work, work


@pytest.mark.gpu_memory
@pytest.mark.parametrize("name", ["a/b"])
def test_compared(name):
    work(40)


@pytest.mark.gpu_memory
def test_unchanged():
    other_work(40)
"""


LEAKY = """
import pytest
import torch
from torch import nn

history = []


def train(steps, keep):
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(1024, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if keep:
            history.append(loss)


@pytest.mark.gpu_memory(leaks=0)
def test_clean():
    train(14, keep=False)


@pytest.mark.gpu_memory(leaks=0)
def test_leaks():
    train(14, keep=True)


@pytest.mark.gpu_memory(leaks=1)
def test_leaks_as_allowed():
    train(14, keep=True)


@pytest.mark.gpu_memory(leaks=0)
def test_too_short():
    train(3, keep=True)
"""
MEASURED_PARTS = """
import torch
from model import work


def test_measures_a_part(gpu_memory):
    work(10)
    with gpu_memory() as memory:
        work(20)
    assert memory.peak_bytes == 20 << 20


def test_fails_by_its_own_limit(gpu_memory):
    with gpu_memory() as memory:
        work(20)
    assert memory.peak_bytes < 1 << 20
"""

OF_OTHER_FILES = (
    *("test_compared[a/b]", "test_unchanged", "test_measures_a_part", "test_fails_by_its_own_limit"),
    *("test_clean", "test_leaks", "test_leaks_as_allowed", "test_too_short"),
)


def outcomes(said: str) -> dict[str, str]:
    """Outcome of each test that ended, from the output of ``pytest -rA``."""
    return {name: outcome for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) \w+\.py::(\S+)", said, re.MULTILINE)}


def run_suite(folder: Path, *words: str) -> str:
    """Output of pytest on the suite in this folder."""
    left_out = ("EMULATED_GPU_", "PYTEST_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class SuiteRun:
    """A suite without baselines, and what pytest printed of it."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    """One run for several tests of this file: most of its time goes to the start of pytest and the import of PyTorch."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "model.py").write_text(MODEL.format(line="pass"))
    for name, text in {"memory": SUITE, "compared": COMPARED, "leaky": LEAKY, "parts": MEASURED_PARTS}.items():
        (folder / f"test_{name}.py").write_text(text)
    return SuiteRun(folder, run_suite(folder, "--gpu-memory-report", "report.jsonl"))


@on_the_emulated_card
def test_marked_tests_run_on_the_emulated_card(first: SuiteRun) -> None:
    said, seen = first.said, outcomes(first.said)
    names = ("test_fits", "test_unmarked", "test_needs_too_much", "test_fails_by_itself")
    assert [seen[name] for name in names] == ["PASSED", "PASSED", "FAILED", "FAILED"], said
    assert re.search(r"\d+ failed, \d+ passed, 2 skipped", said), said
    assert "peak 40.0 MiB, above the limit of 10.0 MiB" in said
    assert "40.0 MiB  model.py:6 work: kept = torch.zeros(rows, 1 << 18" in said
    assert "assert 40 == 3" in said, "the child's own output"
    assert "no weights" in said
    assert sorted(seen) == sorted({*names, *OF_OTHER_FILES}), "nothing else ran"


@on_the_emulated_card
def test_a_baseline_is_stored_and_a_failure_names_the_line(first: SuiteRun) -> None:
    compared, unchanged = "test_compared[a/b]", "test_unchanged"
    seen = outcomes(first.said)
    assert (seen[compared], seen[unchanged]) == ("FAILED", "FAILED")
    assert first.said.count("neither a limit nor a baseline") >= 2
    stored = run_suite(first.folder, "test_compared.py", "--gpu-memory-update")
    assert outcomes(stored) == {compared: "PASSED", unchanged: "PASSED"}, stored
    known = Baselines(first.folder).read(f"test_compared.py::{compared}")
    assert known is not None and (known.card, known.peak_allocated_bytes) == ("h100", 40 << 20)
    changed = MODEL.format(line="more = torch.zeros(8, 1 << 18, device='cuda')")
    (first.folder / "model.py").write_text(changed.replace("kept = torch.zeros(rows", "kept = torch.zeros(rows - 2"))
    said = run_suite(first.folder, "test_compared.py")
    assert outcomes(said) == {compared: "FAILED", unchanged: "PASSED"}, said
    assert "peak 46.0 MiB, which is 6.00 MiB (15.0 %) above the baseline of 40.0 MiB" in said
    assert "+8.00 MiB  model.py:7 work: more = torch.zeros(8" in said
    assert "+38.0 MiB  model.py:6 work: kept = torch.zeros(rows - 2, " in said
    assert "less:\n     -40.0 MiB  model.py work: kept = torch.zeros(rows, " in said


@on_the_emulated_card
def test_a_leak_fails_a_test_with_its_line_and_fix(first: SuiteRun) -> None:
    said, seen = first.said, outcomes(first.said)
    names = ("test_clean", "test_leaks_as_allowed", "test_leaks", "test_too_short")
    assert [seen[name] for name in names] == ["PASSED", "PASSED", "FAILED", "FAILED"], said
    line = 1 + next(n for n, text in enumerate(LEAKY.splitlines()) if "history.append" in text)
    assert "1 leak found:" in said
    assert re.search(rf"history \([^)]*test_leaky\.py:{line}\) retains .* Fix: keep the number", said), said
    assert "leaks are not known: 3 optimizer steps ended, and 12 or more tell whether memory leaks" in said


@on_the_emulated_card
def test_the_fixture_measures_parts_and_the_report_has_all(first: SuiteRun) -> None:
    seen = outcomes(first.said)
    assert (seen["test_measures_a_part"], seen["test_fails_by_its_own_limit"]) == ("PASSED", "FAILED"), first.said
    assert "assert 20971520 < (1 << 20)" in first.said
    (one,) = [one for one in read(first.folder / "report.jsonl") if one.test.startswith("test_parts.py")]
    assert (one.test, one.folder, one.before, one.limit_bytes) == (
        "test_parts.py::test_measures_a_part",
        ".",
        None,
        None,
    )
    assert one.now.peak_allocated_bytes == 20 << 20


def marker(*args: Any, **kwargs: Any) -> pytest.Mark:
    return pytest.mark.gpu_memory(*args, **kwargs).mark


def test_a_marker_is_read() -> None:
    limits = Limits.of(marker(peak="1.5 GiB", card="A10", tolerance="0.5 %", retries=0))
    assert (limits.card.key, limits.peak_bytes, limits.tolerance, limits.retries) == ("a10", 3 << 29, 0.005, 0)
    assert Limits.of(marker()).peak_bytes is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (marker("8 GiB"), "'8 GiB'"),
        (marker(peaks="8 GiB"), "peaks"),
        (marker(peak="eight"), "peak='eight'"),
        (marker(card="l5"), "card 'l5' is not known"),
        (marker(tolerance=2), "tolerance=2"),
        (marker(retries=-1), "retries=-1"),
        (marker(leaks="none"), "leaks='none'"),
        (marker(retries=True), "retries=True"),
    ],
)
def test_a_wrong_argument_is_named(wrong: pytest.Mark, named: str) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(named)):
        Limits.of(wrong)


def test_baselines_are_stored_beside_each_other(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    baselines.store("a.py::one", Baseline("l4", "2.13.0", 100))
    baselines.store("a.py::two", Baseline("l4", "2.13.0", 200))
    assert baselines.read("a.py::one") == Baseline("l4", "2.13.0", 100)
    assert baselines.read("a.py::three") is None
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_memory.json"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu_memory.json").write_text('{"a.py::one": {"card": 3}}')
    with pytest.raises(ValueError, match=r"gpu_memory\.json cannot be read.*--gpu-memory-update"):
        Baselines(tmp_path).read("a.py::one")


def test_lines_are_those_of_the_peak() -> None:
    def event(action: str, addr: int, size: int, line: int) -> dict[str, Any]:
        frames = [
            {"filename": torch_file, "line": 1, "name": "zeros"},
            {"filename": __file__, "line": line, "name": "work"},
        ]
        return {"action": action, "addr": addr, "size": size, "frames": frames}

    torch_file = f"{os.sep}site-packages{os.sep}torch{os.sep}nn.py"
    events = [
        event("alloc", 1, 100, 10),
        event("alloc", 2, 50, 11),
        event("free_requested", 2, 50, 11),
        event("free_completed", 2, 50, 11),
        event("alloc", 2, 300, 12),
        event("alloc", 3, 100, 10),
        event("free_completed", 3, 100, 10),
        event("alloc", 4, 20, 13),
    ]
    assert [(one.line, one.bytes) for one in lines_at_peak(events)] == [(12, 300), (10, 200)]
