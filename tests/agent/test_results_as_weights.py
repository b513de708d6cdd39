"""Computed weights, autograd nodes in variables, and arguments: what counts as a holder."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.func import functional_call

from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders import holder_bytes
from vramscope.leaks.scan.storages import storage_of
from vramscope.leaks.scan.tensors import of_the_model
from vramscope.process import name_roots


def test_computed_weights_of_a_functional_call_do_not_belong_to_the_model() -> None:
    model = nn.Linear(8, 8)
    fast = {name: weight * 2 for name, weight in model.named_parameters()}
    known: list[dict[int, int]] = []
    model.register_forward_hook(lambda *_: known.append(of_the_model([model], [])))
    functional_call(model, fast, (torch.ones(2, 8),))
    model(torch.ones(2, 8))
    during, after = known
    assert not during
    assert {storage_of(one) for one in model.parameters()} == set(after.items())


def test_views_of_one_flat_parameter_belong_to_the_model() -> None:
    """So FSDP has them during a forward."""
    flat = nn.Parameter(torch.ones(64))
    model = nn.Linear(8, 8, bias=False)
    del model.weight
    model._parameters["weight"] = flat.view(8, 8)  # type: ignore[assignment]
    assert of_the_model([model], [])


def test_a_node_in_a_variable_is_seen() -> None:
    """Also where the first scan is within an inference."""
    result = (torch.ones(4, requires_grad=True) * 2).exp()
    holder_bytes.references_to_node.cache_clear()
    with torch.inference_mode():
        assert not holder_bytes._has_node_in_python(result)
    assert not holder_bytes._has_node_in_python(result)
    nodes: list[Any] = [result.grad_fn]
    assert holder_bytes._has_node_in_python(result)
    nodes.clear()
    assert not holder_bytes._has_node_in_python(result)


def test_a_scan_does_not_take_its_own_references_for_the_programs() -> None:
    result = (torch.ones(4, requires_grad=True) * 2).exp()
    holder = cast("Any", None)
    assert not holder_bytes.group_of(holder, [result], {}, NodeBudget()).nodes_in_python
    node = result.grad_fn
    assert holder_bytes.group_of(holder, [result], {}, NodeBudget()).nodes_in_python
    del node


def names_of(value: object) -> list[str]:
    return [root.name for tier in name_roots.roots() for root in tier if root.value is value]


class Holding:
    def names(self) -> list[str]:
        return names_of(self)


def test_an_argument_is_named_as_the_caller_names_it() -> None:
    carried = [object()]

    def step(weights: list[object]) -> set[str]:
        return {"carried", "weights"} & set(names_of(weights))

    named, nameless = step(carried), step([object()])
    assert named == {"carried"}
    assert nameless == {"weights"}


class Learner:
    def __init__(self) -> None:
        self.fast: list[object] = [object()]

    def adapt(self, given: list[object]) -> tuple[set[str], set[str]]:
        return self.loss(self.fast), self.loss(given)

    def loss(self, weights: list[object]) -> set[str]:
        return {"weights", "given"} & set(names_of(weights))


class Slotted(Learner):
    __slots__ = ("fast",)


def test_an_argument_that_an_object_further_out_has_is_left_to_that_object() -> None:
    """What a call was given, and nobody further out has, keeps the name of the outermost variable."""
    assert Learner().adapt([object()]) == (set(), {"given"})
    assert Slotted().adapt([object()]) == (set(), {"given"})


class Keeper(Learner):
    """Has what a call is given in a dict, which is its attribute."""

    def adapt_from_dict(self) -> set[str]:
        self.by_name = {"weights": [object()]}
        return self.loss(self.by_name["weights"])


class Pair(NamedTuple):
    first: list[object]
    second: list[object]


def test_what_a_dict_of_an_attribute_has_is_no_attribute() -> None:
    """In each version of Python."""
    assert Keeper().adapt_from_dict() == {"weights"}


def test_a_field_of_a_named_tuple_is_an_attribute() -> None:
    pair, learner = Pair([object()], [object()]), Learner()
    assert learner.loss(pair.second) == set()
    assert learner.loss([object()]) == {"weights"}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)


def test_a_part_of_a_module_is_an_attribute() -> None:
    model, learner = Layers(), Learner()
    loss: Any = learner.loss
    assert loss(model.head) == set()


class Ruled:
    """Runs code where attributes are read."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    @property
    def kept(self) -> Any:
        raise AssertionError("kept")


def test_reading_attributes_runs_no_code_of_the_class() -> None:
    ruled, learner = Ruled(), Learner()
    value = [object()]
    object.__setattr__(ruled, "field", value)
    del value
    assert learner.loss(object.__getattribute__(ruled, "field")) == set()


def test_self_keeps_its_name() -> None:
    trainer = Holding()
    assert {"self", "trainer"} <= set(trainer.names())
