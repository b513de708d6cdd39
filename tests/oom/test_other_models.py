"""Objects beside the training models: found, counted once, and distinguished from an earlier training."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
from collections import OrderedDict, deque
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from vramscope.memory.tensor_bytes import storages
from vramscope.oom import model_copy, other_models, owned_memory, weight_copies
from vramscope.protocol import series
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS

KIB = 1 << 10


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))  # 32 KiB


def counted(trains: nn.Module, seen: other_models.LiveObjects, **more: object) -> owned_memory.OwnedMemory:
    return owned_memory.count([], [trains], series.CPU, loading=False, live=seen, **more)  # type: ignore[arg-type]


def only(seen: other_models.LiveObjects, *models: nn.Module) -> other_models.LiveObjects:
    """Without what other tests left in this process."""
    return seen._replace(models=[one for one in seen.models if any(one is known for known in models)])


def test_teacher_and_checkpoint_count_once_as_other_models() -> None:
    trains, teacher = model(), model()
    checkpoint = {
        "model": OrderedDict(trains.state_dict()),
        "half": {k: v.clone() for k, v in trains.state_dict().items()},
    }
    batch = {"0.weight": torch.zeros(5), "labels": torch.zeros(1000, 64)}
    seen = only(other_models.scan(), trains, teacher)
    assert {id(one) for one in seen.models} == {id(trains), id(teacher)}
    held = counted(trains, seen)
    assert held.owned_bytes["parameters"] == 32 * KIB, "the state dict that is the model's own counts with the model"
    assert held.owned_bytes[OTHER_MODELS] == 64 * KIB
    assert {(one.module, one.held_bytes) for one in held.holders if one.category == OTHER_MODELS} == {
        ("Sequential", 32 * KIB),
        (COPIES, 32 * KIB),
    }
    assert {one.data_ptr() for one in checkpoint["half"].values()} < held.addresses
    assert held.weight_numbers == {}, "of small weights nothing is counted"
    named = held.copies
    assert named is not None and (named.name, named.tensors, named.held_bytes) == ("checkpoint['half']", 2, 32 * KIB)
    assert batch and checkpoint
    del checkpoint, seen
    gc.collect()
    assert counted(trains, only(other_models.scan(), trains)).owned_bytes[OTHER_MODELS] == 0


def test_the_variable_with_most_copies_is_named_with_its_line() -> None:
    trains = model()
    weights = dict(trains.named_parameters())
    few = {"0.weight": trains[0].weight.detach().clone(), "2.weight": trains[2].weight}
    best = {name: one.detach().clone() for name, one in weights.items()}
    line = sys._getframe().f_lineno - 1
    among = {key for one in (*few.values(), *best.values()) for key, _ in storages(one, series.CPU)}
    own = {key for one in weights.values() for key, _ in storages(one, series.CPU)}
    named = weight_copies.largest(weights, series.CPU, among - own)
    assert named is not None and (named.name, named.file, named.line) == ("best", __file__, line)
    assert (named.tensors, named.held_bytes) == (2, 32 * KIB)


def test_copies_in_a_list_count_together() -> None:
    trains = model()
    weights = dict(trains.named_parameters())
    best = {name: one.detach().clone() for name, one in weights.items()}
    history = [{name: one.detach().clone() for name, one in weights.items()} for _ in range(3)]
    among = {key for one in [*history, best] for value in one.values() for key, _ in storages(value, series.CPU)}
    named = weight_copies.largest(weights, series.CPU, among)
    assert named is not None and named.name.startswith("history[")
    assert (named.tensors, named.held_bytes) == (6, 96 * KIB)


def test_moments_masks_and_images_are_no_copies() -> None:
    trains = model()
    weights = dict(trains.named_parameters())
    moments = {name: torch.randn_like(one) * 1e-3 for name, one in weights.items()}
    masks = {name: torch.ones_like(one, dtype=torch.bool) for name, one in weights.items()}
    noise = {name: torch.randn_like(one) for name, one in weights.items()}
    among = {key for one in (moments, masks, noise) for value in one.values() for key, _ in storages(value, series.CPU)}
    assert weight_copies.largest(weights, series.CPU, among) is None


def test_a_copy_of_earlier_or_averaged_weights_is_one() -> None:
    trains = model()
    weights = dict(trains.named_parameters())
    with torch.no_grad():
        earlier = {name: one * (1 + 0.2 * torch.rand_like(one)) for name, one in weights.items()}
    among = {key for value in earlier.values() for key, _ in storages(value, series.CPU)}
    named = weight_copies.largest(weights, series.CPU, among)
    assert named is not None and named.name == "earlier"


def test_dicts_of_parameters_and_of_gradients_are_no_copies() -> None:
    """They have the same names and shapes."""
    trains = model()
    for one in trains.parameters():
        one.grad = torch.zeros_like(one)
    gradients = {name: one.grad for name, one in trains.named_parameters()}
    itself = dict(trains.named_parameters())
    assert counted(trains, only(other_models.scan(), trains)).copies is None and gradients and itself


def test_a_teacher_in_the_roots_is_not_a_training_model() -> None:
    """Its forward was observed, but nothing of it requires gradients."""
    trains, teacher = model(), model().requires_grad_(False)
    seen = only(other_models.scan(), trains, teacher)
    held = owned_memory.count([], [trains, teacher], series.CPU, loading=False, live=seen)
    assert (held.owned_bytes["parameters"], held.owned_bytes[OTHER_MODELS]) == (32 * KIB, 32 * KIB)
    alone = owned_memory.count([], [teacher], series.CPU, loading=False, live=only(other_models.scan(), teacher))
    assert (alone.owned_bytes["parameters"], alone.owned_bytes[OTHER_MODELS]) == (32 * KIB, 0), "a model that serves"


def test_a_dict_of_copies_is_found_while_it_is_made() -> None:
    trains, found = model(), []

    def half(tensor: torch.Tensor, last: bool) -> torch.Tensor:
        if last:
            found.append(counted(trains, only(other_models.scan(), trains)).owned_bytes[OTHER_MODELS])
        return tensor.clone()

    deep = nn.Sequential(*(model() for _ in range(3)))
    trains = deep
    names = list(trains.state_dict())
    _ = {name: half(tensor, name == names[-1]) for name, tensor in trains.state_dict().items()}
    assert found == [5 * 16 * KIB]


def test_the_optimizer_is_found_before_its_first_step() -> None:
    trains, earlier = model(), model()
    own, others = torch.optim.AdamW(trains.parameters()), torch.optim.AdamW(earlier.parameters())
    seen = other_models.scan()
    assert any(one is own for one in seen.optimizers) and any(one is others for one in seen.optimizers)
    assert other_models.optimizers_of(trains.parameters(), seen.optimizers) == [own]


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model, and an optimizer whose state is twice as large."""
    trains = model()
    optimizer = torch.optim.Adam(trains.parameters())
    trains(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return trains, optimizer


def test_state_dicts_of_other_optimizers_count_as_copies() -> None:
    """Those of a checkpoint or a snapshot. The live optimizer's own is its state, and so are its attributes."""
    trains, optimizer = trained()
    own = optimizer.state_dict()
    others = [other_models.scan().optimizers, own]

    def copies() -> int:
        held = owned_memory.count([], [trains], series.CPU, loading=False, live=only(other_models.scan(), trains))
        return held.owned_bytes[OTHER_MODELS]

    before = copies()
    snapshot = copy.deepcopy(own)
    moments = {0: {"exp_avg": torch.zeros(64, 64)}}
    assert copies() - before in range(64 * KIB, 64 * KIB + 64)  # and a few bytes for the steps
    assert others and snapshot and moments


class Probe:
    """Scans while it is copied."""

    def __init__(self, owned: set[int]) -> None:
        self.owned = owned
        self.found: list[tuple[model_copy.ModelCopy | None, int]] = []

    def __deepcopy__(self, memo: object) -> Probe:
        frame, frames = sys._getframe(), []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        copying, made = model_copy.copy_in_progress(frames, series.CPU, self.owned)
        self.found.append((copying, len(made)))
        return self


def test_a_snapshot_of_weights_and_state_is_known_while_it_is_copied() -> None:
    trains, optimizer = trained()
    owned = {key for one in trains.parameters() for key, _ in storages(one, series.CPU)}
    probe = Probe(owned)
    copy.deepcopy({"model": trains.state_dict(), "probe": probe, "optimizer": optimizer.state_dict()})
    copying, made = probe.found[0]
    assert copying is not None and copying.name == "the model's weights and the optimizer's state"
    assert (copying.whole_bytes // KIB, copying.waiting_bytes // KIB, made) == (96, 64, 2)


def test_a_model_within_an_object_is_known_while_it_is_copied() -> None:
    trains, _ = trained()
    probe = Probe(set())
    trains[0].probe = probe  # the second layer is copied after it
    copy.deepcopy(SimpleNamespace(name="agent", models=[trains, model()]))
    del trains[0].probe
    copying, made = probe.found[0]
    assert copying == model_copy.ModelCopy("Sequential", 32 * KIB, 16 * KIB) and made == 0


def test_sparse_buffers_do_not_hide_a_copy_of_a_model() -> None:
    """PyTorch raises where their size is asked for."""
    trains, _ = trained()
    probe = Probe(set())
    trains[0].probe = probe
    trains[1].register_buffer("neighbours", torch.eye(64).to_sparse())
    copy.deepcopy(trains)
    copying, _ = probe.found[0]
    assert copying is not None and copying.name == "Sequential"


def test_a_dict_without_weights_is_no_copy_of_them() -> None:
    trains, _ = trained()
    probe = Probe({key for one in trains.parameters() for key, _ in storages(one, series.CPU)})
    copy.deepcopy({"probe": probe, "pixels": torch.zeros(64, 64), "labels": torch.zeros(64)})
    assert probe.found == [(None, 0)]


def test_an_optimizer_that_will_begin_later_is_found() -> None:
    """Of a generator, while the critic takes its first step. One that an earlier training left has state."""
    critic, generator, earlier = model(), model(), model()
    own, waits, left, frozen = (torch.optim.AdamW(one.parameters()) for one in (critic, generator, earlier, model()))
    earlier(torch.ones(1, 64)).sum().backward()
    left.step()
    for one in frozen.param_groups[0]["params"]:
        one.requires_grad_(False)
    same = torch.optim.AdamW(critic.parameters())
    every = [own, waits, left, frozen, same]
    assert other_models.about_to_begin(every, [own], series.CPU) == [waits]
    assert other_models.about_to_begin(every, [own], 0) == [], "another device"


def test_waiting_bytes_of_a_model_that_is_being_moved() -> None:
    trains, moved, found = model(), nn.ModuleDict({"encoder": model()}), []

    def scan(tensor: torch.Tensor) -> torch.Tensor:
        frame, frames = sys._getframe(), []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        found.append(other_models.being_moved(frames))
        return tensor

    moved._apply(scan)
    assert all(one is moved for one in found) and found, "the outermost, not the layer whose turn it is"
    assert other_models.being_moved([sys._getframe()]) is None
    elsewhere = copy.deepcopy(trains).to("meta")
    owned = owned_memory.count([], [elsewhere], 0, loading=False, moving=moved)
    assert owned.waiting_bytes == 32 * KIB


def test_results_named_like_parameters_are_not_copies() -> None:
    """Fast weights have a graph and cannot be freed."""
    trains = model()
    fast = {name: one * 0.9 for name, one in trains.named_parameters()}
    assert counted(trains, only(other_models.scan(), trains)).owned_bytes[OTHER_MODELS] == 0
    kept = {name: one.detach() for name, one in fast.items()}
    del fast
    assert counted(trains, only(other_models.scan(), trains)).owned_bytes[OTHER_MODELS] == 32 * KIB
    assert kept


def test_weights_behind_torch_func_wrappers_count() -> None:
    """PyTorch must not warn about gradients of tensors that are no leaves."""
    trains, seen = model(), []
    weights = dict(trains.named_parameters())
    trains[0].weight.grad = torch.zeros(64, 64)

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                seen.append(counted(trains, only(other_models.scan(), trains)))
            return x

    trains.append(Asks())

    def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(trains, weights, (x,)).sum()

    torch.func.grad(loss_of)(weights, torch.zeros(2, 64))
    torch.func.vmap(lambda x: loss_of({"0.weight": x, "2.weight": x}, torch.zeros(2, 64)))(torch.zeros(3, 64, 64))
    assert [one.owned_bytes["parameters"] for one in seen] == [32 * KIB, 48 * KIB]
    assert counted(trains, only(other_models.scan(), trains)).owned_bytes["gradients"] == 16 * KIB


def test_the_model_of_an_earlier_fold_is_another_model() -> None:
    """It was observed and requires gradients; the new model was not observed yet."""
    old, trains = model(), model()
    old(torch.zeros(4, 64)).sum().backward()
    optimizer = torch.optim.AdamW(trains.parameters())
    seen = only(other_models.scan(), trains, old)
    for one in ([old], [old, trains]):
        held = owned_memory.count([optimizer], one, series.CPU, loading=False, live=seen)
        assert (held.owned_bytes["parameters"], held.trainable_bytes) == (32 * KIB, 32 * KIB)
        assert held.owned_bytes[OTHER_MODELS] == 2 * 32 * KIB, "with its gradients"
    without = owned_memory.count([], [old], series.CPU, loading=False, live=seen)
    assert without.owned_bytes["parameters"] == 32 * KIB, (
        "where no optimizer is known, the model that was called is the trained one"
    )


def test_fsdp2_gathered_parameters_are_not_weights(
    tmp_path: Path,
) -> None:
    """While the model runs it has whole parameters that no optimizer has."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        trains, old = model(), model()
        fully_shard(trains, mesh=mesh)
        optimizer = torch.optim.AdamW(trains.parameters())
        left = torch.optim.AdamW(old.parameters())
        seen = only(other_models.scan(), trains)._replace(optimizers=[optimizer, left])
        found: list[tuple[list[object], owned_memory.OwnedMemory]] = []

        def scan(*_: object) -> None:
            optimizers = other_models.optimizers_of(trains.parameters(), seen.optimizers)
            held = owned_memory.count(optimizers, [trains], series.CPU, loading=False, live=seen)
            found.append((optimizers, held))

        list(trains.children())[-1].register_forward_pre_hook(scan)
        trains(torch.zeros(4, 64))
        ((optimizers, held),) = found
        assert optimizers == [optimizer]
        assert (held.optimizer_kind, held.state_per_byte) == ("AdamW", 2.0)
        assert (held.trainable_bytes, held.owned_bytes["parameters"], held.owned_bytes[OTHER_MODELS]) == (
            32 * KIB,
            32 * KIB,
            0,
        )
    finally:
        torch.distributed.destroy_process_group()


def test_models_of_earlier_folds_are_counted_and_no_teacher_or_average() -> None:
    trains, folds = model(), [model(), model()]
    teacher = nn.Sequential(*model(), *model())
    average = model().requires_grad_(False)
    others = [*folds, teacher, average]
    optimizer = torch.optim.SGD(trains.parameters(), 0.1)
    seen = only(other_models.scan(), trains, *others)
    held = owned_memory.count([optimizer], [trains], series.CPU, loading=False, live=seen)
    assert held.kept_models == 2


def test_past_gradients_in_a_deque_are_optimizer_state() -> None:
    trains = model()
    optimizer = torch.optim.SGD(trains.parameters(), 0.1)
    for one in trains.parameters():
        optimizer.state[one]["late"] = deque([torch.zeros_like(one) for _ in range(3)])
    held = owned_memory.count([optimizer], [trains], series.CPU, loading=False)
    assert held.owned_bytes["optimizer"] == 3 * 32 * KIB
