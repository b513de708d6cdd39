"""What a graph has saved is read without a hook of anybody's; also before PyTorch 2.10, where there is no way but unpacking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from vramscope.leaks.autograd.saved_tensors import MOST_STAYS, Hooked, SavedTensors


@pytest.fixture
def reader() -> Iterator[SavedTensors]:
    """As it is on a PyTorch before 2.10."""
    reader = SavedTensors(as_it_lies=False)
    reader.listen()
    yield reader
    reader.close()


def addresses(reader: SavedTensors, root: torch.Tensor) -> set[int]:
    """Of all that the graph of ``root`` has saved, as far as it is read."""
    found, stack, seen = set(), [root.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for value in reader.of(node, node._sequence_nr()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    found.add(tensor.untyped_storage().data_ptr())
        stack += [child for child, _ in node.next_functions]
    return found


def a_graph(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, set[int]]:
    """A loss, and the addresses of what is known to be saved for it: an input, a weight, a result."""
    hidden = torch.relu(x @ weight)
    kept = hidden.exp()
    return kept.sum(), {one.untyped_storage().data_ptr() for one in (x, hidden, kept)}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def test_with_no_hooks_all_that_is_saved_is_read(reader):
    weight = torch.randn(8, 8, requires_grad=True)
    loss, known = a_graph(torch.randn(4, 8), weight)
    assert known <= addresses(reader, loss)
    squared = Square.apply(weight)
    assert addresses(reader, squared.sum()) == {weight.untyped_storage().data_ptr()}
    several = torch.cat([weight.exp(), weight.sin()]).prod()
    assert len(addresses(reader, several)) >= 3
    loss.backward()
    assert addresses(reader, loss) == set(), "freed by the backward"


def test_reading_changes_nothing_that_the_backward_computes(reader):
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)
    a_graph(x, weight)[0].backward()
    assert weight.grad is not None
    alone, weight.grad = weight.grad, None
    loss, _ = a_graph(x, weight)
    assert addresses(reader, loss)
    loss.backward()
    assert torch.equal(alone, weight.grad)


def test_no_hook_runs_and_what_is_behind_one_is_left_unread(reader):
    unpacked = []
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)

    def unpack(packed):
        unpacked.append(1)
        return packed

    before, known = a_graph(x, weight)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        within, _ = a_graph(x, weight)
        assert addresses(reader, within) == set(), "while they stand"
    after, known_after = a_graph(x, weight)
    assert addresses(reader, within) == set(), "and afterwards"
    assert known <= addresses(reader, before)
    assert known_after <= addresses(reader, after)
    assert not unpacked
    within.backward()
    assert unpacked, "there was something to run"


def test_a_checkpoint_is_not_computed_anew(reader):
    computed = []
    layer = torch.nn.Linear(8, 8)

    def block(x):
        computed.append(1)
        return layer(x).relu()

    x = torch.randn(4, 8, requires_grad=True)
    out = x
    for _ in range(3):
        out = checkpoint(block, out, use_reentrant=False)
    addresses(reader, out.sum())
    assert len(computed) == 3


def test_a_hook_that_is_set_to_one_saved_tensor_does_not_run(reader):
    weight = torch.randn(8, 8, requires_grad=True)
    loss = weight.exp().sum()
    ran = []
    node = loss.grad_fn.next_functions[0][0]
    node._raw_saved_result.register_hooks(lambda tensor: tensor, lambda packed: ran.append(1) or packed)
    assert addresses(reader, loss) == set()
    assert not ran
    later, known = a_graph(torch.randn(4, 8), weight)
    assert known <= addresses(reader, later)


def test_what_was_changed_in_place_since_is_unknown_and_no_error(reader):
    weight = torch.randn(8, 8, requires_grad=True)
    hidden = weight.exp()
    loss = (hidden * hidden.detach().clone()).sum()
    with torch.no_grad():
        hidden.add_(1)
    assert hidden.untyped_storage().data_ptr() not in addresses(reader, loss)


def test_what_was_saved_before_anybody_listened_is_left_unread():
    weight = torch.randn(8, 8, requires_grad=True)
    early, _ = a_graph(torch.randn(4, 8), weight)
    reader = SavedTensors(as_it_lies=False)
    ran = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda packed: ran.append(1) or packed)
    with hooks:
        reader.listen()
        assert torch._C._autograd._saved_tensors_hooks_is_enabled(), "as before"
        standing, _ = a_graph(torch.randn(4, 8), weight)
    try:
        assert addresses(reader, early) == addresses(reader, standing) == set()
        late, known = a_graph(torch.randn(4, 8), weight)
        assert known <= addresses(reader, late)
        assert not ran
        with hooks:
            weight.exp().sum().backward()
        assert ran, "hooks go on working"
    finally:
        reader.close()
    assert addresses(reader, late) == set(), "closed: its hooks do nothing"


def test_pairs_within_pairs_and_more_than_are_remembered():
    now = [10]
    hooked = Hooked(lambda: now[0])

    def at(number: int) -> Hooked:
        now[0] = number
        return hooked

    at(20).put_up()
    at(22).put_up()
    at(24).taken_down()
    assert [hooked.may_hide(number) for number in (9, 10, 19, 20, 25)] == [True, False, False, True, True]
    at(30).taken_down()
    assert [hooked.may_hide(number) for number in (19, 20, 29, 30)] == [False, True, True, False]
    at(31).taken_down()  # of a pair that nobody heard of
    assert not hooked.may_hide(31)
    for number in range(MOST_STAYS):
        at(100 + 2 * number).put_up()
        at(101 + 2 * number).taken_down()
    assert hooked.may_hide(25), "what is no longer remembered is left unread"
    assert [hooked.may_hide(number) for number in (99, 100, 101)] == [False, True, False]
