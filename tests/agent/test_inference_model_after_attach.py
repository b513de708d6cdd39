"""A program that only calls a model, which it makes after attach, in a loop without a loader."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from collector import Collector
from scans import watched
from torch import nn
from training import Arrived, run

from vramscope.process.inference_calls import CALLS
from vramscope.process.module_calls import module_calls
from vramscope.protocol import messages
from vramscope.steps import root_modules

CALLED = 130


def model_of_8_kib() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 256))


def outputs(model: nn.Module) -> Iterator[torch.Tensor]:
    """Of 8 KiB each."""
    with torch.no_grad():
        for _ in range(CALLED):
            yield model(torch.ones(8, 8))


def kept_in_a_list(model: nn.Module) -> int:
    kept = []
    for output in outputs(model):
        kept.append(output)
    return len(kept)


def kept_in_a_bounded_deque(model: nn.Module) -> int:
    kept: collections.deque[torch.Tensor] = collections.deque(maxlen=100)
    for output in outputs(model):
        kept.append(output)
    return len(kept)


def overwritten(model: nn.Module) -> int:
    kept = torch.empty(0)
    for output in outputs(model):
        kept = output
    return len(kept)


def kept_in_a_finite_cache(model: nn.Module) -> int:
    kept: dict[int, torch.Tensor] = {}
    for number, output in enumerate(outputs(model)):
        kept[number % 20] = output
    return len(kept)


def test_results_that_pile_up_are_named() -> None:
    with watched() as scans:
        kept_in_a_list(model_of_8_kib())
    assert [leak.name for leak in scans[-1].filling] == ["kept"]
    assert scans[-1].filling[0].held_bytes >= 64 * 8192


@pytest.mark.parametrize("keep", [kept_in_a_bounded_deque, overwritten, kept_in_a_finite_cache])
def test_results_that_do_not_pile_up_are_not_named(keep: Callable[[nn.Module], int]) -> None:
    with watched() as scans:
        keep(model_of_8_kib())
    assert scans and not any(scan.leaks for scan in scans) and not scans[-1].filling


@pytest.mark.gpu
@pytest.mark.timeout(150)
def test_results_that_pile_up_are_reported_when_the_run_ends(collector: Collector, spool: Path) -> None:
    script = """
        agent.attach()
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 256)).to(device)
        kept = []
        with torch.no_grad():
            for _ in range(200):
                kept.append(model(torch.ones(8, 8, device=device)))
    """
    written = run(script, collector, spool, loop=False)
    assert "'kept'" in written
    assert [(leak.kind, leak.name) for leak in Arrived(collector).of(messages.Scan)[-1].leaks] == [
        ("tensor-growth", "kept")
    ]


@pytest.mark.gpu
@pytest.mark.timeout(150)
@pytest.mark.parametrize("batches", ["range(60)", "torch.utils.data.DataLoader(range(60))"], ids=["calls", "loader"])
@pytest.mark.parametrize("bound", ["None", "20"])
def test_iterations_whose_ends_the_user_marks_are_steps(
    collector: Collector, spool: Path, batches: str, bound: str
) -> None:
    """``session.step()`` in a loop that only calls a model."""
    script = f"""
        import collections
        session = agent.attach()
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 256)).to(device)
        kept = collections.deque(maxlen={bound})
        with torch.no_grad():
            for _ in {batches}:
                kept.append(model(torch.ones(8, 8, device=device)))
                session.step()
    """
    run(script, collector, spool, loop=False)
    found = [(leak.name, leak.per) for leak in Arrived(collector).of(messages.Scan)[-1].leaks]
    assert found == ([("kept", "step")] if bound == "None" else [])


def calls_until_the_listening_ends(called: Callable[[], Any]) -> int:
    for number in range(CALLED):
        if not module_calls.listens_to_all:
            return number
        called()
    return CALLED


def test_no_more_calls_of_all_modules_are_seen_once_a_known_model_is_called() -> None:
    model = model_of_8_kib()
    with watched():
        assert calls_until_the_listening_ends(lambda: model(torch.ones(8, 8))) == 1


def test_nor_once_a_backward_pass_has_begun() -> None:
    with watched():
        model = model_of_8_kib()
        assert calls_until_the_listening_ends(lambda: model(torch.ones(8, 8)).sum().backward()) == 1


def test_nor_after_some_calls_of_an_unknown_model() -> None:
    with watched():
        model = model_of_8_kib()
        assert calls_until_the_listening_ends(lambda: model(torch.ones(8, 8))) == CALLS


def test_nor_after_many_calls_of_modules_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_modules, "MOST_OTHERS", 50)
    for transform, calls in ((nn.Flatten(), 51), (nn.Sequential(*(nn.ReLU() for _ in range(19))), 5)):
        with watched():
            assert calls_until_the_listening_ends(lambda module=transform: module(torch.ones(8, 8))) == calls


def test_nor_when_the_session_ends() -> None:
    with watched():
        assert module_calls.listens_to_all
    assert not module_calls.listens_to_all


class Tuned(nn.Sequential):
    """Its parameters are a list of those that are trained."""

    def parameters(self, recurse: bool = True) -> list[nn.Parameter]:  # type: ignore[override]
        return [one for one in super().parameters(recurse) if one.requires_grad]


def test_the_parameters_of_a_model_may_be_a_list() -> None:
    with watched() as scans:
        assert kept_in_a_list(Tuned(nn.Linear(8, 8), nn.Linear(8, 256)).eval())
    assert [leak.name for leak in scans[-1].filling] == ["kept"]
