"""The program's own data is named, and never the batch."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from vramscope.oom.data_on_device import collected_in_step, holder_of_data
from vramscope.protocol.oom_record import DataHolder

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def found(batch_bytes: int | None, *, keeps_data: bool) -> DataHolder | None:
    """Holder of data while the graph of a large batch is alive."""
    layer = torch.nn.Linear(1024, 8).cuda()
    batch = torch.empty(32 * 1024, 1024, device="cuda")
    features = torch.empty(64 * 1024, 1024, device="cuda") if keeps_data else None
    loss = layer(batch).sum()
    holder = holder_of_data(0, 1024 * MIB, 512 * MIB, batch_bytes)
    assert loss.requires_grad and (features is None) is not keeps_data
    return holder


def test_data_is_told_from_a_batch_of_unknown_size_by_the_graph() -> None:
    """Of the first step's input nothing is known."""
    holder = found(None, keeps_data=True)
    assert holder is not None and (holder.name, holder.held_bytes) == ("features", 256 * MIB)
    assert found(None, keeps_data=False) is None


@pytest.mark.parametrize("keeps", ["outputs", "targets"])
def test_a_batch_of_which_a_copy_is_saved_is_no_data(keeps: str) -> None:
    """Autocast makes one, as does ``images.float()``."""
    layer = torch.nn.Linear(1024, 8).cuda()
    images = torch.empty(128 * 1024, 1024, device="cuda", dtype=torch.uint8)
    outputs = layer(images.half().float())
    targets = torch.empty(128 * 1024, 8, device="cuda")
    loss = (outputs * targets).sum()
    if keeps == "outputs":
        del targets
    else:
        del outputs
    assert holder_of_data(0, 1024 * MIB, 512 * MIB, None) is None
    assert loss.requires_grad and len(images)


def test_a_tensor_smaller_than_some_batches_is_no_data() -> None:
    assert found(128 * MIB, keeps_data=True) is None


@pytest.mark.parametrize(("batches", "is_data"), [(6, True), (2, False)])
def test_batches_that_wait_in_a_queue_are_data(batches: int, is_data: bool) -> None:
    """They have as many rows as the batch. A few tensors of as many rows may be the parts of one batch."""
    layer = torch.nn.Linear(1024, 8).cuda()
    waiting = deque(torch.empty(32 * 1024, 1024, device="cuda") for _ in range(batches + 1))
    batch = waiting.popleft()
    loss = layer(batch).sum()
    holder = holder_of_data(0, 1024 * MIB, 512 * MIB, None)
    assert (holder is not None and holder.name == "waiting") is is_data
    assert loss.requires_grad and len(batch) and len(waiting) == batches


class Asks(torch.nn.Module):
    """A module in whose forward memory runs out."""

    def forward(self, *inputs: torch.Tensor) -> DataHolder | None:
        return holder_of_data(0, 1024 * MIB, 512 * MIB, 64 * MIB)


def test_a_list_of_what_a_running_call_was_given_is_its_batch() -> None:
    batch = [torch.empty(32 * 1024, 1024, device="cuda") for _ in range(2)]
    assert Asks()(*batch) is None
    holder = Asks()(torch.empty(8, 1024, device="cuda"))
    assert holder is not None and holder.name == "batch", "not given to it"


def test_a_tensor_that_a_running_call_was_given_as_a_whole_is_no_data() -> None:
    """A dense adjacency matrix beside small features: each step needs all of it."""
    near = torch.empty(128 * 1024, 1024, device="cuda")
    assert Asks()(near) is None
    holder = Asks()(near[:8])
    assert holder is not None and holder.held_bytes == 512 * MIB, "it was given a part"


def test_the_parts_of_one_batch_are_no_data() -> None:
    """They have as many rows as the batch, and nothing takes them out of their list again."""
    layer = torch.nn.Linear(6 * 1024, 8).cuda()
    crops = [torch.empty(32 * 1024, 1024, device="cuda") for _ in range(6)]
    outputs = layer(torch.cat(crops, 1))
    assert holder_of_data(0, 1024 * MIB, 512 * MIB, None) is None
    assert outputs.requires_grad and len(crops) == 6


def test_what_has_an_owner_is_no_data() -> None:
    """A snapshot of weights and state is a copy of them."""
    snapshot = {"average": torch.empty(64 << 20, device="cuda"), "best": torch.empty(64 << 20, device="cuda")}
    named = holder_of_data(0, 1024 * MIB, 512 * MIB, 0)
    assert named is not None and named.name == "snapshot"
    owned = frozenset({snapshot["average"].untyped_storage().data_ptr()})
    assert holder_of_data(0, 1024 * MIB, 512 * MIB, 0, owned) is None


def returned() -> list[torch.Tensor]:
    return [torch.empty(32 * 1024, 1024, device="cuda") for _ in range(6)]


@pytest.mark.parametrize("case", ["collected", "saved", "few", "no more than the last step", "in graphs"])
def test_a_list_that_has_more_than_the_last_step_was_collected(case: str) -> None:
    """Vectors as large as the weights, or pictures of a sampler. What a graph needs, or any step may have, is not meant."""
    layer = torch.nn.Linear(1024, 1024, bias=False).cuda()
    vectors = []
    for _ in range(3 if case == "few" else 6):
        vectors.append(torch.empty(32 * 1024, 1024, device="cuda"))
    if case == "in graphs":
        vectors = [layer(one) for one in vectors]
    outputs = [layer(one) for one in vectors] if case == "saved" else []
    named = collected_in_step(0, (800 if case.startswith("no more") else 300) * MIB)
    if case == "collected":
        assert named is not None and (named.name, named.held_bytes, named.tensors) == ("vectors", 768 * MIB, 6)
    else:
        assert named is None
    assert len(vectors) and len(outputs) in (0, 6)


def test_what_one_call_returns_was_not_collected() -> None:
    """Gradients of each sample, say: as many as the call was given."""
    gradients = returned()
    assert collected_in_step(0, 300 * MIB) is None
    assert len(gradients) == 6
