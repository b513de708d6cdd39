"""Holders that no variable names: an entered mode, an asynchronous generator, globals of made-up names, a hook's function."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import warm
from event_loop import run_apart
from scans import watched

STEPS = 60


class Trace(TorchFunctionMode):
    """Keeps the arguments of each ReLU, and the names of all functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        if func is torch.relu:
            self.calls.append((func, args))  # <- kept
        return func(*args, **(kwargs or {}))


class Training:
    """A small network, trained step by step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64)
        self.optimizer = torch.optim.SGD([*self.first.parameters(), *self.second.parameters()], lr=0.01)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        self.optimizer.zero_grad()
        (out - x).square().mean().backward()
        self.optimizer.step()
        return out


def found_in(run: Callable[[], object]) -> list[tuple[str, str, str]]:
    """Kind, name and text of the line of each finding."""
    with watched(seconds=30) as scans:
        run()
    texts = inspect.getsource(inspect.getmodule(found_in)).splitlines()  # type: ignore[arg-type]
    return [(leak.kind, leak.name, texts[leak.line - 1] if leak.line else "") for leak in scans[-1].leaks]


def with_mode() -> list[str]:
    training = Training()
    with Trace():
        for _ in range(STEPS):
            training.step(torch.randn(128, 64))
        return list(torch.overrides._get_current_function_mode_stack()[-1].names)


def found_with_mode() -> list[tuple[str, str, str]]:
    return found_in(with_mode)


def seen_without_and_with_agent() -> tuple[list[str], list[str]]:
    bare = with_mode()
    with watched():
        return bare, with_mode()


def apart(function: Callable[[], Any]) -> Any:
    """Result of a function of this file, of a process of its own: a mode sees what earlier tests left there."""
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import {Path(__file__).stem} as here
print(json.dumps(here.{function.__name__}()))
"""
    done = warm.run(code, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_a_mode_keeps_has_its_name_though_no_variable_has_it() -> None:
    (finding,) = apart(found_with_mode)
    assert finding[:2] == ["growing", "Trace.calls"]
    assert "# <- kept" in finding[2]


def test_a_mode_of_the_users_sees_the_same_operations_as_without() -> None:
    bare, seen = apart(seen_without_and_with_agent)
    assert seen == bare and len(bare) > STEPS


async def batches(count: int) -> AsyncIterator[torch.Tensor]:
    seen = []
    for _ in range(count):
        x = torch.randn(128, 64)
        seen.append(x)  # <- in the generator
        yield x
        await asyncio.sleep(0)


async def train() -> None:
    training = Training()
    async for x in batches(STEPS):
        training.step(x)


def test_the_variable_of_a_generator_that_only_the_loop_has_is_named() -> None:
    (finding,) = found_in(lambda: run_apart(train))
    assert finding[:2] == ("tensor-growth", "seen")
    assert "# <- in the generator" in finding[2]


def with_hooks() -> None:
    training = Training()

    def watch(scale: torch.Tensor) -> None:
        def hook(weight: torch.Tensor) -> None:
            weight.grad.mul_(scale.mean())  # type: ignore[union-attr]

        training.first.weight.register_post_accumulate_grad_hook(hook)  # <- registered

    for _ in range(STEPS):
        x = torch.randn(128, 64)
        watch(x.square())
        training.step(x)


def test_of_a_hook_the_line_that_registers_it_is_told() -> None:
    findings = found_in(with_hooks)
    assert findings, "its closure has a tensor of each step"
    assert all("# <- registered" in line for _, _, line in findings)


def with_hooks_of_all_modules() -> None:
    training = Training()

    def watch() -> None:
        table: dict[Any, Any] = {}

        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            table.setdefault(module, output.detach().clone())

        nn.modules.module.register_module_forward_hook(hook)  # <- for all

    for _ in range(STEPS):
        watch()
        training.step(torch.randn(128, 64))


def found_with_hooks_of_all_modules() -> list[tuple[str, str, str]]:
    return found_in(with_hooks_of_all_modules)


def test_hooks_of_all_modules_are_one_holder() -> None:
    """PyTorch's own table has them; no variable leads to them."""
    (finding,) = apart(found_with_hooks_of_all_modules)
    assert finding[:2] == ["tensor-growth", "_global_forward_hooks"]
    assert "# <- for all" in finding[2]


OF_MADE_UP_NAMES = """
for step in range(60):
    out = training.step(torch.randn(128, 64))
    globals()[f"out_{step}"] = out.detach()
"""


def test_globals_whose_names_are_made_up_are_one_holder() -> None:
    code = compile(OF_MADE_UP_NAMES, "made_up.py", "exec")
    scope = {"training": Training(), "torch": torch, "__name__": "__main__"}
    with watched(seconds=30) as scans:
        exec(code, scope)
    (leak,) = scans[-1].leaks
    assert (leak.kind, leak.name, leak.line) == ("tensor-growth", "out_*", 4)
