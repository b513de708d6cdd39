"""A large result of the last step, sometimes with its activations, still lives when the next graph is built."""

# ruff: noqa: F841, RUF059
from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .models import (
    FLOAT_BYTES,
    Block,
    LanguageModel,
    cross_entropy_bytes,
    language_loss,
    loader,
    mlp,
    mlp_graph_bytes,
)

LOGITS = 8 * 32 * 2048 * FLOAT_BYTES
"""(batch, length, vocabulary)"""


@leaks("overlap", holder="logits", held_bytes=LOGITS)
def logits_of_a_language_model(device: str) -> None:
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        ids = torch.randint(0, 2048, (8, 32), device=device)
        logits = model(ids)  # <- leak
        loss = language_loss(logits, ids)
        # fix here: del logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("overlap", holder="features", held_bytes=2 * 128 * 1024 * FLOAT_BYTES, advice="features.clear()")
def features_of_a_hook(device: str) -> None:
    """A hook fills the dict again in each forward: it can be emptied, and must not be deleted."""
    model = mlp(device, hidden=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    features: dict[str, torch.Tensor] = {}
    model[0].register_forward_hook(lambda module, args, output: features.update(hidden=output))  # <- leak
    model[1].register_forward_hook(lambda module, args, output: features.update(active=output))  # <- leak
    for x, y in loader(device, rows=128):
        loss = F.cross_entropy(model(x), y) + features["hidden"].mean() + features["active"].mean()
        # fix here: features.clear()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Results(dict):
    """As transformers' models return it: a subclass of dict, created in each call."""


@leaks("overlap", holder="results", held_bytes=128 * 1000 * FLOAT_BYTES, advice="`del results`")
def results_in_a_dict_of_its_own(device: str) -> None:
    model = mlp(device, outputs=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=128):
        logits = model(x)
        results = Results(loss=F.cross_entropy(logits, y), logits=logits)  # <- leak
        del logits
        loss = results["loss"]
        # fix here: del results
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("overlap", holder="logits", held_bytes=LOGITS)
def logits_of_each_micro_step(device: str) -> None:
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        for _ in range(4):
            ids = torch.randint(0, 2048, (8, 32), device=device)
            logits = model(ids)  # <- leak
            loss = language_loss(logits, ids) / 4
            # fix here: del logits
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Codec(nn.Module):
    """Has no forward: a loop calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(128, 16), nn.Linear(16, 4096)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z)


@leaks("overlap", holder="decoded", held_bytes=128 * 4096 * FLOAT_BYTES)
def parts_of_a_model(device: str) -> None:
    codec = Codec().to(device)
    optimizer = torch.optim.AdamW(codec.parameters())
    for _ in range(20):
        x = torch.randn(128, 128, device=device)
        z = codec.encode(x)
        decoded = codec.decode(z + torch.randn_like(z))  # <- leak
        loss = (decoded - x[:, :1]).pow(2).mean()
        # fix here: del decoded
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@dataclasses.dataclass
class Output:
    """As the models of transformers give it."""

    loss: torch.Tensor
    logits: torch.Tensor
    past_key_values: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class ModelWithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2048, 32)
        self.blocks = nn.ModuleList(Block(32, heads=2) for _ in range(2))
        self.head = nn.Linear(32, 2048, bias=False)

    def forward(self, ids: torch.Tensor) -> Output:
        x, cache = self.tokens(ids), []
        for block in self.blocks:
            x, _, k, v = block(x)
            cache.append((k, v))
        logits = self.head(x)
        return Output(language_loss(logits, ids), logits, tuple(cache))


@leaks("overlap", holder="output", held_bytes=LOGITS + 2 * 2 * 8 * 32 * 32 * FLOAT_BYTES)
def output_object_with_cache(device: str) -> None:
    """Only ``output.loss`` is wanted; the object keeps the logits and every layer's keys and values."""
    model = ModelWithLoss().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        ids = torch.randint(0, 2048, (8, 32), device=device)
        output = model(ids)  # <- leak
        loss = output.loss
        # fix here: del output
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks(
    "overlap-unfreed",
    holder="loss",
    held_bytes=mlp_graph_bytes(rows=256) + cross_entropy_bytes(rows=256),
)
def retained_graph(device: str) -> None:
    """retain_graph=True, copied from somewhere: the activations live until ``loss`` is assigned again, after the forward."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=256):
        loss = F.cross_entropy(model(x), y)  # <- leak
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # <- leak; fix: loss.backward()
        optimizer.step()


@leaks("overlap-unfreed", holder="spread", held_bytes=2 * 128 * 256 * FLOAT_BYTES)
def branch_that_nobody_walks(device: str) -> float:
    """A number for the log, computed with gradients on: no backward visits its graph, so nothing of it is freed."""
    model, head = mlp(device, outputs=256), nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    log = 0.0
    for x, y in loader(device, rows=128):
        features = model(x)
        spread = features.tanh().exp().mean()  # <- leak; fix: spread = features.detach().tanh().exp().mean()
        loss = F.cross_entropy(head(features), y)
        del features
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log += spread.item()
    return log


class Gate(torch.autograd.Function):
    """Keeps its input as an attribute; only what goes through save_for_backward is released by backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x.detach()  # <- leak of attribute_of_a_context; fix: ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        x = ctx.x  # fix here: (x,) = ctx.saved_tensors
        return gradient * (x > 0)


@leaks("overlap-unfreed", holder=("loss", "Gate"), held_bytes=256 * 512 * FLOAT_BYTES)
def attribute_of_a_context(device: str) -> None:
    first, last = nn.Linear(128, 512).to(device), nn.Linear(512, 10).to(device)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
    for x, y in loader(device, rows=256):
        loss = F.cross_entropy(last(Gate.apply(first(x))), y)  # <- leak
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("overlap-unfreed", holder="fake_loss", held_bytes=mlp_graph_bytes(rows=128) + 128 * FLOAT_BYTES)
def gan_with_retained_graph(device: str) -> None:
    """The critic's loss is not cut off from the generator; retain_graph pays for it with the critic's half of the graph."""
    generator, critic = mlp(device, outputs=128), mlp(device, outputs=1)
    g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    d_optimizer = torch.optim.SGD(critic.parameters(), lr=0.0)
    for _ in range(20):
        noise, real = torch.randn(128, 128, device=device), torch.randn(128, 128, device=device)
        fake = generator(noise)
        judged = critic(fake)  # fix here: judged = critic(fake.detach())
        fake_loss = F.softplus(judged).mean()  # <- leak
        d_optimizer.zero_grad()
        fake_loss.backward(retain_graph=True)  # <- leak; fix: fake_loss.backward()
        F.softplus(-critic(real)).mean().backward()
        d_optimizer.step()
        g_loss = F.softplus(-critic(fake)).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        del fake, judged, g_loss


@leaks("overlap-unfreed", holder="entropy", held_bytes=2 * LOGITS)
def entropy_for_the_log(device: str) -> float:
    """The entropy of the predictions, with gradients on: probabilities and their logarithms stay."""
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    log = 0.0
    for _ in range(20):
        ids = torch.randint(0, 2048, (8, 32), device=device)
        logits = model(ids)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()  # <- leak
        # fix here: entropy = entropy.detach()
        loss = language_loss(logits, ids)
        del logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log += float(entropy)
    return log


@leaks("overlap", holder="reconstruction", held_bytes=16 * 3 * 48 * 48 * FLOAT_BYTES)
def reconstruction(device: str) -> None:
    """An autoencoder: what it gives is as large as what it gets."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(18):
        images = torch.randn(16, 3, 48, 48, device=device)
        reconstruction = model(images)  # <- leak
        loss = F.l1_loss(reconstruction, images)
        # fix here: del reconstruction
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("overlap", holder="errors", held_bytes=128 * 1024 * FLOAT_BYTES)
def errors_before_the_mean(device: str) -> None:
    model = mlp(device, outputs=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=128):
        errors = F.l1_loss(model(x), torch.zeros(128, 1024, device=device), reduction="none")  # <- leak
        loss = errors.mean()
        # fix here: del errors
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("overlap", holder="attention", held_bytes=4 * 2 * 128 * 128 * FLOAT_BYTES)
def attention_weights(device: str) -> None:
    """A layer that gives its attention weights too; they were for a plot."""
    layer = Block(width=16, heads=2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(20):
        x = torch.randn(4, 128, 16, device=device)
        result, attention = layer(x)[:2]  # <- leak
        loss = result.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # fix here: del attention


@leaks("overlap", holder="last_output", held_bytes=128 * 1024 * FLOAT_BYTES)
def output_as_an_attribute(device: str) -> None:
    """The model keeps its last output for inspection, with its graph."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(device, outputs=1024)
            self.last_output: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last_output = self.layers(x)  # <- leak
            return self.last_output

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=128):
        loss = model(x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # fix here: model.last_output = None


@leaks(
    "overlap-unfreed",
    holder="second_loss",
    held_bytes=mlp_graph_bytes(rows=128, hidden=1024) + cross_entropy_bytes(rows=128),
)
def second_loss_not_used(device: str) -> None:
    """A loss that the weights of the sum switched off is computed all the same."""
    body, one, two = mlp(device, outputs=128), nn.Linear(128, 10).to(device), mlp(device, hidden=1024).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *one.parameters(), *two.parameters()], lr=0.01)
    for x, y in loader(device, rows=128):
        features = body(x)
        loss = F.cross_entropy(one(features), y)
        second_loss = F.cross_entropy(two(features), y)  # <- leak; fix: (nothing)
        del features
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


MASKS = 64 * 64 * 64
"""Number of elements of a batch's masks."""


@leaks("overlap", holder="masks", held_bytes=MASKS * FLOAT_BYTES, advice="used for the last time")
def segmentation(device: str) -> float:
    """The masks are kept for the score that is computed after the step."""
    model = nn.Conv2d(1, 1, 3, padding=1).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    score = 0.0
    for _ in range(20):
        images = torch.randn(64, 1, 64, 64, device=device)
        masks = model(images).squeeze(1)  # <- leak
        loss = F.relu(masks).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score += (masks > 0).float().mean().item()
        # fix here: del masks
    return score


@leaks("overlap", holder="loss", held_bytes=2 * 256 * 128 * FLOAT_BYTES)
def inputs_with_gradients(device: str) -> None:
    """The loss was walked; what its graph still leads to is the batch, which asked for a gradient, and that gradient."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        found = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        return found

    for x, y in loader(device, rows=256):
        loss = step(x.clone(), y)  # <- leak; fix: loss = step(x.clone(), y).item()


@leaks(
    ("overlap", "overlap-unfreed"),
    holder="last_error",
    held_bytes=(128 * (128 + 512)) * FLOAT_BYTES,
    advice="str(error)",
)
def last_exception(device: str) -> None:
    """One call in four fails and is made again; the exception is kept, and the frame that it came from with all its variables."""
    model = mlp(device, hidden=512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last_error: Any = None
    calls = 0

    def attempt(x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        loss = F.cross_entropy(model(x), y)
        if calls % 4 == 3:
            raise TimeoutError("no answer")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(40):
        x, y = torch.randn(128, 128, device=device), torch.randint(0, 10, (128,), device=device)
        try:
            attempt(x, y)
        except TimeoutError as error:
            last_error = error  # <- leak; fix: last_error = str(error)
            attempt(x, y)


@leaks("overlap", holder="loss", held_bytes=256 * 128 * FLOAT_BYTES, advice="right after backward")
def loss_of_squared_errors(device: str) -> None:
    """Its scalar lies in a storage as large as the prediction; backward begins with it, so it cannot go before."""
    model = mlp(device, outputs=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=256):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)  # <- leak
        loss.backward()
        # fix here: del loss
        optimizer.step()
