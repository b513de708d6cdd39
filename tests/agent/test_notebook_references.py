"""Memory that only a notebook retains, in a real IPython shell on the emulated GPU."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from vramscope.integrations import plain
from vramscope.leaks.notebook_references import results_and_variables, retained_by_notebook
from vramscope.memory.peak_counters import share_peak_counters
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.techniques.detector import TechniqueDetector

pytestmark = pytest.mark.gpu
MIB = 1 << 20
PRELUDE = """
import torch
def megabytes(n):
    return torch.empty(n << 20, dtype=torch.uint8, device="cuda")
def of_training(n):
    weight = torch.ones(n << 18, device="cuda", requires_grad=True)
    return (weight * 2).exp().sum()
"""

OPERATIONS = """
calls = []
class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})
"""


@pytest.fixture
def shell(emulated_gpu: None) -> Iterator[InteractiveShell]:
    main = sys.modules["__main__"]  # the shell takes its place
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell(PRELUDE)
    yield shell
    failed = getattr(sys, "last_value", None)
    if failed is not None:
        traceback.clear_frames(failed.__traceback__)
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main
    for name in ("last_traceback", "last_value", "last_exc", "last_type"):
        sys.__dict__.pop(name, None)
    gc.collect()


def cell(shell: InteractiveShell, code: str) -> None:
    shell.run_cell(code, store_history=True)


def names(shell: InteractiveShell, least_bytes: int = MIB) -> dict[str, int]:
    return {one.name: one.size_bytes >> 20 for one in retained_by_notebook(shell, least_bytes)}


def release(shell: InteractiveShell) -> int:
    """MiB that the named code frees."""
    before = torch.cuda.memory_allocated()
    for code in {one.release: None for one in retained_by_notebook(shell, MIB)}:
        cell(shell, code)
    gc.collect()
    return (before - torch.cuda.memory_allocated()) >> 20


def test_a_result_and_its_graph_are_named_and_the_code_frees_them(shell: InteractiveShell) -> None:
    cell(shell, "of_training(8)")
    cell(shell, "{'a': megabytes(20), 'b': [megabytes(4)]}")
    assert names(shell) == {"Out[1]": 8, "Out[2]": 24}, "the loss keeps the result of exp; the weight is no part of it"
    assert names(shell, 10 * MIB) == {"Out[2]": 24}
    assert release(shell) >= 32
    assert names(shell) == {}


def test_the_numbered_variable_of_a_result_is_named_without_out(shell: InteractiveShell) -> None:
    cell(shell, "megabytes(16)")
    cell(shell, "Out.clear()")
    found = names(shell)
    assert found and next(iter(found)).startswith("_") and list(found.values()) == [16]
    assert release(shell) == 16


def test_the_variables_of_functions_that_failed_are_named(shell: InteractiveShell) -> None:
    cell(shell, "def fails(x):\n    rows = [megabytes(12)]\n    raise ValueError\n")
    cell(shell, "fails(megabytes(8))")
    found = names(shell)
    assert found == {"rows of fails() in the last error": 12, "x of fails() in the last error": 8}
    assert release(shell) == 20


@pytest.mark.parametrize(
    "code",
    [
        "kept = megabytes(20)",
        "kept = [megabytes(20)]",
        "class Holder: pass\nkept = Holder()\nkept.cache = megabytes(20)",
        "kept = torch.nn.Linear(2048, 2048, device='cuda')",
        "kept = of_training(20)",
    ],
)
def test_what_a_variable_refers_to_as_well_is_not_named(shell: InteractiveShell, code: str) -> None:
    cell(shell, code)
    shown = {"kept = torch": "kept.weight", "class": "kept.cache"}
    cell(shell, next((words for start, words in shown.items() if code.startswith(start)), "kept"))
    assert names(shell) == {}
    cell(shell, "def fails(x):\n    raise ValueError\n")
    cell(shell, f"fails({next((words for start, words in shown.items() if code.startswith(start)), 'kept')})")
    assert names(shell) == {}, "the failed function got it as an argument"


def test_a_graph_that_another_result_shares_is_not_named(shell: InteractiveShell) -> None:
    cell(shell, "logits = (torch.ones(5 << 18, device='cuda', requires_grad=True) * 2).exp()")
    cell(shell, "logits.sum()")
    assert names(shell) == {}, "logits keeps the graph"
    cell(shell, "del logits")
    assert names(shell) == {"Out[2]": 5}


def test_what_only_cpp_refers_to_as_well_is_not_named(shell: InteractiveShell) -> None:
    cell(shell, "model = torch.nn.Linear(2048, 2048, bias=False, device='cuda')")
    cell(shell, "model(torch.ones(1, 2048, device='cuda')).sum().backward()")
    cell(shell, "model.weight.grad")
    cell(shell, "torch.ones(4 << 18, device='cuda', requires_grad=True)")
    cell(shell, "loss = (Out[4] * 2).sum()")
    cell(shell, "class Named(torch.Tensor): pass")
    cell(shell, "named = megabytes(16).as_subclass(Named)")
    cell(shell, "named.as_subclass(torch.Tensor)")
    assert {"Out", "_3", "_4", "_8"} <= set(shell.user_ns) and names(shell) == {}


def test_nothing_is_said_beside_a_graph_that_is_too_long(shell: InteractiveShell) -> None:
    """It may have saved each of the results."""
    cell(shell, "megabytes(16)")
    cell(shell, "short = torch.ones(1, device='cuda', requires_grad=True) * 2")
    assert names(shell) == {"Out[1]": 16}
    cell(shell, "long = short\nfor _ in range(5000):\n    long = long + 1\n")
    assert names(shell) == {}


def test_an_underscore_that_the_user_assigned_is_a_variable(shell: InteractiveShell) -> None:
    cell(shell, "output, _ = megabytes(8), megabytes(16)")
    assert names(shell) == {}


def test_a_result_that_gets_a_name_is_searched_again(shell: InteractiveShell) -> None:
    cell(shell, "megabytes(16)")
    before = results_and_variables(shell)
    assert results_and_variables(shell) == before
    cell(shell, "kept = Out[1]")
    assert results_and_variables(shell) != before and names(shell) == {}


def test_no_code_of_a_tensor_class_runs(shell: InteractiveShell) -> None:
    cell(shell, OPERATIONS)
    cell(shell, "Out[50] = megabytes(16).as_subclass(Counted)\ncalls.clear()")
    assert names(shell) == {"Out[50]": 16}
    assert shell.user_ns["calls"] == []


def test_small_results_cost_no_search(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    cell(shell, "megabytes(1)")
    monkeypatch.setattr(gc, "get_referents", lambda *_: pytest.fail("asked all objects"))
    assert names(shell, 2 * MIB) == {}


TRAINING = """
def train(model, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        model(torch.ones(4, 256, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def findings_of(shell: InteractiveShell) -> list[Any]:
    """Findings of a training in a cell."""
    seen: list[Any] = []
    clock = StepClock()
    clock.watch(share_peak_counters().watch(0))
    hooks = LoopHooks(clock)
    watch = TechniqueDetector(clock, hooks, report=seen.append)
    hooks.install()
    try:
        cell(shell, TRAINING + "\nmodel = torch.nn.Linear(256, 256, device='cuda')")
        connection = plain.connect(shell.user_ns["model"], hooks)
        assert connection is not None
        watch.begin(connection.framework, connection.config)
        cell(shell, "train(model)")
    finally:
        hooks.remove()
    return [one for one in seen[-1].findings if one.kind == "notebook-keeps-memory"]


def test_a_run_in_the_notebook_has_a_finding_with_the_remedy(shell: InteractiveShell) -> None:
    cell(shell, "megabytes(100)")
    cell(shell, "def fails(x):\n    raise ValueError\n")
    cell(shell, "fails(megabytes(80))")
    (found,) = findings_of(shell)
    assert "180 MiB on the device: Out[1] (100 MiB), x of fails() in the last error (80.0 MiB)." in found.text
    assert "displayhook.flush()" in found.advice and "clear_frames" in found.advice
    assert release(shell) == 180


def test_a_run_without_large_results_has_none(shell: InteractiveShell) -> None:
    cell(shell, "megabytes(50)")
    cell(shell, "kept = megabytes(200)")
    cell(shell, "kept")
    assert findings_of(shell) == []
