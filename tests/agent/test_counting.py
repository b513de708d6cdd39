"""What modules and optimizers own is counted where they keep it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.leaks.scan import storages
from vramscope.memory import optimizer_states, tensor_bytes
from vramscope.memory.tensor_bytes import count, counts_of, gradient_bytes
from vramscope.oom import other_models, owned_memory
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol.series import CPU


class AdaLomo(torch.optim.Optimizer):
    """Keeps its state as the package's does: in dicts of its own, by the names of parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})
        self.names = {id(one): name for name, one in model.named_parameters()}
        self.exp_avg_sq: dict[str, Any] = {}
        self.exp_avg_sq_row: dict[str, Any] = {}
        self.exp_avg_sq_col: dict[str, Any] = {}
        for name, one in model.named_parameters():
            if one.dim() == 1:
                self.exp_avg_sq[name] = torch.zeros(one.shape)
            else:
                self.exp_avg_sq_row[name] = torch.zeros(one.shape[0])
                self.exp_avg_sq_col[name] = torch.zeros(one.shape[1])


class Lomo(torch.optim.Optimizer):
    __module__ = "lomo_optim.lomo"

    def step(self, closure: Any = None) -> None: ...


def test_what_adalomo_keeps_in_dicts_of_its_own_is_optimizer_state() -> None:
    model = nn.Linear(64, 32)
    optimizer = AdaLomo(model)
    assert count([optimizer], [model], CPU).optimizer == 0, "dicts of anybody's are no state"
    AdaLomo.__module__ = "lomo_optim.adalomo"
    kept = (32 + 64 + 32) * 4
    assert count([optimizer], [model], CPU).optimizer == kept
    found = owned_memory.count([optimizer], [model], CPU, loading=False)
    assert found.owned_bytes["optimizer"] == kept


def test_buckets_are_copies_of_gradients_unless_these_are_parts_of_them() -> None:
    """The sizes are those of the wrapper's second forward, which makes them again."""

    class Wrapper(nn.Module):
        gradient_as_bucket_view = False

        def __init__(self, answer: dict[str, str]) -> None:
            super().__init__()
            self.module, self.config = nn.Linear(8, 8, bias=False), answer

        def _get_ddp_logging_data(self) -> dict[str, str]:
            return self.config

    wrapper = Wrapper({"bucket_sizes": "256"})
    assert owned_memory.count([], [wrapper], CPU, loading=False).bucket_bytes == 256
    wrapper.config["rebuilt_bucket_sizes"] = "128, 120"
    assert owned_memory.count([], [wrapper], CPU, loading=False).bucket_bytes == 248
    assert owned_memory.count([], [wrapper], 0, loading=False).bucket_bytes == 0, "they lie where the module does"
    wrapper.gradient_as_bucket_view = True
    assert owned_memory.count([], [wrapper], CPU, loading=False).bucket_bytes == 0


def test_of_an_optimizer_that_updates_within_the_backward_no_full_set_of_gradients_is_to_come() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(20)])
    found = owned_memory.count([Lomo(model.parameters(), {})], [model], CPU, loading=False)
    assert found.gradients_at_once_bytes == 64 * 64 * (2 * 4 + 2 * 4)
    assert found.state_per_byte == 0.0
    assert (
        Facts(
            trainable_bytes=found.trainable_bytes, gradients_at_once_bytes=found.gradients_at_once_bytes
        ).full_gradients_bytes
        == 4 * 64 * 64 * 4
    )
    usual = owned_memory.count([torch.optim.SGD(model.parameters(), 0.1)], [model], CPU, loading=False)
    assert usual.gradients_at_once_bytes is None
    assert Facts(trainable_bytes=usual.trainable_bytes).full_gradients_bytes == 20 * 64 * 64 * 4


def test_gradients_alone_are_counted_as_with_everything_else() -> None:
    """Also where two gradients share a bucket, and where a parameter is tied."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters())
    assert gradient_bytes([optimizer], [model], CPU) == count([optimizer], [model], CPU).gradients == 0
    bucket = torch.zeros(8)
    model[0].bias.grad, model[1].bias.grad = bucket[:4], bucket[4:]
    model[0].weight.grad = torch.zeros(4, 4)
    assert gradient_bytes([optimizer], [model], CPU) == count([optimizer], [model], CPU).gradients == 4 * (8 + 16)


def test_tensors_in_containers_are_state_and_are_counted_again_when_more_come() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    late = deque([torch.zeros(64, 64)])
    optimizer.state[model.weight] = {"late": late, "step": 1}
    before = counts_of([optimizer])
    assert count([optimizer], [model], CPU).optimizer == 64 * 64 * 4
    late.append(torch.zeros(64, 64))
    assert counts_of([optimizer]) != before
    assert count([optimizer], [model], CPU).optimizer == 2 * 64 * 64 * 4


def test_the_history_of_lbfgs_is_optimizer_state() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=10)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.eye(64)) - torch.eye(64)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    history = sum(len(optimizer.state[model.weight][name]) for name in ("old_dirs", "old_stps"))
    assert history
    assert count([optimizer], [model], CPU).optimizer >= history * 64 * 64 * 4


class Quantised(torch.Tensor):
    """A class that keeps its memory in another tensor, and does not say so: its storage has a size and no address."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Quantised:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, *arguments: Any) -> Any:
        return NotImplemented


def test_owners_are_counted_beside_a_class_without_an_address() -> None:
    model = nn.Linear(64, 32)
    model.register_buffer("scale", Quantised(torch.ones(1000)))
    owned = owned_memory.count([], [model], CPU, loading=False).owned_bytes
    assert owned["parameters"] == (64 + 1) * 32 * 4


def test_counting_owners_copies_no_copy_on_write_storage() -> None:
    """After an out-of-memory error there is no memory for the copy."""
    model, weights = nn.Linear(64, 32), torch.ones(1000)
    shared = torch._lazy_clone(weights)
    model.register_buffer("shared", shared)
    owned_memory.count([], [model], CPU, loading=False)
    assert torch._C._is_cow_tensor(shared)


def test_numbers_in_containers_are_not_visited_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer may keep the losses of all steps."""
    visited: list[Any] = []
    search = optimizer_states.tensors_in

    def counted(state: Any, depth: int = optimizer_states.DEPTH) -> Iterator[torch.Tensor]:
        visited.append(state)
        return search(state, depth)

    monkeypatch.setattr(optimizer_states, "tensors_in", counted)
    monkeypatch.setattr(tensor_bytes, "tensors_in", counted)
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.state[model.weight] = {"losses": [0.5] * 100, "last": [torch.zeros(64, 64)]}
    assert count([optimizer], [model], CPU).optimizer == 64 * 64 * 4
    assert len(visited) == 3
    assert counts_of([optimizer]).states == 1 + 101
    assert len(visited) == 3


class Shell(torch.Tensor):
    """A class without memory of its own, as programs write them to change what operations do."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_a_tensor_without_memory_of_its_own_does_not_hide_other_owners() -> None:
    """Its storage has no address, and PyTorch raises where it is asked for one."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.state[model.weight] = {"shell": torch.Tensor._make_wrapper_subclass(Shell, (64, 64))}
    counted = owned_memory.count([optimizer], [model], CPU, loading=False)
    assert counted.owned_bytes["parameters"] == 64 * 64 * 4
    assert counted.addresses == {model.weight.data_ptr()}


def test_lazy_parameters_do_not_hide_other_owners() -> None:
    model = nn.ModuleList([nn.Linear(64, 64, bias=False), nn.LazyLinear(7), nn.LazyBatchNorm1d()])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    live = owned_memory.LiveObjects([model], [optimizer], [model.state_dict()], [])
    assert other_models.optimizers_of(model.parameters(), live.optimizers) == [optimizer]
    assert other_models.about_to_begin(live.optimizers, [], CPU) == [optimizer]
    assert storages.storage_of(model[1].weight) is None
    counted = owned_memory.count([optimizer], [model], CPU, loading=False, live=live)
    assert counted.owned_bytes["parameters"] == 64 * 64 * 4


class Proxy:
    """Pretends to be of another class, and looks for it when it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        raise ConnectionError


def test_the_class_of_a_proxy_in_a_state_is_not_asked_for() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.state[model.weight] = {"logger": Proxy(), "last": [torch.zeros(64, 64), Proxy()]}
    assert counts_of([optimizer]).states == 1 + 2
    assert count([optimizer], [model], CPU).optimizer == 64 * 64 * 4
