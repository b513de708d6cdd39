"""Which passes over a loader are epochs of the training, to the graph watch."""

from itertools import chain, repeat

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from vramscope.leaks.detector import LeakDetector
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


def loader(rows: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(rows, 8)), batch_size=4, drop_last=True)


def of_each_pass(rows):
    """The whole loader, each time."""
    batches = loader(rows)
    return lambda: batches


def of_an_endless_one(rows):
    """Return one batch each time; the loader starts again after its last batch."""
    batches = chain.from_iterable(repeat(loader(rows)))
    return lambda: [next(batches)]


@pytest.mark.parametrize(
    ("validation", "graphs_off"),
    [
        pytest.param(of_each_pass(4), True, id="a single batch"),
        pytest.param(of_each_pass(4), False, id="a single batch, in eval mode alone"),
        pytest.param(of_each_pass(3), False, id="no whole batch, in eval mode alone"),
        pytest.param(of_an_endless_one(4), True, id="a single batch of an endless one"),
        pytest.param(of_an_endless_one(4), False, id="a single batch of an endless one, in eval mode alone"),
    ],
)
def test_a_validation_within_an_epoch_ends_none(validation, graphs_off, monkeypatch) -> None:
    ended = []
    clock = StepClock()
    monkeypatch.setattr(LeakDetector, "end_epoch", lambda watch: ended.append(clock.step))
    hooks = LoopHooks(clock)
    hooks.graphs = LeakDetector(clock, report=[].append)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    hooks.install([model])
    try:
        train = loader(40)
        for _ in range(2):
            for number, (x,) in enumerate(train):
                model(x).mean().backward()
                optimizer.step()
                if number % 3 == 2:
                    model.eval()
                    with torch.set_grad_enabled(not graphs_off):
                        for (held_out,) in validation():
                            model(held_out)
                    model.train()
    finally:
        hooks.remove()
    assert ended == [10, 20]
