"""Models beside the training are searched for only where the allocator shows that there may be some."""

from __future__ import annotations

import gc
import json
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.integrations import plain
from vramscope.leaks.scan.storages import storage_of
from vramscope.memory.explained_memory import is_explained, tensors_of
from vramscope.oom.weight_copies import in_variables
from vramscope.recording import untracked_models
from vramscope.recording.untracked_models import UntrackedModels
from vramscope.steps import root_modules
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any = untracked_models) -> None:
        self.number = 0
        search = module.living

        def counted(*kinds: type) -> list[object]:
            self.number += 1
            return search(*kinds)

        monkeypatch.setattr(module, "living", counted)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Memory of other tests counts as known."""
    gc.collect()  # what earlier tests left must not be freed during this one
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
    monkeypatch.setattr(
        "vramscope.memory.explained_memory._requested_bytes",
        lambda: torch.cuda.memory_stats()["requested_bytes.all.current"] - requested,
    )
    # Optimizers of other tests stay as classes.
    monkeypatch.setattr(untracked_models, "_was_made", lambda kind: False)
    return []


def roots_at_attach(monkeypatch: pytest.MonkeyPatch) -> tuple[set[nn.Module], int]:
    """Return the root modules that attach without a target finds, and the number of searches of all objects."""
    visits = Visits(monkeypatch, root_modules)
    hooks = LoopHooks(StepClock(), lambda: in_variables({}))
    hooks.install()
    try:
        plain.connect(None, hooks)
        return set(hooks.roots), visits.number
    finally:
        hooks.remove()


def test_attach_visits_no_object_if_variables_lead_to_all_memory_on_the_gpu(hidden, monkeypatch) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 16, device="cuda")).sum().backward()
    optimizer.step()
    batch = torch.ones(32, 16, device="cuda")
    found, visits = roots_at_attach(monkeypatch)
    assert model in found and visits == 0
    assert len(batch) == 32


def test_attach_finds_a_model_that_no_variable_leads_to(hidden, monkeypatch) -> None:
    """A list in an attribute of a model is not searched."""
    student = nn.Linear(16, 16).cuda()
    student.teachers = [nn.Linear(16, 16).cuda()]
    found, visits = roots_at_attach(monkeypatch)
    assert {student, student.teachers[0]} <= found and visits == 1


def test_a_layer_that_a_loop_left_in_a_variable_is_no_model_of_its_own(hidden, monkeypatch) -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(16, 16)))).cuda()
    layer = model[0][0][0]
    found, visits = roots_at_attach(monkeypatch)
    assert model in found and layer not in found and visits == 0


def test_attach_finds_a_model_that_is_still_on_the_host(hidden, monkeypatch) -> None:
    """Such models take no memory on the GPU, and may be moved later."""
    known = nn.Linear(16, 16)
    known.others = [nn.Linear(16, 16)]
    found, visits = roots_at_attach(monkeypatch)
    assert {known, known.others[0]} <= found and visits == 1


def test_of_a_result_in_the_place_of_a_parameter_no_gradient_is_read(recwarn) -> None:
    """PyTorch would warn."""
    model = nn.Linear(4, 4)
    result = model.weight * 2
    del model.weight
    model._parameters["weight"] = result
    assert len(list(tensors_of([model], []))) == 2
    assert not recwarn.list


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
    others = UntrackedModels([model], [], in_variables=in_variables)
    others.sweep()
    assert teacher in others.models(), len(frozen)


class Holder:
    """An object of the user's that has a model and an optimizer."""

    def __init__(self) -> None:
        self.critic = nn.Sequential(nn.Linear(16, 4)).cuda()
        self.optimizer = torch.optim.Adam(self.critic.parameters())
        for parameter in self.critic.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()


def test_a_model_and_its_optimizer_in_variables_are_found_without_a_visit(hidden, monkeypatch) -> None:
    visits = Visits(monkeypatch)
    model, holders = nn.Linear(16, 16).cuda(), [Holder(), Holder()]
    first = holders[0].critic[0]
    others = UntrackedModels([model], [], in_variables=in_variables)
    others.sweep()
    assert visits.number == 0
    assert set(others.models()) == {holder.critic for holder in holders}, "none of their parts"
    assert {holder.optimizer for holder in holders} <= set(others.optimizers()), first


def test_a_model_that_no_variable_leads_to_is_searched_for(hidden, monkeypatch) -> None:
    """A module has a teacher in an attribute that is no submodule, as a list is none."""
    visits = Visits(monkeypatch)
    model, student = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    student.teachers = [nn.Linear(16, 16).cuda()]
    others = UntrackedModels([model], [], in_variables=in_variables)
    others.sweep()
    assert visits.number == 1
    assert set(others.models()) == {student, student.teachers[0]}


def test_a_window_reads_the_variables_once_and_retains_nothing(hidden) -> None:
    model, inputs = nn.Linear(16, 16).cuda(), torch.ones(3, 16, device="cuda")
    checkpoint = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    reads = []

    def reading(weights: Any) -> Any:
        reads.append(list(weights))
        return in_variables(weights)

    others = UntrackedModels([model], [], in_variables=reading)
    others.window_begins()
    copies = others.copies()
    found = {id(tensor) for name, tensor in copies if name.startswith("checkpoint ")}
    assert found == set(map(id, checkpoint.values()))
    assert reads == [["weight", "bias"]]
    copies = others.copies()
    assert len(reads) == 2, "later they may lead to others"
    retained = weakref.ref(inputs)
    others.window_begins()
    assert len(reads) == 3
    others.forget_variables()
    del inputs
    assert retained() is None


def test_a_mode_of_the_users_sees_nothing_of_the_search(hidden) -> None:
    model, teacher = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    others = UntrackedModels([model], [torch.optim.Adam(model.parameters())], in_variables=in_variables)
    with Calls() as seen:
        others.sweep()
        assert teacher in others.models()
    assert seen.names == []


def tensors_in_variables() -> list[torch.Tensor]:
    return in_variables({}).tensors


def test_inputs_in_a_variable_explain_their_memory(hidden) -> None:
    model, inputs = nn.Linear(16, 16).cuda(), [torch.ones(3, 16, device="cuda")]
    assert not is_explained(lambda: tensors_of([model], []))
    assert is_explained(lambda: tensors_of([model], []), tensors_in_variables), len(inputs)
    targets = torch.ones(3, device="cuda")
    assert is_explained(lambda: tensors_of([model], []), tensors_in_variables), len(targets)


def test_weights_in_a_wrapper_of_torch_func_are_known(hidden) -> None:
    """Within a transformation, a variable leads to a wrapper without memory of its own."""
    weights, explained = torch.ones(16, device="cuda"), []

    def loss_of(wrapped: torch.Tensor) -> torch.Tensor:
        explained.append(is_explained(lambda: [wrapped]))
        return wrapped.sum()

    torch.func.grad(loss_of)(weights)
    assert explained == [True]


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
        sweep, search, counts = untracked_models.UntrackedModels._sweep, untracked_models.living, {"sweeps": 0, "visits": 0}

        def swept(self):
            counts["sweeps"] += 1
            return sweep(self)

        def visited(*kinds):
            counts["visits"] += 1
            return search(*kinds)

        untracked_models.UntrackedModels._sweep, untracked_models.living = swept, visited

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


def test_reading_addresses_copies_no_copy_on_write_storage(hidden) -> None:
    """A storage's ``data_ptr()`` would copy it: the program's memory would grow."""
    weights = torch.ones(1 << 20, device="cuda")
    shared = torch._lazy_clone(weights)
    before = torch.cuda.memory_allocated()
    assert is_explained(lambda: [weights, shared])
    assert storage_of(shared) == storage_of(weights)
    assert torch._C._is_cow_tensor(shared)
    assert torch.cuda.memory_allocated() == before
