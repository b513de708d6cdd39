"""What an evaluation without gradients gathers on the card until its end, where no step sees it: told with and without a loader."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

ROWS, OUT = 32768, 10  # a batch is larger than a workspace of cuBLAS
BATCH_BYTES = ROWS * OUT * 4


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, few_objects: None) -> None:
    """What earlier tests left lying is no part of a scan, and the scan does not depend on how busy the machine is."""
    from vramscope.leaks import schedule

    monkeypatch.setattr(schedule, "MOST_SECONDS", 60.0)


@contextlib.contextmanager
def watched() -> Iterator[list[Any]]:
    import torch

    from vramscope.integrations import plain
    from vramscope.leaks.detector import LeakDetector
    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

    torch.empty(1, device="cuda")
    scans: list[Any] = []
    clock = StepClock()
    clock.watch(share_peak_counters().watch(0))
    hooks = LoopHooks(clock)
    hooks.graphs = LeakDetector(clock, report=scans.append, seconds=10.0)
    hooks.install()
    plain.connect(None, hooks)
    try:
        yield scans
    finally:
        hooks.remove()


def batch(rows: int = ROWS) -> Any:
    import torch

    return torch.zeros(rows, 64, device="cuda")


def trained(evaluate: Callable[[Any], None], steps: int = 45) -> Any:
    """The looks at a training of small steps with an evaluation behind each tenth."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, OUT)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched() as scans:
        for step in range(steps):
            optimizer.zero_grad()
            model(batch(32)).sum().backward()
            optimizer.step()
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    evaluate(model)
                model.train()
    return scans


def of_a_loader(batches: int) -> Any:
    """Its batches are few bytes: what lives on the host is none of the card's."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(torch.zeros(batches, 1)), batch_size=1)


# -- what is reported --------------------------------------------------------------------------------------------------------


def a_list(model: Any) -> None:
    kept = []
    for _ in range(20):
        kept.append(model(batch()))


def joined(model: Any) -> None:
    import torch

    kept = None
    for _ in range(20):
        out = model(batch())
        kept = out if kept is None else torch.cat((kept, out))


def joined_by_a_loader(model: Any) -> None:
    import torch

    kept = None
    for _ in of_a_loader(20):
        out = model(batch())
        kept = out if kept is None else torch.cat((kept, out))


def by_a_loader_that_is_broken_off(model: Any) -> None:
    kept = []
    for number, _ in enumerate(of_a_loader(40)):
        if number == 19:
            break
        kept.append(model(batch()))


def by_the_second_of_two_loaders(model: Any) -> None:
    for _ in of_a_loader(8):
        model(batch())
    kept = []
    for _ in of_a_loader(20):
        kept.append(model(batch()))


class Metric:
    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def update(self, **values: Any) -> None:
        import torch

        for name, value in values.items():
            self.kept[name] = value if name not in self.kept else torch.cat((self.kept[name], value))


def of_a_metric(model: Any) -> None:
    metric = Metric()
    for _ in range(20):
        metric.update(scores=model(batch()), places=batch()[:, 0])


@pytest.mark.parametrize(
    ("evaluate", "batches"),
    [
        (a_list, 19),
        (joined, 19),
        (joined_by_a_loader, 20),
        (by_a_loader_that_is_broken_off, 19),
        (by_the_second_of_two_loaders, 20),
        (of_a_metric, 19),
    ],
)
def test_it_is_told_at_the_second_evaluation_and_stands(evaluate: Callable[[Any], None], batches: int) -> None:
    scans = trained(evaluate)
    seen = [scan for scan in scans if scan.leaks]
    assert seen[0].step == 20
    for scan in seen:
        (leak,) = scan.leaks
        assert (leak.kind, "kept" in leak.name) == ("tensor-growth", True)
    assert BATCH_BYTES * batches == pytest.approx(
        seen[0].leaks[0].held_bytes, rel=0.1 if evaluate is of_a_metric else 0.001
    )
    assert seen[0].leaks[0].emptied_after
    assert seen[-1] is scans[-1]


def test_it_is_not_taken_back_by_looks_at_steps_that_see_it_lie() -> None:
    """A variable of the training's own function has it until the next evaluation."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, OUT)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched() as scans:
        for step in range(65):
            optimizer.zero_grad()
            model(batch(32)).sum().backward()
            optimizer.step()
            if step % 10 == 9:
                model.eval()
                kept = []
                with torch.no_grad():
                    for _ in of_a_loader(20):
                        kept.append(model(batch()))
                model.train()
    seen = [bool(scan.leaks) for scan in scans]
    assert any(seen) and seen == sorted(seen), "once told, it stands"


# -- what is not ---------------------------------------------------------------------------------------------------------


def prepared(model: Any) -> None:
    batches = [batch() for _ in range(12)]
    for x in batches:
        model(x)


def ring(model: Any) -> None:
    last: deque[Any] = deque(maxlen=4)
    for _ in range(20):
        last.append(model(batch(4 * ROWS)))


def longer_and_longer(model: Any) -> None:
    """As of texts that are sorted by their length: a batch of each name, and what is made of it, grows with the batches."""
    import torch

    for number in range(1, 25):
        texts = {name: torch.zeros(64, 30 * number, 64, device="cuda") for name in ("ids", "mask", "labels")}
        out = model(texts["ids"])
    del out


def moved_to_the_host(model: Any) -> None:
    kept = []
    for _ in range(20):
        kept.append(model(batch()).cpu())


def written_into_one(model: Any) -> None:
    import torch

    rows = torch.empty(20 * ROWS, OUT, device="cuda")
    for number in range(20):
        rows[number * ROWS : (number + 1) * ROWS] = model(batch())


@pytest.mark.parametrize("evaluate", [prepared, ring, longer_and_longer, moved_to_the_host, written_into_one])
def test_what_does_not_grow_by_each_batch_is_not(evaluate: Callable[[Any], None]) -> None:
    scans = trained(evaluate)
    assert scans
    assert [leak for scan in scans for leak in scan.leaks] == []


def test_a_cache_that_each_call_is_given_is_not() -> None:
    import torch
    from torch import nn

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(100, 64), nn.Linear(64, 100)

        def forward(self, words: Any, cache: Any = None) -> Any:
            hidden = self.embedding(words)
            cache = [] if cache is None else cache
            cache.append(hidden)
            return self.head(hidden), cache

    model = Writer().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watched() as scans:
        for step in range(45):
            optimizer.zero_grad()
            model(torch.zeros(4, 8, dtype=torch.long, device="cuda"))[0].sum().backward()
            optimizer.step()
            if step % 10 == 9:
                model.eval()
                words, cache = torch.zeros(4096, 1, dtype=torch.long, device="cuda"), None
                with torch.no_grad():
                    for _ in range(20):
                        out, cache = model(words, cache=cache)
                        words = out.argmax(-1)
                model.train()
                del out, cache
    assert [leak for scan in scans for leak in scan.leaks] == []


@pytest.mark.frameworks
def test_what_trainer_gathers_is_told_with_its_own_setting(tmp_path: Any) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    words = {"vocab_size": 200, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=32, use_cache=False, **words))
    ids = torch.zeros(32, dtype=torch.long)
    data = [{"input_ids": ids, "labels": ids} for _ in range(4 * 20)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        max_steps=20,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    with watched() as scans:
        Trainer(
            model=model,
            args=arguments,
            train_dataset=data,
            eval_dataset=data,
            compute_metrics=lambda prediction: {"a": 1.0},
        ).train()
    (leak,) = scans[-1].leaks
    assert (leak.kind, leak.name) == ("tensor-growth", "all_preds.tensors")
    logits = 4 * 32 * 200 * 4
    assert leak.held_bytes == pytest.approx(20 * logits, rel=0.1)
    assert "eval_accumulation_steps" in leak.advice
