"""Models beside the training are searched for only where the allocator shows that there may be some."""

from __future__ import annotations

import gc
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.oom.weight_copies import named_tensors
from vramscope.recording import untracked_models
from vramscope.recording.explained_memory import is_explained, tensors_of
from vramscope.recording.untracked_models import UntrackedModels

pytestmark = pytest.mark.gpu


class Calls(TorchFunctionMode):
    """Keeps the names of the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Visits:
    """Counts the searches of all objects."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        search = untracked_models.living

        def counted(*kinds: type) -> list[object]:
            self.number += 1
            return search(*kinds)

        monkeypatch.setattr(untracked_models, "living", counted)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Memory of other tests counts as known."""
    gc.collect()  # what earlier tests left must not be freed during this one
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
    monkeypatch.setattr(
        "vramscope.recording.explained_memory._requested_bytes",
        lambda: torch.cuda.memory_stats()["requested_bytes.all.current"] - requested,
    )
    # Optimizers of other tests stay as classes.
    monkeypatch.setattr(untracked_models, "_was_made", lambda kind: False)
    return []


def test_without_unexplained_memory_no_object_is_visited(hidden, monkeypatch) -> None:
    visits = Visits(monkeypatch)
    model = nn.Linear(16, 16).cuda()
    others = UntrackedModels([model], [])
    others.sweep()
    assert visits.number == 0
    assert not list(others.models())


def test_a_teacher_is_found(hidden, monkeypatch) -> None:
    visits = Visits(monkeypatch)
    model, teacher = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    others = UntrackedModels([model], [])
    others.sweep()
    assert visits.number == 1
    assert teacher in others.models()


def test_a_teacher_whose_parameters_are_in_a_variable_is_found(hidden) -> None:
    model, teacher = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    frozen = list(teacher.parameters())
    others = UntrackedModels([model], [], in_variables=named_tensors)
    others.sweep()
    assert teacher in others.models(), len(frozen)


def test_a_mode_of_the_users_sees_nothing_of_the_search(hidden) -> None:
    model, teacher = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    others = UntrackedModels([model], [torch.optim.Adam(model.parameters())], in_variables=named_tensors)
    with Calls() as seen:
        others.sweep()
        assert teacher in others.models()
    assert seen.names == []


def test_inputs_in_a_variable_explain_their_memory(hidden) -> None:
    model, inputs = nn.Linear(16, 16).cuda(), [torch.ones(3, 16, device="cuda")]
    assert not is_explained(lambda: tensors_of([model], []))
    assert is_explained(lambda: tensors_of([model], []), named_tensors), len(inputs)
    targets = torch.ones(3, device="cuda")
    assert is_explained(lambda: tensors_of([model], []), named_tensors), len(targets)


def test_state_and_gradients_are_known(hidden) -> None:
    model = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert is_explained(lambda: tensors_of([model], [optimizer]))
    assert not is_explained(lambda: tensors_of([model], []))


def test_an_optimizer_of_the_users_own_is_searched_for(monkeypatch) -> None:
    """One that wraps another has state of its own, and its steps are none for PyTorch's hooks."""

    class Wraps(torch.optim.SGD):
        def step(
            self, closure: Any = None
        ) -> Any:  # without one of its own it has SGD's, which PyTorch wraps once a process
            return super().step(closure)

    was_made = untracked_models._was_made
    assert not was_made(Wraps), "no object of it exists"
    Wraps([nn.Parameter(torch.ones(1))], lr=0.1)
    assert was_made(Wraps)
    assert not was_made(torch.optim.SGD)


def test_workspaces_of_cublas_are_known(hidden) -> None:
    model = nn.Linear(16, 16).cuda()
    with torch.no_grad():
        model(torch.ones(3, 16, device="cuda"))
    assert is_explained(lambda: tensors_of([model], []))
    teacher = nn.Linear(16, 16).cuda()
    assert not is_explained(lambda: tensors_of([model], [])), teacher


@pytest.mark.parametrize("has_sizes", [True, False], ids=["torch-2.13", "torch-2.12"])
def test_a_later_recording_visits_no_object_where_all_memory_is_explained(has_sizes: bool) -> None:
    """Without sizes in PyTorch's tables they come from the allocator's blocks, which are not read during a recording."""
    begin = "" if has_sizes else "from vramscope.memory import cublas_workspaces\ncublas_workspaces.SIZES = ()\n"
    program = """
        import json, torch
        from torch import nn
        from vramscope import agent
        from vramscope.recording import plan, untracked_models

        plan.SHARE = 1.0  # the second recording begins after step 20
        sweep, search, counts = untracked_models.UntrackedModels.sweep, untracked_models.living, {"sweeps": 0, "visits": 0}

        def swept(self):
            counts["sweeps"] += 1
            sweep(self)

        def visited(*kinds):
            counts["visits"] += 1
            return search(*kinds)

        untracked_models.UntrackedModels.sweep, untracked_models.living = swept, visited

        model = nn.Linear(16, 16).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.ones(3, 16, device="cuda")
        agent.attach(model)
        for _ in range(60):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
        print(json.dumps(counts))
    """
    done = warm.run(begin + textwrap.dedent(program))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"sweeps": 2, "visits": 0}
