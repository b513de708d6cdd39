"""Trainings with known categories: each ``make_*`` returns models, optimizers and one step of a training loop.

The emulated GPU computes nothing, so models of real sizes run in seconds. Their allocation requests are those of a real
GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from later_trainings import LATER
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Training(NamedTuple):
    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[], None]
    trainer: Any = None
    """Trainer, if there is one; ``step`` then runs all its steps."""
    listen: Callable[[Callable[[Tensor, str], None]], None] | None = None
    """Sets the function that notes a tensor's category, for tensors of no model and no optimizer."""


SCALE = 1
"""Divisor of the numbers of layers: 1 for tests/anatomy/RESULTS.md; larger is faster with the same results."""


def layers(count: int) -> int:
    return max(2, count // SCALE)


def on_gpu(make: Callable[[], Any]) -> Any:
    """Create modules on the GPU: initialization on the host would take longer than the training."""
    with torch.device("cuda"):
        return make()


def gpt2(rows: int) -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = on_gpu(lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers(12))))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        tokens = torch.zeros(rows, 512, dtype=torch.long).cuda()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


def make_gpt2() -> Training:
    """transformers' GPT-2 small with AdamW."""
    return gpt2(4)


def make_gpt2_more_rows() -> Training:
    """GPT-2 or the contrastive model with three times the batch."""
    return gpt2(12)


def make_gpt2_checkpointed() -> Training:
    """The same with every block recomputed in the backward."""
    training = make_gpt2()
    training.models[0].gradient_checkpointing_enable()
    training.models[0].train()
    return training


def make_gpt2_autocast() -> Training:
    """GPT-2 small under autocast, with four micro-batches per step and gradients cleared before each step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = on_gpu(lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers(6))))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(4):
            tokens = torch.zeros(4, 256, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            (loss / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Training([model], [optimizer], step)


class Residual(nn.Module):
    """Two convolutions around a shortcut, as in a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


def make_resnet() -> Training:
    """A ResNet of 18 layers with SGD and momentum; batches come from a DataLoader."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    model = on_gpu(
        lambda: nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.MaxPool2d(3, 2, 1),
            *(Residual(*shape) for shape in widths),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 1000),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images = torch.utils.data.TensorDataset(torch.zeros(32 * 16, 3, 64, 64), torch.zeros(32 * 16, dtype=torch.long))
    batches = iter(torch.utils.data.DataLoader(images, 32))

    def step() -> None:
        pictures, labels = (part.cuda() for part in next(batches))
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return Training([model], [optimizer], step)


def make_t5() -> Training:
    """A small T5 of transformers."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, d_ff=1024, num_layers=layers(4), num_heads=8, d_kv=64, decoder_start_token_id=0)
    model = on_gpu(lambda: T5ForConditionalGeneration(config))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        source, target = (torch.zeros(8, length, dtype=torch.long).cuda() for length in (256, 64))
        model(input_ids=source, labels=target).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


class Tagger(nn.Module):
    """A bidirectional LSTM over embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 256)
        self.lstm = nn.LSTM(256, 512, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(1024, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.words(tokens))[0])


def make_lstm() -> Training:
    """A bidirectional LSTM of two layers."""
    torch.backends.cudnn.enabled = False  # (the emulated GPU has PyTorch's own LSTM, not that of cuDNN)
    model = on_gpu(Tagger)
    optimizer = torch.optim.RMSprop(model.parameters())

    def step() -> None:
        tokens = torch.zeros(32, 128 // SCALE, dtype=torch.long).cuda()
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return Training([model], [optimizer], step)


def make_gan() -> Training:
    """Two models and two optimizers that step in turn."""

    def up(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.ConvTranspose2d(inside, outside, 4, 2, 1), nn.BatchNorm2d(outside), nn.ReLU())

    def down(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 4, 2, 1), nn.BatchNorm2d(outside), nn.LeakyReLU(0.2))

    generator = on_gpu(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(128, 512, 4), up(512, 256), up(256, 128), up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1)
        )
    )
    critic = on_gpu(
        lambda: nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 1, 4))
    )
    of_generator = torch.optim.Adam(generator.parameters(), 2e-4)
    of_critic = torch.optim.Adam(critic.parameters(), 2e-4)

    def step() -> None:
        real = torch.zeros(32, 3, 64, 64).cuda()
        noise = torch.zeros(32, 128, 1, 1).cuda()
        of_critic.zero_grad()
        fake = generator(noise)
        loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(fake.detach())).mean()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        of_generator.step()

    return Training([generator, critic], [of_critic, of_generator], step)


class Blocks(nn.Module):
    """Blocks of linear layers, checkpointed by hand with reentrant checkpoints, or not at all."""

    def __init__(self, width: int, count: int, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.again else block(x)
        return x


def make_reentrant() -> Training:
    model = on_gpu(lambda: Blocks(512, 8, again=True))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        x = torch.zeros(2048, 512).cuda().requires_grad_()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


# ---- trainings that hold more than a model, its gradients and its state ----


def transformer(width: int = 512, count: int = 6) -> nn.Sequential:
    """Blocks of attention and two layers each, and a projection to a small vocabulary."""
    blocks = (nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers(count)))
    return nn.Sequential(*blocks, nn.Linear(width, 1024))


def one_of_two_ranks() -> None:
    """A process group of two without communication; this process is the first."""
    import torch.distributed as dist

    # (NCCL's calls, on the emulated GPU; nobody waits for the other)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=2, device_id=torch.device("cuda", 0))


def plain_step(
    model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, rows: int = 8
) -> Callable[[], None]:
    """Forward, loss, backward, optimizer."""

    def step() -> None:
        x = torch.zeros(rows, 256, 512).cuda()
        model(x).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_fsdp2() -> Training:
    """One rank of two. Each block is sharded and gathered for forward and for backward."""
    from torch.distributed.fsdp import fully_shard

    one_of_two_ranks()
    model = on_gpu(transformer)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    return Training([model], [optimizer], plain_step(model, optimizer))


def make_ddp() -> Training:
    """One rank of two, with gradient buckets."""
    one_of_two_ranks()
    model = on_gpu(transformer)
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters())

    def listen(note: Callable[[Tensor, str], None]) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def on_call(group: Any, bucket: Any) -> Any:
            note(bucket.buffer(), "gradients")
            return allreduce_hook(group, bucket)

        on_call.__annotations__ = allreduce_hook.__annotations__  # (DDP reads them)
        wrapped.register_comm_hook(None, on_call)

    return Training([model], [optimizer], plain_step(wrapped, optimizer), listen=listen)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: a step to the worst point nearby, and a step back and down."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer]) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = base(self.param_groups)

    @torch.no_grad()
    def climb(self) -> None:
        parameters = [one for group in self.param_groups for one in group["params"]]
        norm = torch.stack([one.grad.norm() for one in parameters]).norm()
        for one in parameters:
            self.state[one]["before"] = one.clone()
            one.add_(one.grad * (0.05 / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for one, state in self.state.items():
            one.copy_(state["before"])
        self.base.step()
        self.zero_grad()


def make_sam() -> Training:
    model = on_gpu(transformer)
    optimizer = SAM(model.parameters(), torch.optim.AdamW)

    def step() -> None:
        x = torch.zeros(4, 256, 512).cuda()
        model(x).logsumexp(-1).mean().backward()
        optimizer.climb()
        model(x).logsumexp(-1).mean().backward()
        optimizer.descend()

    return Training([model], [optimizer, optimizer.base], step)


def make_lbfgs() -> Training:
    """A history of six steps and gradients, each as large as the model."""
    model = on_gpu(lambda: transformer(count=3))
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=4, history_size=6, tolerance_grad=-1, tolerance_change=-1
    )

    def step() -> None:
        x = torch.zeros(4, 256, 512).cuda()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).logsumexp(-1).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    return Training([model], [optimizer], step)


def make_accumulated() -> Training:
    """A 16-bit model with gradients accumulated in float32 and float32 copies that are updated."""
    model = on_gpu(transformer).bfloat16()
    masters = [one.detach().float().requires_grad_() for one in model.parameters()]
    optimizer = torch.optim.AdamW(masters)

    def step() -> None:
        for _ in range(3):
            x = torch.zeros(4, 256, 512).cuda().bfloat16()
            model(x).float().logsumexp(-1).mean().backward()
            for master, one in zip(masters, model.parameters(), strict=True):
                master.grad = one.grad.float() if master.grad is None else master.grad.add_(one.grad)
                one.grad = None
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for master, one in zip(masters, model.parameters(), strict=True):
                one.copy_(master)

    return Training([model], [optimizer], step)


def make_offloaded() -> Training:
    """Saved tensors are on the host until backward."""
    model = on_gpu(transformer)
    optimizer = torch.optim.AdamW(model.parameters())

    def forward(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    return Training([model], [optimizer], plain_step(forward, optimizer, rows=4))


class Policy(nn.Module):
    """Blocks, and a head over a vocabulary for the last positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = transformer()[:-1], nn.Linear(512, 32000, bias=False)

    def forward(self, x: Tensor, last: int) -> Tensor:
        return self.head(self.body(x)[:, -last:])


def policy(positions: int) -> Training:
    """Log-probabilities over a vocabulary, by tensor methods and ``gather``, as policy optimization takes them."""
    model = on_gpu(Policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        x, chosen = torch.zeros(8, 256, 512).cuda(), torch.zeros(8, 64, 1, dtype=torch.long).cuda()
        logits = model(x, positions)
        log_probabilities = logits.log_softmax(-1)[:, -64:]
        log_probabilities.gather(-1, chosen).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


def make_policy() -> Training:
    """Of the whole sequence, though only its end counts."""
    return policy(positions=256)


def make_policy_of_the_completion() -> Training:
    """Of the end only."""
    return policy(positions=64)


def rollouts(cache_enabled: bool) -> Training:
    """One autocast region around rollouts without gradients and the training: the rollouts' copies of weights stay in its cache."""
    layers_and_activations = [part for _ in range(layers(12)) for part in (nn.Linear(2048, 2048), nn.GELU())]
    model = nn.Sequential(*layers_and_activations).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def steps() -> Iterator[None]:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=cache_enabled):
            while True:
                seen = torch.zeros(64, 2048).cuda()
                with torch.no_grad():
                    seen = model(seen).float()
                model(seen).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                yield

    return Training([model], [optimizer], partial(next, steps()))


def make_rollouts() -> Training:
    return rollouts(cache_enabled=True)


def make_rollouts_without_cache() -> Training:
    return rollouts(cache_enabled=False)


def make_ema() -> Training:
    """An average of the weights by torch.optim.swa_utils."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = on_gpu(transformer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters())
    plainly = plain_step(model, optimizer)

    def step() -> None:
        plainly()
        average.update_parameters(model)

    return Training([model, average], [optimizer], step)


def make_best_state() -> Training:
    """The best state so far stays on the device."""
    return keeping_a_state("cuda")


def make_best_state_on_the_host() -> Training:
    return keeping_a_state("cpu")


def keeping_a_state(device: str) -> Training:
    model = on_gpu(transformer)
    optimizer = torch.optim.AdamW(model.parameters())
    best = {name: tensor.detach().to(device, copy=True) for name, tensor in model.state_dict().items()}
    plainly = plain_step(model, optimizer)

    def step() -> None:
        assert best
        plainly()

    return Training([model], [optimizer], step)


class Adapted(nn.Module):
    """A frozen layer with two narrow trained matrices."""

    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False, device="cuda")
        self.up = nn.Linear(rank, layer.out_features, bias=False, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def make_lora() -> Training:
    """Frozen blocks with narrow trained matrices."""
    model = on_gpu(lambda: Blocks(512, layers(8), again=False)).requires_grad_(False)
    for block in model.blocks:
        block[0], block[2] = Adapted(block[0]), Adapted(block[2])
    optimizer = torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)
    return Training([model], [optimizer], plain_step(model, optimizer))


def make_compiled() -> Training:
    """torch.compile with PyTorch's own kernels: one graph each for forward and backward."""
    model = on_gpu(transformer)
    optimizer = torch.optim.AdamW(model.parameters())
    return Training([model], [optimizer], plain_step(torch.compile(model, backend="aot_eager"), optimizer))


# ---- what advice promises, and its remedy ----


def chunked_loss(model: nn.Module, tokens: Tensor, chunks: int = 16) -> Tensor:
    """The loss of a language model, with logits of some tokens at a time."""
    hidden = model.transformer(tokens).last_hidden_state.flatten(0, 1)

    def part(some: Tensor, words: Tensor) -> Tensor:
        return functional.cross_entropy(model.lm_head(some), words, reduction="sum")

    losses = [
        checkpoint(part, some, words, use_reentrant=False)
        for some, words in zip(hidden.chunk(chunks), tokens.flatten().chunk(chunks), strict=True)
    ]
    return torch.stack(losses).sum() / tokens.numel()


def make_gpt2_chunked() -> Training:
    """GPT-2 small with chunked logits."""
    training = make_gpt2()
    (model,), (optimizer,) = training.models, training.optimizers

    def step() -> None:
        tokens = torch.zeros(4, 512, dtype=torch.long).cuda()
        chunked_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return training._replace(step=step)


def in_16_bits(training: Training) -> Training:
    """Wrap a step in autocast."""
    step = torch.autocast("cuda", torch.bfloat16)(training.step)
    return training._replace(step=step)


def make_gpt2_half() -> Training:
    """GPT-2 small under autocast: its logits have 16 bits too."""
    return in_16_bits(make_gpt2())


def make_gpt2_half_chunked() -> Training:
    """GPT-2 small under autocast with chunked logits."""
    return in_16_bits(make_gpt2_chunked())


def contrastive(rows: int) -> Training:
    """Two towers and a loss that compares each row of one with all rows of the other."""

    def tower() -> nn.Sequential:
        return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128))

    left, right = on_gpu(tower), on_gpu(tower)
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()])

    def step() -> None:
        texts, images = torch.zeros(rows, 256).cuda(), torch.zeros(rows, 256).cuda()
        alike = left(texts) @ right(images).T
        loss = functional.cross_entropy(alike, torch.arange(rows, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training([left, right], [optimizer], step)


def make_contrastive() -> Training:
    """Its memory scales with the square of the batch."""
    return contrastive(2048)


def make_contrastive_more_rows() -> Training:
    """GPT-2 or the contrastive model with three times the batch."""
    return contrastive(3 * 2048)


def make_as_wide_as_the_batch() -> Training:
    """A classifier of 1,024 rows: its layer's output of 512 values has the bytes of 1,024 x 1,024 values of 16 bits. Two tensors
    that are no weights have the sizes of its two weights."""
    model = on_gpu(lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    tables = [torch.zeros(512, 256, device="cuda"), torch.zeros(64, 512, device="cuda")]

    def step() -> None:
        x, y = torch.zeros(1024, 256, device="cuda"), torch.zeros(1024, 64, device="cuda")
        loss = functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert len(tables) == 2

    return Training([model], [optimizer], step)


def wide(*, foreach: bool | None = None, fused: bool | None = None) -> Training:
    """Many weights and a small batch: the peak is in the optimizer."""
    model = on_gpu(lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32))))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach, fused=fused)

    def step() -> None:
        model(torch.zeros(16, 1024).cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


def make_wide() -> Training:
    """AdamW with its default, foreach."""
    return wide()


def make_wide_loop() -> Training:
    """AdamW that steps one parameter at a time."""
    return wide(foreach=False)


def make_wide_fused() -> Training:
    """Fused AdamW."""
    return wide(fused=True)


def make_wide_eight_bit() -> Training:
    """AdamW with 8-bit moments by bitsandbytes."""
    sys.path.append(f"{sys.prefix}/optimizers")
    from bitsandbytes.optim import AdamW8bit

    model = on_gpu(lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32))))
    optimizer = AdamW8bit(model.parameters())

    def step() -> None:
        model(torch.zeros(16, 1024).cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([model], [optimizer], step)


def make_wide_bfloat16() -> Training:
    """16-bit weights without autocast."""
    model = on_gpu(lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32)))).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.zeros(4096, 1024).cuda().bfloat16()).square().mean().backward()
        optimizer.step()

    return Training([model], [optimizer], step)


def make_wide_autocast() -> Training:
    """32-bit weights under autocast; the peak is at the start of backward."""
    model = on_gpu(lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32))))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.zeros(4096, 1024).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return Training([model], [optimizer], step)


def late_clear(when: str) -> Training:
    """``zero_grad`` before backward, after the step, or with zeros."""
    model = on_gpu(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        x = model(torch.zeros(4096, 1024).cuda())
        loss = torch.cat([x] * 8).softmax(-1).sum(0).square().mean()  # (its peak is in the forward)
        if when == "before backward":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if when != "before backward":
            optimizer.zero_grad(set_to_none=when == "after step")

    return Training([model], [optimizer], step)


def make_late_clear() -> Training:
    return late_clear("before backward")


def make_zeros() -> Training:
    return late_clear("with zeros")


def make_early_clear() -> Training:
    return late_clear("after step")


def evaluating(*, grad: bool) -> Training:
    """Each step ends with an evaluation on two larger batches."""
    model = on_gpu(lambda: Blocks(512, 8, again=False))
    optimizer = torch.optim.AdamW(model.parameters())
    to_learn, to_judge = (
        torch.utils.data.DataLoader(torch.zeros(count * batch, 512), batch) for count, batch in ((8, 1024), (2, 4096))
    )
    batches = iter(to_learn)

    def step() -> None:
        model(next(batches).cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.set_grad_enabled(grad):
            for batch in to_judge:
                loss = model(batch.cuda()).square().mean()
                loss.item()

    return Training([model], [optimizer], step)


def make_evaluation() -> Training:
    return evaluating(grad=True)


def make_evaluation_no_grad() -> Training:
    return evaluating(grad=False)


def make_resnet_checkpointed() -> Training:
    """The ResNet with all parts except the first and the last checkpointed one by one."""
    training = make_resnet()
    for block in training.models[0][1:10]:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    return training


def make_t5_checkpointed() -> Training:
    training = make_t5()
    training.models[0].gradient_checkpointing_enable()
    training.models[0].train()
    return training


def make_trainer() -> Training:
    """Hugging Face's Trainer with its defaults and two micro-batches per step."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = on_gpu(lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers(4))))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        bf16=False,
    )
    tokens = [{"input_ids": torch.zeros(256, dtype=torch.long), "labels": torch.zeros(256, dtype=torch.long)}] * 64
    trainer = Trainer(model=model, args=arguments, train_dataset=tokens)
    trainer.create_optimizer()
    return Training([model], [trainer.optimizer], trainer.train, trainer)


TRAININGS: dict[str, Callable[[], Training]] = {
    name.removeprefix("make_"): make for name, make in list(globals().items()) if name.startswith("make_")
} | LATER
