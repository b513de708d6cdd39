"""Programs that train nothing: a model is called without gradients, again and again, and what it gives is kept or is not."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from truth import innocent, leaks

from .models import FLOAT_BYTES, mlp

CALLS = 64
ROWS = 512
OUT = ROWS * 10 * FLOAT_BYTES
HIDDEN = ROWS * 256 * FLOAT_BYTES
TOKENS = 72
WORD = 256 * 64 * FLOAT_BYTES


def batches(device: str, calls: int = CALLS) -> Iterator[torch.Tensor]:
    for _ in range(calls):
        yield torch.randn(ROWS, 128, device=device)


@leaks("tensor-growth", holder="predictions", bytes_each=OUT, advice="with each call of the model")
def predictions_without_a_loader(device: str) -> list[int]:
    model = mlp(device).eval()
    predictions = []
    with torch.no_grad():
        for x in batches(device):
            predictions.append(model(x))  # <- leak; fix: predictions.append(model(x).sum().item())
    return [int(prediction) for prediction in torch.tensor([float(torch.as_tensor(one).sum()) for one in predictions])]


@leaks("tensor-growth", holder="bank", bytes_each=(OUT, OUT))
@torch.inference_mode()
def embeddings_by_name(device: str) -> int:
    """Of two views of each image, in a dictionary of lists."""
    model = mlp(device).eval()
    bank: dict[str, list[Any]] = {"left": [], "right": []}
    for x in batches(device):
        both = model(torch.cat([x, x]))
        for name, view in zip(bank, both.chunk(2), strict=True):
            bank[name].append(view.clone())  # <- leak; fix: bank[name].append(view.sum().item())
    return len(bank["left"])


@leaks("tensor-growth", holder="seen", bytes_each=HIDDEN)
def activations_of_a_hook(device: str) -> int:
    """To look at what a layer gives; of the last batch would do."""
    model = mlp(device).eval()
    seen: list[Any] = []

    def keep(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        seen.append(output)  # <- leak; fix: seen[:] = [output]

    model[1].register_forward_hook(keep)
    with torch.no_grad():
        for x in batches(device):
            model(x)
    return len(seen)


@leaks("tensor-growth", holder="features", bytes_each=ROWS * 4 * FLOAT_BYTES)
def features_joined(device: str) -> int:
    model = mlp(device, outputs=4).eval()
    features = torch.empty(0, 4, device=device)
    with torch.no_grad():
        for x in batches(device):
            features = torch.cat([features, model(x)])  # <- leak; fix: features = torch.cat([features[:1], model(x)])
    return len(features)


@innocent(
    "what a call is given for the next one: keys and values of all words so far, in a list that grows",
    settles_bytes=2 * TOKENS * WORD,
)
def cache_that_is_given(device: str) -> int:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = nn.Linear(64, 64)

        def forward(self, word: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache.append(self.read(word))
            return torch.stack(cache).mean(0)

    model = Attention().to(device).eval()
    cache: list[torch.Tensor] = []
    word = torch.randn(4, 128, 64, device=device)
    with torch.no_grad():
        for _ in range(TOKENS):
            word = model(word, cache)
    return len(cache)


@innocent("the same, joined to one tensor of keys that becomes longer with each word", settles_bytes=TOKENS * WORD)
def cache_that_is_joined(device: str) -> int:
    model = nn.Linear(64, 64).to(device).eval()

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = model

        def forward(self, word: torch.Tensor, past: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, Any]]:
            keys = torch.cat([past["keys"], self.read(word)], dim=1)
            return keys.mean(1, keepdim=True), {"keys": keys}

    reader = Reader().to(device).eval()
    past = {"keys": torch.zeros(256, 1, 64, device=device)}
    word = torch.randn(256, 1, 64, device=device)
    with torch.no_grad():
        for _ in range(TOKENS):
            word, past = reader(word, past)
    return int(past["keys"].shape[1])


@innocent(
    "a model's own cache: it takes more with each word of a text, and is cleared for the next text",
    settles_bytes=2 * TOKENS * WORD,
)
def cache_of_the_model(device: str) -> int:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read = nn.Linear(64, 64)
            self.cache: list[torch.Tensor] = []

        def forward(self, word: torch.Tensor) -> torch.Tensor:
            self.cache.append(self.read(word))
            return torch.stack(self.cache).mean(0)

    model = Attention().to(device).eval()
    with torch.no_grad():
        for words in (8, TOKENS):
            model.cache = []
            word = torch.randn(4, 128, 64, device=device)
            for _ in range(words):
                word = model(word)
    return len(model.cache)


@innocent(
    "an optimizer waits: a replay buffer is filled before the first step",
    settles_bytes=CALLS * ROWS * 138 * FLOAT_BYTES,
)
def rollout_before_the_training(device: str) -> int:
    model = mlp(device).eval()
    optimizer = torch.optim.Adam(model.parameters())
    rollout = []
    for x in batches(device):
        with torch.no_grad():
            rollout.append((x, model(x)))
    for x, old in rollout[::32]:
        optimizer.zero_grad()
        (model(x) - old).pow(2).mean().backward()
        optimizer.step()
    return len(rollout)


@innocent("the last ten, and no more")
def last_predictions(device: str) -> int:
    model = mlp(device).eval()
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=10)
    with torch.no_grad():
        for x in batches(device):
            recent.append(model(x))
    return len(recent)


@innocent("numbers, not tensors; and the images are all there from the start")
def counted(device: str) -> int:
    model = mlp(device).eval()
    images = list(batches(device))
    hits = 0
    with torch.no_grad():
        for x in images:
            hits += int(model(x).argmax(1).eq(0).sum())
    return hits


@innocent("what an evaluation kept is gone when the training begins")
def evaluation_before_the_training(device: str) -> float:
    model = mlp(device).eval()
    with torch.no_grad():
        before = torch.cat([model(x) for x in batches(device, calls=20)]).mean().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches(device, calls=40):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return before


@leaks("tensor-growth", holder="answers", bytes_each=OUT)
def answers_of_frozen_weights(device: str) -> int:
    """Gradients stay enabled: there is none to compute, so that no graph is built."""
    model = mlp(device).eval().requires_grad_(requires_grad=False)
    answers = []
    for x in batches(device):
        answers.append(model(x))  # <- leak; fix: answers.append(model(x).sum().item())
    return len(answers)


@innocent("frozen weights without no_grad(): the ten best answers stay")
def best_answers_of_frozen_weights(device: str) -> int:
    model = mlp(device).eval().requires_grad_(requires_grad=False)
    best: list[tuple[float, torch.Tensor]] = []
    for x in batches(device):
        answer = model(x)
        best = sorted([*best, (float(answer.sum()), answer)], key=lambda pair: pair[0])[-10:]
    return len(best)


@innocent("features of a frozen model, and then a head that is trained on them", settles_bytes=CALLS * OUT)
def features_before_the_training(device: str) -> int:
    """The optimizer is made after the features."""
    model = mlp(device).eval()
    parts = []
    with torch.no_grad():
        for x in batches(device):
            parts.append(model(x))
    parts = torch.cat(parts)  # type: ignore[assignment]
    head = nn.Linear(10, 2).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for rows in torch.arange(len(parts)).split(ROWS):
        optimizer.zero_grad()
        head(parts[rows.to(device)]).pow(2).mean().backward()  # type: ignore[call-overload]
        optimizer.step()
    return len(parts)


@innocent("the answers go to the host, where the program wants them")
def answers_on_the_host(device: str) -> int:
    model = mlp(device).eval()
    answers: list[Any] = []
    with torch.no_grad():
        for x in batches(device):
            answers.append(model(x).sum().item() if device == "cpu" else model(x).cpu())
    return len(answers)
