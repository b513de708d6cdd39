"""Projection of a forward: known where the blocks are similar and one of them was done, and then right; else
unknown.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramscope.oom import error_stack
from vramscope.oom import forward_progress as forward
from vramscope.oom.layers import leaves_of
from vramscope.oom.timeline import Timeline
from vramscope.steps.phase import EVAL

pytestmark = pytest.mark.gpu


class Adapted(nn.Module):
    """The backward needs the input of ``a`` alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.b(self.a(x))
        return y


class Block(nn.Module):
    """Keeps a value for each pair of tokens, like attention without fused kernels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qk, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.qk(self.norm(x))
        z: torch.Tensor = x + self.out((y @ y.transpose(1, 2)).softmax(-1) @ x)
        return z


class Speaker(nn.Module):
    """A language model with tied weights that computes its own loss."""

    def __init__(self, blocks: int, width: int, words: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.tail = row(6).requires_grad_(False), row(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.tail(self.body(x))
        return y


class Narrowing(nn.Module):
    """Images that get smaller and larger again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 32), (32, 64), (64, 128)))
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((128, 64), (64, 32), (32, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.down:
            x = nn.functional.max_pool2d(layer(x).relu(), 2)
        for layer in self.up:
            x = nn.functional.interpolate(layer(x).relu(), scale_factor=2)
        return x


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(row(3) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x


class Repeating(nn.Module):
    """Runs its block several times, after a layer that runs once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.first, self.block, self.times = nn.Linear(512, 512), row(4), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = self.block(x)
        return x


def row(layers: int) -> nn.Sequential:
    return nn.Sequential(*[one for _ in range(layers) for one in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))])


def died_in(
    model: nn.Module, place: int, train: Callable[[nn.Module], torch.Tensor]
) -> tuple[forward.RunningModule, int, int]:
    """For each childless module: (projection at its beginning, used bytes then, peak of the whole step), without
    weights.
    """
    model = model.cuda()
    gc.collect()
    torch.cuda.empty_cache()
    own = torch.cuda.memory_allocated()
    seen: list[tuple[forward.RunningModule | None, int]] = []

    def scan(module: nn.Module, args: Any, kwargs: Any = None) -> None:
        in_use = torch.cuda.memory_allocated() - own
        seen.append((forward.running_module(error_stack.stack_of(sys._getframe(1)), [model]), in_use))

    leaf = list(leaves_of(model))[place]
    handle = leaf.register_forward_pre_hook(scan)
    torch.cuda.reset_peak_memory_stats()
    train(model).backward()  # type: ignore[no-untyped-call]
    handle.remove()
    running, in_use = seen[0]
    assert running is not None
    gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    return running, in_use, torch.cuda.max_memory_allocated() - own - gradients


def rows(model: nn.Module) -> torch.Tensor:
    y: torch.Tensor = model(torch.empty(16384, 512, device="cuda")).square().mean()
    return y


def speaks(model: nn.Module) -> torch.Tensor:
    y: torch.Tensor = model(torch.zeros(8, 512, dtype=torch.long, device="cuda"))
    return y


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize(
    ("make", "train"),
    [
        (lambda: nn.Sequential(*[Adapted(512) for _ in range(12)]), rows),
        (lambda: row(12), rows),
        (lambda: Speaker(10, 256, 2000), speaks),
        (lambda: Speaker(6, 256, 16000), speaks),
    ],
    ids=["adapters", "a row of layers", "scores", "many words"],
)
def test_of_blocks_that_are_alike_what_was_to_come_is_what_comes(
    make: Callable[[], nn.Module], train: Callable[[nn.Module], torch.Tensor], share: float
) -> None:
    """Within the error of a remedy, and at most half as much again too high."""
    model = make()
    running, in_use, took = died_in(model, int(share * len(list(leaves_of(model)))), train)
    assert running.to_come_bytes is not None, running
    drawn = in_use + running.to_come_bytes
    assert drawn + 0.5 * running.to_come_bytes + 0.1 * drawn >= took, running
    assert drawn < 1.5 * took, running


@pytest.mark.parametrize("times", [1, 3])
def test_where_modules_run_again_what_is_to_come_is_not_known(times: int) -> None:
    """How often they still run cannot be told from those that have run."""
    model = Repeating(times).cuda()
    seen: list[forward.RunningModule | None] = []
    inner: nn.Linear = model.block[-3]
    inner.register_forward_pre_hook(
        lambda module, args: seen.append(forward.running_module(error_stack.stack_of(sys._getframe(1)), [model]))
    )
    rows(model)
    found = [one is not None and one.to_come_bytes is not None for one in seen]
    assert found == [True, False, False][:times]
    assert all(one is not None and one.own_bytes for one in seen), "what has been allocated is known all the same"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_still_makes_two_tensors_like_its_first(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of the loss, which is not known before."""
    model, original = Speaker(4, 256, 16000).to("cuda", dtype), torch._C._nn.cross_entropy_loss
    gc.collect()
    own = torch.cuda.memory_allocated()
    seen: list[tuple[forward.RunningModule | None, int]] = []

    def scan(logits: torch.Tensor, *args: Any) -> Any:
        in_use = torch.cuda.memory_allocated() - own + logits.nbytes
        seen.append(
            (forward.running_module(error_stack.stack_of(sys._getframe(1)), [model], asked_bytes=logits.nbytes), in_use)
        )
        return original(logits, *args)

    monkeypatch.setattr(torch._C._nn, "cross_entropy_loss", scan)
    torch.cuda.reset_peak_memory_stats()
    speaks(model).backward()  # type: ignore[no-untyped-call]
    took = torch.cuda.max_memory_allocated() - own - sum(one.nbytes for one in model.parameters())
    (running, in_use) = seen[0]
    assert running is not None and running.to_come_bytes == 2 * 8 * 512 * 16000 * dtype.itemsize
    drawn = in_use + running.to_come_bytes
    assert drawn + 0.5 * running.to_come_bytes + 0.1 * drawn >= took, running
    assert drawn < 1.5 * took, running


def test_memory_that_a_frozen_part_frees_does_not_count() -> None:
    early, *_ = died_in(Frozen(), 6, rows)
    assert early.to_come_bytes is None, "nothing is kept so far"
    running, in_use, took = died_in(Frozen(), 18 + 9, rows)
    assert running.to_come_bytes is not None
    assert in_use + running.to_come_bytes == pytest.approx(took, rel=0.3)


@pytest.mark.parametrize("place", [1, 4, 5])
def test_images_of_changing_size_are_not_extrapolated(place: int) -> None:
    def train(model: nn.Module) -> torch.Tensor:
        y: torch.Tensor = model(torch.empty(8, 3, 64, 64, device="cuda")).square().mean()
        return y

    assert died_in(Narrowing(), place, train)[0].to_come_bytes is None


def test_checkpoints_and_first_blocks_are_not_extrapolated() -> None:
    assert died_in(Checkpointed(), 9, rows)[0].to_come_bytes is None
    assert died_in(Speaker(4, 256, 2000), 3, speaks)[0].to_come_bytes is None
    assert died_in(nn.Sequential(*[Adapted(512) for _ in range(4)]), 1, rows)[0].to_come_bytes is None


def test_another_thread_is_not_walked() -> None:
    seen: list[forward.RunningModule | None] = []
    model = row(4).cuda()
    model[6].register_forward_pre_hook(
        lambda *_: seen.append(
            forward.running_module(error_stack.stack_of(sys._getframe(1)), [model], is_stopped=False)
        )
    )
    rows(model)
    assert seen[0] is not None and (seen[0].name, seen[0].to_come_bytes) == ("6", None)


@pytest.mark.parametrize(
    ("training", "graded", "wanted"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_in_autograd_functions_the_models_mode_decides(training: bool, graded: bool, wanted: bool) -> None:
    """A reentrant checkpoint runs its part with gradients off, as a compiled graph does. Elsewhere the grad mode
    decides.
    """

    class Reentrant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = checkpoint(self.part, x, use_reentrant=True) if graded else self.part(x)
            return y

    model, seen = Reentrant().train(training), []
    model.part.register_forward_hook(
        lambda *_: seen.append(error_stack.wants_gradients(error_stack.stack_of(sys._getframe(1))))
    )
    with torch.set_grad_enabled(graded):
        model(torch.zeros(2, 4, requires_grad=True))
    assert seen == [wanted]


def test_an_unobserved_training_model_makes_it_a_forward() -> None:
    """``reference.eval()`` shows only the reference, and its forward under no_grad counts as an evaluation."""
    reference, policy = nn.Linear(4, 4).requires_grad_(False).eval(), nn.Linear(4096, 4096)
    timeline = Timeline.__new__(Timeline)
    timeline._roots = [reference]
    error: Any = SimpleNamespace(thread=None, running=None, frames=[])
    clock = timeline._clock = SimpleNamespace(watched=True, phase=EVAL, step=0)  # type: ignore[assignment]
    assert policy.training and timeline.phase(error) == "forward"
    with torch.no_grad():
        assert timeline.phase(error) == "eval"
    clock.step = 1
    assert timeline.phase(error) == "eval", "by then all are known"
