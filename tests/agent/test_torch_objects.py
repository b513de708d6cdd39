"""Lists of tensors, modules and optimizers without a pass over all objects: the same as after one, whatever has happened since."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.metrics.async_copies import Copies
from vramscope.process import live_objects, torch_objects
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks

FAMILIES = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)


@pytest.fixture(autouse=True)
def automatic_collections_are_off() -> Iterator[None]:
    enabled = gc.isenabled()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports many modules
    gc.disable()
    gc.collect()
    yield
    torch_objects.forget()
    if enabled:
        gc.enable()


def types() -> set[type]:
    return set().union(*map(live_objects.with_subclasses, FAMILIES))


def assert_complete(*, was_passed: bool) -> None:
    found = torch_objects.of_types(types())
    expected, _ = live_objects.of_types(types())
    assert {id(one) for one in found.objects} == {id(one) for one in expected}
    assert len(found.objects) == len(expected), "each once"
    assert found.was_passed is was_passed


def test_new_and_dead_objects_need_no_pass():
    kept, dropped = [torch.zeros(2) for _ in range(3)], torch.zeros(2)
    assert_complete(was_passed=True)
    del kept[0], dropped
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    assert_complete(was_passed=False)
    assert torch_objects.living(torch.nn.Linear)[-1] is model
    assert torch_objects.living(torch.optim.SGD)[-1] is optimizer


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_collections_are_followed(generation):
    torch_objects.of_types(types())
    model, kept = torch.nn.Linear(2, 2), [torch.zeros(2)]
    gc.collect(generation)
    kept.append(torch.zeros(2))
    assert_complete(was_passed=False)
    gc.collect(generation)
    assert_complete(was_passed=False)
    assert model.weight is not None


def test_after_many_collections_a_pass_is_made():
    torch_objects.of_types(types())
    for _ in range(torch_objects.MOST_FOLLOWED + 1):
        gc.collect(1)
    assert_complete(was_passed=True)
    assert_complete(was_passed=False)


def test_a_missed_collection_causes_a_pass():
    torch_objects.of_types(types())
    callbacks, gc.callbacks[:] = list(gc.callbacks), []
    gc.collect(1)
    gc.callbacks[:] = callbacks
    assert_complete(was_passed=True)


def test_frozen_objects_cause_a_pass():
    torch_objects.of_types(types())
    gc.freeze()
    try:
        assert_complete(was_passed=True)
    finally:
        gc.unfreeze()


def test_the_oldest_come_first():
    first = [torch.zeros(2) for _ in range(3)]
    torch_objects.of_types(types())
    later = [torch.zeros(3) for _ in range(3)]
    ours = [one for one in torch_objects.living(torch.Tensor) if any(one is known for known in (*first, *later))]
    assert list(map(id, ours)) == list(map(id, (*first, *later)))


def test_a_parameter_that_leaves_its_module_is_still_found():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    torch_objects.of_types(types())
    first = model[0].weight
    model[0] = torch.nn.Linear(2, 2)
    found = torch_objects.of_types(types())
    assert found.was_passed and any(one is first for one in found.objects)


def test_a_parameter_without_a_module_has_no_weak_reference():
    loose = torch.nn.Parameter(torch.zeros(2))
    torch_objects.of_types(types())
    assert not weakref.getweakrefcount(loose)
    assert_complete(was_passed=True)


def test_a_parameter_of_a_later_module_has_no_weak_reference():
    torch_objects.of_types(types())
    model = torch.nn.Linear(2, 2)
    gc.collect(1)
    assert_complete(was_passed=False)
    assert not any(weakref.getweakrefcount(one) for one in (*model.parameters(), *model.buffers()))


def test_modules_may_swap_their_tensors():
    """``Module.to()`` raises an error if a tensor to be swapped has a weak reference."""
    model = torch.nn.BatchNorm1d(2)
    torch_objects.of_types(types())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.float64)
        model.load_state_dict(torch.nn.BatchNorm1d(2).state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight.dtype == torch.float64


def test_plain_tensors_may_be_swapped_in_a_session():
    hooks = LoopHooks(StepClock())
    hooks.install()
    first, second = torch.zeros(2), torch.ones(2)
    torch_objects.of_types(types())
    torch.utils.swap_tensors(first, second)
    hooks.remove()
    assert first.tolist() == [1, 1] and torch_objects._known is None


def test_nothing_is_kept_alive_and_forget_removes_the_callback():
    model, tensor = torch.nn.Linear(2, 2), torch.zeros(2)
    torch_objects.of_types(types())
    alive = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(tensor)]
    del model, tensor
    assert [one() for one in alive] == [None, None, None]
    assert torch_objects._before_collection in gc.callbacks
    torch_objects.forget()
    assert torch_objects._before_collection not in gc.callbacks
    assert torch_objects.found_without_pass(types()) is None


@pytest.mark.gpu
def test_the_agents_own_tensors_have_no_holder():
    """They would be traced through all objects of the process, in 0.1 s."""
    copies = Copies()
    slots = [copies.begin(torch.ones((), device="cuda")) for _ in range(3)]
    scanner = Scanner(TensorKinds())
    found = scanner.scan(10, lambda optimizer: False, None)
    assert None not in slots
    assert not [group for group in found.groups if "copies" in group.holder.name]
    assert not scanner._traced
