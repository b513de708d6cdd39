"""Trainings by name, with or without one technique each. test_techniques.py compares the reports of the agent."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from names import HAS_MUON
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

sys.path.append(f"{sys.prefix}/optimizers")  # bitsandbytes and torchao, of which the other tests must not know

STEPS = 6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Loop = Callable[[], tuple[Any, Callable[[], None]]]
CASES: dict[str, Loop] = {}
"""Name -> function that returns the attached object and the training."""


def case(make: Loop) -> Loop:
    CASES[make.__name__] = make
    return make


class Blocks(nn.Module):
    """Four blocks and a head. Each case defines how a block is called."""

    def __init__(self, call: Callable[[nn.Module, torch.Tensor], torch.Tensor], blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(blocks))
        self.head = nn.Linear(64, 4)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)


def plainly(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def loop(
    model: nn.Module,
    *,
    steps: int = STEPS,
    micro_steps: int = 1,
    around: Callable[[], Any] = contextlib.nullcontext,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[], None] = lambda: None,
    inputs: torch.Tensor | None = None,
    zero: dict[str, bool] | None = None,
) -> tuple[Any, Callable[[], None]]:
    """A plain loop over a model on the device."""
    model.to(DEVICE)
    optimizer = optimizer or torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(steps):
            for _ in range(micro_steps):
                x = torch.zeros(8, 64, device=DEVICE, requires_grad=True) if inputs is None else inputs
                with around():
                    loss = model(x).float().square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(**(zero or {}))
            after()

    return model, train


# -- plain loops ---------------------------------------------------------------------------------------------------------


@case
def plain() -> Any:
    return loop(Blocks(plainly))


@case
def checkpoint_non_reentrant() -> Any:
    return loop(Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False)))


@case
def checkpoint_every_second() -> Any:
    class EverySecond(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = block(x) if number % 2 else checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    return loop(EverySecond(plainly, 6))


@case
def checkpoint_reentrant() -> Any:
    return loop(Blocks(lambda block, x: checkpoint(block, x, use_reentrant=True)))


@case
def checkpoint_unset() -> Any:
    return loop(Blocks(lambda block, x: checkpoint(block, x)))


@case
def checkpoint_segments() -> Any:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint_sequential(self.layers, 2, x)

    return loop(Segments())


@case
def checkpoint_wrapper() -> Any:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap

    model = Blocks(plainly)
    model.blocks[1] = wrap(model.blocks[1])
    return loop(model)


@case
def checkpoint_selective() -> Any:
    """Results of matrix products are saved, all else is recomputed."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    return loop(Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)))


@case
def checkpoint_own() -> Any:
    """A custom function that runs a block without gradients, and again in backward."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, block: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.block = block
            ctx.save_for_backward(x)
            with torch.no_grad():
                return block(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = ctx.block(x)
            torch.autograd.backward(y, gradient)
            return None, x.grad

    return loop(Blocks(lambda block, x: Again.apply(block, x)))


class Scores(nn.Module):
    """Custom attention. Each case defines how its core, a function without modules, is called."""

    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x.view(2, -1, 64)).chunk(3, -1)
        return self.call(scores_of_pairs, q, k, v)


def scores_of_pairs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(1, 2) / 8).masked_fill(torch.ones(4, 4, device=DEVICE).triu(1) > 0, -1e9)
    return nn.functional.dropout(scores.softmax(-1), 0.1) @ v


@case
def attention_of_ones_own() -> Any:
    return loop(Scores(lambda core, *qkv: core(*qkv)))


@case
def router_of_ones_own() -> Any:
    """A softmax over experts, whose scores come from a layer or an einsum."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(64, 4), nn.Parameter(torch.randn(4, 64, 64))
            self.second = nn.Parameter(torch.randn(64, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(2, 4, 64)
            by_layer, by_einsum = self.gate(x), torch.einsum("btd,de->bte", x, self.second)
            every = torch.einsum("btd,edf->btef", x, self.experts)
            return sum(torch.einsum("bte,btef->btf", gate.softmax(-1), every) for gate in (by_layer, by_einsum))

    return loop(Mixture())


@case
def checkpointed_function() -> Any:
    return loop(Scores(lambda core, *qkv: checkpoint(core, *qkv, use_reentrant=False)))


@case
def checkpointed_function_reentrant() -> Any:
    return loop(Scores(lambda core, *qkv: checkpoint(core, *qkv, use_reentrant=True)))


@case
def checkpointed_function_beside_blocks() -> Any:
    """The functions around the blocks are known; the checkpointed loss is new."""

    class WithLoss(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.loss, super().forward(x), use_reentrant=False)

        def loss(self, y: torch.Tensor) -> torch.Tensor:
            return y.exp().log()

    return loop(WithLoss(lambda block, x: checkpoint(lambda x: block(x), x, use_reentrant=False)))


@case
def checkpoint_around_a_part_without_gradients() -> Any:
    """A part without gradients within a block, and a module that a hook calls in backward: no other variant."""

    class Coded(Blocks):
        def __init__(self) -> None:
            super().__init__(lambda block, x: checkpoint(self.coded, block, x, use_reentrant=False))
            self.codes, self.turn = nn.Linear(64, 64), nn.Linear(4, 4)

        def coded(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                code = self.codes(x)
            return block(x) + code

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.turn(x[:, :4])
            y = super().forward(x)
            y.register_hook(torch.no_grad()(self.turn))
            return y

    return loop(Coded())


@case
def checkpointed_function_without_gradients() -> Any:
    """No input needs a gradient: nothing is recomputed or saved."""

    def call(core: Any, *qkv: torch.Tensor) -> torch.Tensor:
        held = [part.detach() for part in qkv]
        return qkv[0] + checkpoint(core, *held, use_reentrant=False)

    return loop(Scores(call))


@case
def checkpoint_of_frozen_blocks() -> Any:
    """Enabled as in transformers, but the blocks are frozen and their inputs need no gradient."""
    model = Blocks(lambda block, x: checkpoint(block, x, use_reentrant=True))
    model.gradient_checkpointing = True
    model.blocks.requires_grad_(False)
    return loop(model, inputs=torch.zeros(8, 64, device=DEVICE))


class Adapted(nn.Module):
    """A frozen layer with a trained adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.adapter = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.adapter(x)


def adapters(*, reentrant: bool, needs_gradient: bool) -> Any:
    model = Blocks(lambda block, x: checkpoint(block, x, use_reentrant=reentrant))
    model.blocks = nn.ModuleList(Adapted() for _ in range(3))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inputs = torch.zeros(8, 64, device=DEVICE, requires_grad=needs_gradient)
    return loop(model, inputs=inputs, optimizer=torch.optim.AdamW(trained))


@case
def checkpoint_adapters_without_gradient() -> Any:
    return adapters(reentrant=True, needs_gradient=False)


@case
def checkpoint_adapters_with_gradient() -> Any:
    return adapters(reentrant=True, needs_gradient=True)


@case
def checkpoint_adapters_non_reentrant() -> Any:
    return adapters(reentrant=False, needs_gradient=False)


class LateBinding(Blocks):
    """The article's loop: the lambda reads the loop variable, which is another block in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__(plainly)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(lambda y: block(y), x, use_reentrant=self.reentrant)  # noqa: B023 - the trap itself
        return self.head(x)


class EarlyBinding(LateBinding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def call(block: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda y: block(y)

        for block in self.blocks:
            x = checkpoint(lambda y, block=block: block(y), x, use_reentrant=False)
            x = checkpoint(call(block), x, use_reentrant=False)
        return self.head(x)


@case
def closure_late() -> Any:
    return loop(LateBinding(reentrant=False))


@case
def closure_late_reentrant() -> Any:
    return loop(LateBinding(reentrant=True))


@case
def closure_early() -> Any:
    return loop(EarlyBinding(reentrant=False))


@case
def closure_by_number() -> Any:
    """No variable is a module: the call shows which module it is."""

    class ByNumber(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(len(self.blocks)):
                x = checkpoint(lambda y: self.blocks[i](y), x, use_reentrant=False)  # noqa: B023 - the trap itself
            return self.head(x)

    return loop(ByNumber(plainly))


@case
def closure_over_a_tensor() -> Any:
    class Scaled(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                scale = torch.ones(64, device=DEVICE)
                x = checkpoint(lambda y, block=block: block(y) * scale, x, use_reentrant=False)  # noqa: B023
            return self.head(x)

    return loop(Scaled(plainly))


@case
def closure_that_counts() -> Any:
    """One function for all blocks, which are arguments. Its output variable is not read. With two losses, each block is
    recomputed twice."""
    seen = None

    def call(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen = x.detach()
        return block(x)

    model = Blocks(lambda block, x: checkpoint(call, block, x, use_reentrant=False)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            y = model(torch.zeros(8, 64, device=DEVICE, requires_grad=True))
            y.mean().backward(retain_graph=True)
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def teacher_inside() -> Any:
    """Two thirds of the parameters belong to a teacher: no partial fine-tuning."""

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = Blocks(plainly)
            self.teacher = nn.Sequential(Blocks(plainly), nn.Linear(4, 4)).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.teacher(x)
            return self.student(x) - target

    return loop(Distilled())


@case
def teacher_without_gradients() -> Any:
    """A frozen teacher that runs without gradients; nothing is recomputed."""
    teacher = Blocks(plainly).to(DEVICE).requires_grad_(False)
    student = Blocks(plainly)

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = student

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = teacher(x)
            return self.student(x) - target

    return loop(Distilled())


@case
def accumulation() -> Any:
    return loop(Blocks(plainly), micro_steps=4)


@case
def accumulation_with_a_remainder() -> Any:
    """Ten batches per epoch, four per step: every third step has two. Step 3 is not observed, but steps like 15 are."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for number in range(80):
            model(torch.zeros(8, 64, device=DEVICE)).square().mean().backward()
            if number % 10 in (3, 7, 9):
                optimizer.step()
                optimizer.zero_grad()

    return model, train


@case
def two_optimizers_of_one_model() -> Any:
    """Both optimizers step together after four micro-steps."""
    model = Blocks(plainly).to(DEVICE)
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    chosen = set(map(id, matrices))
    both = [torch.optim.SGD(matrices, 0.1), torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen])]

    def train() -> None:
        for _ in range(STEPS):
            for _ in range(4):
                model(torch.zeros(8, 64, device=DEVICE)).square().mean().backward()
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()

    return model, train


@case
def accumulation_keeping_zeros() -> Any:
    return loop(Blocks(plainly), micro_steps=3, zero={"set_to_none": False})


@case
def two_losses_of_one_graph() -> Any:
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            y = model(torch.zeros(8, 64, device=DEVICE))
            y.mean().backward(retain_graph=True)
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def two_models_of_one_optimizer() -> Any:
    """Each model has its own backward in the step: no accumulation. One rounds to 8 bits in float32."""

    class FP8Rounding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.mul(8).round() / 8

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    both = nn.ModuleList([Blocks(lambda block, x: FP8Rounding.apply(block(x))), Blocks(plainly)]).to(DEVICE)
    optimizer = torch.optim.AdamW(both.parameters())

    def train() -> None:
        for _ in range(STEPS):
            for model in both:
                model(torch.zeros(8, 64, device=DEVICE)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return both, train


@case
def losses_summed_up() -> Any:
    """One backward for the sum of four losses: the activations of four batches exist together."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            loss = sum(model(torch.zeros(8, 64, device=DEVICE)).square().mean() for _ in range(4))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def sharpness_aware() -> Any:
    """Two forward and backward passes per step; the first gradients are dropped: no accumulation."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train() -> None:
        for _ in range(STEPS):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.zeros(8, 64, device=DEVICE)).mean().backward()
            optimizer.step()

    return model, train


@case
def lbfgs() -> Any:
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(torch.ones(8, 64, device=DEVICE)).square().mean()
        loss.backward()
        return loss

    def train() -> None:
        for _ in range(STEPS):
            optimizer.step(closure)

    return model, train


@case
def gan() -> Any:
    """Two optimizers and three backward passes: no accumulation."""
    generator, critic = (
        Blocks(plainly).to(DEVICE),
        nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE),
    )
    both = [torch.optim.Adam(generator.parameters()), torch.optim.SGD(critic.parameters(), 0.1)]

    def train() -> None:
        for _ in range(STEPS):
            fake = generator(torch.zeros(8, 64, device=DEVICE))
            both[1].zero_grad()
            critic(torch.zeros(8, 4, device=DEVICE)).mean().backward()
            critic(fake.detach()).mean().backward()
            both[1].step()
            both[0].zero_grad()
            critic(fake).mean().backward()
            both[0].step()

    return None, train


@case
def gan_that_switches_gradients_off() -> Any:
    """Each half is frozen while the other steps; both are trained."""
    pair = nn.ModuleDict({"generator": Blocks(plainly), "critic": nn.Linear(4, 1)}).to(DEVICE)
    both = [torch.optim.Adam(model.parameters()) for model in pair.values()]

    def train() -> None:
        for _ in range(STEPS):
            for turn, (model, optimizer) in enumerate(zip(pair.values(), both, strict=True)):
                pair.requires_grad_(False)
                model.requires_grad_(True)
                fake = pair["generator"](torch.zeros(8, 64, device=DEVICE))
                pair["critic"](fake.detach() if turn else fake).mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    return pair, train


@case
def gan_of_two_models() -> Any:
    """The checkpointed critic is frozen while the generator steps, which ends the training steps."""
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU()).to(DEVICE)
    critic = Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False)).to(DEVICE)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())

    def train() -> None:
        for _ in range(STEPS):
            critic.requires_grad_(False)
            of_generator.zero_grad()
            critic(generator(torch.zeros(8, 8, device=DEVICE))).mean().backward()
            of_generator.step()
            critic.requires_grad_(True)
            of_critic.zero_grad()
            critic(generator(torch.zeros(8, 8, device=DEVICE)).detach()).mean().backward()
            of_critic.step()

    return None, train


def from_a_loader(given: Callable[[torch.Tensor], list[torch.Tensor]], batch_size: int = 8) -> Any:
    """A loop over a DataLoader of samples. ``given`` returns the model inputs of a batch, used one after the other in a step."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.zeros(STEPS * batch_size, 64), batch_size)

    def train() -> None:
        for batch in loader:
            for x in given(batch.to(DEVICE)):
                model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def two_views_of_a_batch() -> Any:
    return from_a_loader(lambda batch: [torch.cat([batch, batch])])


@case
def a_batch_in_pieces() -> Any:
    """Batches of the loader are split into micro-batches for the model."""
    return from_a_loader(lambda batch: list(batch.split(2)))


@case
def a_loader_of_ready_batches() -> Any:
    """Each sample of the dataset is a batch; the loader has no batch size."""
    return from_a_loader(lambda batch: [batch.view(4, 16).repeat(3, 4)], batch_size=1)


@case
def autocast_bf16() -> Any:
    return loop(Blocks(plainly), around=lambda: torch.autocast(DEVICE, torch.bfloat16))


def scaled(dtype: torch.dtype, scaler: Any, around: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss) -> Any:
    """A loop with autocast to a dtype and a scaler, which may be disabled. ``around`` changes the loss."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            with torch.autocast(DEVICE, dtype):
                loss = model(torch.zeros(8, 64, device=DEVICE)).float().mean()
            scaler.scale(around(loss)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return model, train


@case
def autocast_fp16_scaled() -> Any:
    return scaled(torch.float16, torch.amp.GradScaler(DEVICE))


@case
def autocast_fp16_unscaled() -> Any:
    return scaled(torch.float16, torch.amp.GradScaler(DEVICE, enabled=False))


@case
def autocast_fp16_scaled_by_hand() -> Any:
    return scaled(torch.float16, torch.amp.GradScaler(DEVICE, enabled=False), lambda loss: 1024 * loss)


@case
def autocast_fp16_of_a_frozen_part() -> Any:
    """The trained part runs in float32: no gradient has 16 bits."""

    class Probed(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(DEVICE, torch.float16):
                for block in self.blocks:
                    x = block(x)
            return self.head(x.float())

    model = Probed(plainly)
    model.blocks.requires_grad_(False)
    return loop(model)


@case
def autocast_bf16_scaled() -> Any:
    return scaled(torch.bfloat16, torch.amp.GradScaler(DEVICE))


@case
def autocast_bf16_unscaled() -> Any:
    """One loop for both dtypes, as often written."""
    return scaled(torch.bfloat16, torch.amp.GradScaler(DEVICE, enabled=False))


@case
def bf16_weights() -> Any:
    model = Blocks(plainly).to(DEVICE, torch.bfloat16)
    return loop(model, inputs=torch.zeros(8, 64, device=DEVICE, dtype=torch.bfloat16))


@case
def bf16_weights_with_masters() -> Any:
    """Float32 copies by hand: the optimizer never gets the model's parameters."""
    model = Blocks(plainly).to(DEVICE, torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters)

    def train() -> None:
        for _ in range(STEPS):
            model(torch.zeros(8, 64, device=DEVICE, dtype=torch.bfloat16)).float().square().mean().backward()
            for parameter, master in zip(model.parameters(), masters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for parameter, master in zip(model.parameters(), masters, strict=True):
                    parameter.copy_(master)

    return model, train


@case
def bf16_weights_that_stay() -> Any:
    """A trained prompt, and a model that is not frozen: its parameters have no copies."""
    model = Blocks(plainly).to(DEVICE, torch.bfloat16)
    prompt = torch.zeros(1, 64, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.AdamW([prompt])

    def train() -> None:
        for _ in range(STEPS):
            model((prompt + torch.zeros(8, 64, device=DEVICE)).bfloat16()).float().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def frozen_in_bf16() -> Any:
    """A frozen 16-bit body that is not cast, under a 32-bit head."""

    class Probed(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x.bfloat16())
            return self.head(x.float())

    model = Probed(plainly)
    model.blocks.bfloat16().requires_grad_(False)
    return loop(model)


@case
def frozen_in_bf16_and_cast() -> Any:
    """FSDP casts the trained part for its forward; the frozen part has 16 bits anyway."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    alone()
    model = Blocks(plainly).to(DEVICE)
    model.blocks.bfloat16().requires_grad_(False)
    for part in (*model.blocks, model):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    return loop(model)


@case
def teacher_in_bf16() -> Any:
    """The teacher has most weights; the trained model has no 16-bit weights."""

    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = Blocks(plainly)
            self.teacher = nn.Sequential(Blocks(plainly), nn.Linear(4, 4)).bfloat16().requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.teacher(x.bfloat16()).float()
            return self.student(x) - target

    return loop(Distilled())


@case
def lora_on_bf16() -> Any:
    """peft keeps 32-bit adapters on a 16-bit base."""
    from peft import LoraConfig, get_peft_model

    class Cast(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.bfloat16())

    model = Cast(plainly).to(DEVICE, torch.bfloat16)
    return loop(get_peft_model(model, LoraConfig(r=4, target_modules=r"blocks\.\d+\.0")))


@case
def fused_optimizer() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=torch.optim.Adam(model.parameters(), fused=True))


@case
def foreach_optimizer() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=torch.optim.AdamW(model.parameters(), foreach=True))


@case
def single_optimizer() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=torch.optim.AdamW(model.parameters(), foreach=False))


@case
def adafactor() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=torch.optim.Adafactor(model.parameters()))


if HAS_MUON:

    @case
    def muon() -> Any:
        """Muon for matrices, with AdamW for the rest."""
        model = Blocks(plainly).to(DEVICE)
        matrices = [p for p in model.parameters() if p.dim() == 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        both = [torch.optim.Muon(matrices), torch.optim.AdamW(vectors)]

        def train() -> None:
            for _ in range(STEPS):
                model(torch.zeros(8, 64, device=DEVICE)).mean().backward()
                for optimizer in both:
                    optimizer.step()
                    optimizer.zero_grad()

        return model, train


@case
def an_optimizer_a_parameter() -> Any:
    """Each optimizer steps within backward, on an autograd thread, when its gradient exists."""
    model = Blocks(plainly).to(DEVICE)
    own = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)

    def train() -> None:
        for _ in range(STEPS):
            model(torch.zeros(8, 64, device=DEVICE)).square().mean().backward()

    return model, train


class Eight(torch.optim.Optimizer):
    """Keeps one 8-bit moment for matrices and a 32-bit one for vectors, as 8-bit optimizers do for small tensors; or one
    in host memory, as the offloading optimizers of DeepSpeed and torchao do."""

    def __init__(self, parameters: Any, *, on_host: bool = False) -> None:
        super().__init__(parameters, {})
        self.on_host = on_host

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p] and self.on_host:
                    self.state[p] = {"step": 0, "moment": torch.zeros(p.shape), "copy": p.cpu()}
                elif not self.state[p]:
                    dtype = torch.uint8 if p.dim() > 1 else torch.float32
                    self.state[p] = {"step": 0, "moment": torch.zeros_like(p, dtype=dtype)}


def eagerly(target: Any, train: Callable[[], None]) -> Any:
    """Run compiled functions eagerly: torchao compiles its steps, and most machines have no compiler."""

    def train_eagerly() -> None:
        with torch.compiler.set_stance("force_eager"):
            train()

    return target, train_eagerly


@case
def eight_bit() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=Eight(model.parameters()))


@case
def optimizer_on_the_host() -> Any:
    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=Eight(model.parameters(), on_host=True))


@case
def eight_bit_by_torchao() -> Any:
    from torchao.optim import AdamW8bit

    model = Blocks(plainly).to(DEVICE)
    return eagerly(*loop(model, optimizer=AdamW8bit(model.parameters())))


@case
def four_bit_by_torchao() -> Any:
    from torchao.optim import AdamW4bit

    model = Blocks(plainly).to(DEVICE)
    return eagerly(*loop(model, optimizer=AdamW4bit(model.parameters())))


@case
def fp8_by_torchao() -> Any:
    from torchao.optim import AdamWFp8

    model = Blocks(plainly).to(DEVICE)
    return eagerly(*loop(model, optimizer=AdamWFp8(model.parameters())))


@case
def offload_by_torchao() -> Any:
    from torchao.optim import CPUOffloadOptimizer

    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW))


@case
def eight_bit_by_bitsandbytes() -> Any:
    from bitsandbytes.optim import AdamW8bit

    model = Blocks(plainly).to(DEVICE)
    return loop(model, optimizer=AdamW8bit(model.parameters()))


def projected(kind: type[torch.optim.Optimizer], **more: Any) -> Any:
    """Rank 8 for the blocks' weights; ordinary updates for the rest."""
    model = Blocks(plainly).to(DEVICE)
    wide = [block[0].weight for block in model.blocks]
    rest = [one for one in model.parameters() if all(one is not other for other in wide)]
    low = {"params": wide, "rank": 8, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std", **more}
    return loop(model, optimizer=kind([{"params": rest}, low], no_deprecation_warning=True))


@case
def galore() -> Any:
    from galore_torch import GaLoreAdamW

    return projected(GaLoreAdamW)


@case
def apollo() -> Any:
    from apollo_torch import APOLLOAdamW

    return projected(APOLLOAdamW, proj="random", scale_type="channel")


@case
def schedule_free() -> Any:
    """An ordinary optimizer with the state size of Adam."""
    from schedulefree import AdamWScheduleFree

    model = Blocks(plainly).to(DEVICE)
    optimizer = AdamWScheduleFree(model.parameters())
    optimizer.train()
    return loop(model, optimizer=optimizer)


def in_the_backward(name: str) -> Any:
    """LOMO or AdaLomo, whose package is imported after attach."""
    model = Blocks(plainly).to(DEVICE)

    def train() -> None:
        import lomo_optim

        optimizer = getattr(lomo_optim, name)(model, lr=0.1)
        for _ in range(STEPS):
            optimizer.fused_backward(model(torch.zeros(8, 64, device=DEVICE)).mean(), 0.1)

    return model, train


@case
def lomo() -> Any:
    return in_the_backward("Lomo")


@case
def adalomo() -> Any:
    return in_the_backward("AdaLomo")


@case
def paged_by_bitsandbytes() -> Any:
    from bitsandbytes.optim import PagedAdamW8bit

    model = nn.Sequential(nn.Linear(64, 4096), nn.Linear(4096, 64)).to(DEVICE)
    return loop(model, optimizer=PagedAdamW8bit(model.parameters()))


@case
def paged_lion() -> Any:
    from bitsandbytes.optim import PagedLion8bit

    model = nn.Sequential(nn.Linear(64, 4096), nn.Linear(4096, 64)).to(DEVICE)
    return loop(model, optimizer=PagedLion8bit(model.parameters()))


@case
def gradients_of_each_sample() -> Any:
    """The model gets single samples, and the step has no backward: batch and micro-steps are unknown."""
    from torch.func import functional_call, grad, vmap

    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (x,)).square().mean()

    def train() -> None:
        for _ in range(STEPS):
            weights = {name: one.detach() for name, one in model.named_parameters()}
            gradients = vmap(grad(loss), (None, 0))(weights, torch.zeros(8, 64, device=DEVICE))
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].mean(0)
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def tokens() -> Any:
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 4))
    return loop(model, inputs=torch.zeros(3, 17, dtype=torch.long, device=DEVICE))


@case
def one_packed_sequence() -> Any:
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 4))
    return loop(model, inputs=torch.zeros(1, 51, dtype=torch.long, device=DEVICE))


@case
def saved_tensors_on_the_host() -> Any:
    return loop(Blocks(plainly), around=lambda: torch.autograd.graph.save_on_cpu())


@case
def saved_tensors_on_the_host_by_hand() -> Any:
    def pack(tensor: torch.Tensor) -> Any:
        return tensor.device, tensor.cpu()

    hooks = torch.autograd.graph.saved_tensors_hooks
    return loop(Blocks(plainly), around=lambda: hooks(pack, lambda packed: packed[1].to(packed[0])))


@case
def saved_tensors_looked_at() -> Any:
    """Hooks that copy only a few values to the host."""

    def pack(tensor: torch.Tensor) -> Any:
        return tensor, tensor.flatten()[:4].cpu()

    return loop(
        Blocks(plainly), around=lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0])
    )


@case
def saved_tensors_on_the_host_in_objects() -> Any:
    class Put:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.host = {"tensor": tensor.cpu()}

    def unpack(put: Put) -> torch.Tensor:
        return put.host["tensor"].to(DEVICE)

    return loop(Blocks(plainly), around=lambda: torch.autograd.graph.saved_tensors_hooks(Put, unpack))


@case
def saved_tensors_on_the_host_in_functions() -> Any:
    def pack_away(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        host = tensor.cpu()
        return lambda: host.to(DEVICE)

    return loop(
        Blocks(plainly), around=lambda: torch.autograd.graph.saved_tensors_hooks(pack_away, lambda bring: bring())
    )


@case
def mostly_frozen() -> Any:
    model = Blocks(plainly)
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    return loop(model)


@case
def lora_by_peft() -> Any:
    from peft import LoraConfig, get_peft_model

    return loop(get_peft_model(Blocks(plainly), LoraConfig(r=4, target_modules=r"blocks\.\d+\.0")))


@case
def dora_by_peft() -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, use_dora=True, target_modules=r"blocks\.\d+\.0")
    return loop(get_peft_model(Blocks(plainly), config))


@case
def adalora_by_peft() -> Any:
    from peft import AdaLoraConfig, get_peft_model

    result = AdaLoraConfig(total_step=10, init_r=4, target_r=2, target_modules=r"blocks\.\d+\.0")
    return loop(get_peft_model(Blocks(plainly), result))


@case
def frozen_in_int8_by_torchao() -> Any:
    """The weight claims bfloat16. Integer tensors that are no weights do not count."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    class Probed(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block((x + self.images.weight).bfloat16())
            return self.head(x.float())

    model = Probed(plainly).to(DEVICE)
    model.blocks.bfloat16().requires_grad_(False)
    model.images = nn.Module()
    model.images.weight = nn.Parameter(torch.zeros(64, dtype=torch.uint8), requires_grad=False)
    quantize_(model.blocks, Int8WeightOnlyConfig())
    return loop(model)


@case
def ia3_by_peft() -> Any:
    from peft import IA3Config, get_peft_model

    return loop(get_peft_model(Blocks(plainly), IA3Config(target_modules=r"blocks\.\d+\.0", feedforward_modules=[])))


@case
def attention_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return flex_attention(*self.qkv(x.view(1, 1, 8, 64)).chunk(3, -1))

    return loop(Attention())


@case
def attention_fused() -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x.view(1, 1, 8, 64)).chunk(3, -1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return loop(Attention(), around=lambda: torch.autocast(DEVICE, torch.bfloat16))


@case
def attention_of_scores() -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(1, 8, 64)
            return self.attention(x, x, x, need_weights=True)[0]

    return loop(Attention())


@case
def cache_emptied() -> Any:
    return loop(Blocks(plainly), after=lambda: torch.cuda.empty_cache())


@case
def cache_emptied_by_another_name() -> Any:
    from torch.cuda import empty_cache

    return loop(Blocks(plainly), after=lambda: empty_cache())


@case
def cache_emptied_now_and_then() -> Any:
    """In every third step, including the second and the fifth."""
    numbers = iter(range(STEPS))
    return loop(Blocks(plainly), after=lambda: torch.cuda.empty_cache() if next(numbers) % 3 == 0 else None)


def alone() -> Any:
    """A process group with one process."""
    import torch.distributed as distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    return distributed


@case
def ddp() -> Any:
    alone()
    return loop(nn.parallel.DistributedDataParallel(Blocks(plainly).to(DEVICE), gradient_as_bucket_view=True))


@case
def accumulation_under_no_sync() -> Any:
    alone()
    model = nn.parallel.DistributedDataParallel(Blocks(plainly).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train() -> None:
        for _ in range(STEPS):
            for number in range(3):
                with model.no_sync() if number < 2 else contextlib.nullcontext():
                    model(torch.zeros(8, 64, device=DEVICE)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def zero_redundancy() -> Any:
    """PyTorch's own ZeRO stage 1."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    alone()
    model = nn.parallel.DistributedDataParallel(Blocks(plainly).to(DEVICE))
    return loop(model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1))


@case
def fsdp1() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    alone()
    narrow = MixedPrecision(param_dtype=torch.bfloat16)
    return loop(FullyShardedDataParallel(Blocks(plainly).to(DEVICE), mixed_precision=narrow))


@case
def fsdp2() -> Any:
    from torch.distributed.fsdp import fully_shard

    alone()
    model = Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False)).to(DEVICE)
    for block in model.blocks:
        fully_shard(block)
    return loop(fully_shard(model))


@case
def fsdp2_on_the_host() -> Any:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone()
    policy = {"offload_policy": CPUOffloadPolicy(), "mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
    model = Blocks(plainly)
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            model(torch.zeros(8, 64, device=DEVICE)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def compiled() -> Any:
    model = torch.compile(Blocks(plainly).to(DEVICE), backend="eager")
    return loop(model)


@case
def compiled_function() -> Any:
    """The model is attached, but a function around it is compiled."""
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    forward = torch.compile(lambda x: model(x).square().mean(), backend="aot_eager")

    def train() -> None:
        for _ in range(STEPS):
            forward(torch.zeros(8, 64, device=DEVICE)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def compiled_parts() -> Any:
    """Each block is compiled; the model around them runs eagerly."""
    model = Blocks(plainly).to(DEVICE)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="aot_eager")
    return loop(model, micro_steps=4)


@case
def compiled_parts_in_place() -> Any:
    """Compiled in place by module.compile(); the model gets a keyword argument."""

    class Named(nn.Module):
        main_input_name = "pixels"

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Blocks(plainly, 1) for _ in range(2))

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return sum(part(pixels) for part in self.parts)

    model = Named().to(DEVICE)
    for part in model.parts:
        part.compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            model(pixels=torch.zeros(8, 64, device=DEVICE)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def only_the_optimizer_compiled() -> Any:
    """The optimizer is compiled, as in torchao; the model runs eagerly."""

    class Compiled(torch.optim.SGD):
        update = staticmethod(torch.compile(lambda p, gradient: p - 0.1 * gradient, backend="eager"))

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.copy_(self.update(p, p.grad))

    model = Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False)).to(DEVICE)
    return loop(model, optimizer=Compiled(model.parameters(), 0.1))


@case
def earlier_run_alive() -> Any:
    first = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(3)))
    _, train_first = loop(first, inputs=torch.zeros(2, 2048, device=DEVICE))
    train_first()
    kept.append((first, train_first))
    return loop(Blocks(plainly), steps=22)


@case
def earlier_run_gone() -> Any:
    """The first training is freed; data on the device is no training."""
    first = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(3)))
    _, train_first = loop(first, inputs=torch.zeros(2, 2048, device=DEVICE))
    train_first()
    del first, train_first
    gc.collect()
    kept.append(torch.zeros(64 << 20, device=DEVICE))
    return loop(Blocks(plainly), steps=22)


def large() -> tuple[nn.Module, torch.Tensor]:
    """A model and 256 MiB of results of its last forward pass, after the training."""
    model = nn.Linear(8, 1 << 16).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        outputs = model(torch.zeros(1024, 8, device=DEVICE))
        outputs.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, outputs


@case
def earlier_run_outputs_alive() -> Any:
    """The article's comparison: one model is trained twice, and the first training's outputs still exist."""
    model, outputs = large()
    _, train = loop(model, steps=22, inputs=torch.zeros(2, 8, device=DEVICE))

    def train_again() -> None:
        train()
        assert outputs is not None

    return model, train_again


@case
def earlier_run_outputs_gone() -> Any:
    """Own data, and results without a graph, are not reported."""
    model, outputs = large()
    kept.append(outputs.detach())
    return loop(model, steps=22, inputs=torch.zeros(2, 8, device=DEVICE))


@case
def earlier_run_is_this_one() -> Any:
    """Features are computed once before attach, and each step uses their graph."""
    features = nn.Linear(8, 1 << 16).to(DEVICE)(torch.zeros(1024, 8, device=DEVICE))
    head = nn.Linear(1 << 16, 4).to(DEVICE)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def train() -> None:
        for _ in range(22):
            head(features).mean().backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    return head, train


class Gated(Blocks):
    """Uses checkpoints in training mode only, if enabled."""

    def __init__(self, switch: bool = True) -> None:
        super().__init__(plainly)
        self.saves_memory = switch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.saves_memory and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


@case
def checkpoint_gated() -> Any:
    return loop(Gated())


@case
def checkpoint_gated_in_eval_mode() -> Any:
    return loop(Gated().eval())


@case
def checkpoint_gated_and_switched_off() -> Any:
    """In eval mode, but checkpoints are disabled anyway."""
    return loop(Gated(switch=False).eval())


@case
def another_model_is_there() -> Any:
    """Another model is replicated, adapted and cast. It is not the one that trains."""
    other = nn.Sequential(*(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(3))).to(DEVICE)
    other[:2].requires_grad_(False)
    kept.append(nn.DataParallel(other))
    _, train = loop(Blocks(plainly))
    return None, train


@case
def cache_emptied_once() -> Any:
    calls = iter([False] * 3 + [True] + [False] * STEPS)  # within the fifth step, which is observed
    return loop(Blocks(plainly), after=lambda: torch.cuda.empty_cache() if next(calls) else None, steps=8)


kept: list[Any] = []
