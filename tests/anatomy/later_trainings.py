"""Trainings that were written after the categories, and are unlike the others. ``known_trainings`` has them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from known_trainings import Training


def make_momentum_queue() -> Training:
    """Contrastive training with a momentum encoder, and a queue of its features that is a buffer."""
    from known_trainings import Training, on_gpu

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = (
                nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 128))
                for _ in range(2)
            )
            self.key.requires_grad_(False)
            self.register_buffer("queue", torch.zeros(65536, 128))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                for own, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    own.lerp_(other, 0.01)
                keys = functional.normalize(self.key(y))
            queries = functional.normalize(self.query(x))
            scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone().T], 1)
            with torch.no_grad():
                self.queue[: len(keys)] = keys
            return functional.cross_entropy(scores / 0.07, torch.zeros(len(x), dtype=torch.long, device=x.device))

    model = on_gpu(Contrast)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)

    def step() -> None:
        loss = model(torch.zeros(512, 3072).cuda(), torch.zeros(512, 3072).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Training([model], [optimizer], step)


def make_actor_and_world() -> Training:
    """An actor that acts in a learned world for 30 steps; then both are trained, the world by its errors of prediction.

    Tensors that the program joins for a second call of the world are named input, and autograd saves them too. So it is in the
    table and not among those with 98 %.
    """
    from known_trainings import Training, on_gpu

    actor: nn.Module = on_gpu(lambda: nn.Sequential(nn.Linear(256, 1024), nn.ELU(), nn.Linear(1024, 32)))
    world: nn.Module = on_gpu(lambda: nn.GRUCell(32, 256))
    optimizers = [torch.optim.RMSprop(actor.parameters()), torch.optim.AdamW(world.parameters(), amsgrad=True)]

    def step() -> None:
        seen = torch.zeros(512, 256).cuda()
        states, actions = [seen], []
        for _ in range(30):
            actions.append(torch.tanh(actor(states[-1])))
            states.append(world(actions[-1], states[-1]))
        value = torch.stack(states[1:]).square().mean()
        optimizers[0].zero_grad()
        value.backward()
        optimizers[0].step()
        again = world(torch.cat(actions).detach(), torch.cat(states[:-1]).detach())
        loss = functional.smooth_l1_loss(again, torch.cat(states[1:]).detach())
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()

    return Training([actor, world], optimizers, step)


def make_recurrent_scores() -> Training:
    """A GRU and a sum over all label sequences, one position after the other; the words have an optimizer of their own."""
    from known_trainings import Training, on_gpu

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20_000, 256)
            self.reader = nn.GRU(256, 512, batch_first=True)
            self.out, self.moves = nn.Linear(512, 48), nn.Parameter(torch.zeros(48, 48))

        def forward(self, ids: Tensor) -> Tensor:
            scores = self.out(self.reader(self.words(ids))[0])
            total = scores[:, 0]
            for at in range(1, scores.shape[1]):
                total = torch.logsumexp(total[:, :, None] + self.moves, 1) + scores[:, at]
            return torch.logsumexp(total, 1).mean()

    model = on_gpu(Tagger)
    dense = [one for name, one in model.named_parameters() if "words" not in name]
    optimizers = [torch.optim.Adagrad(model.words.parameters()), torch.optim.AdamW(dense)]

    def step() -> None:
        loss = model(torch.zeros(64, 80, dtype=torch.long).cuda())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return Training([model], optimizers, step)


LATER = {
    "momentum_queue": make_momentum_queue,
    "actor_and_world": make_actor_and_world,
    "recurrent_scores": make_recurrent_scores,
}
