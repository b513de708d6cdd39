"""Few-shot training where the losses of several episodes are put into a list and summed for one backward; the number of episodes rises from 1 to 8 in the first 56 updates, so the graphs which live until backward get more and more, and then stay at 8. Source: https://github.com/lhoyer/DAFormer/issues/48 - the author explains that a single backward over accumulated losses keeps all graphs until then, and that separate backward calls need less memory."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

WAYS, SHOTS, QUERIES, CLASSES = 5, 3, 6, 40


def episodes(seed):
    rng = random.Random(seed)
    gallery = {}                         # class -> its labelled images, drawn once
    while True:
        chosen = rng.sample(range(CLASSES), WAYS)
        support = torch.stack([
            gallery.setdefault(c, torch.randn(SHOTS, 1, 28, 28, device="cuda") + c / CLASSES) for c in chosen
        ])
        query = torch.randn(WAYS * QUERIES, 1, 28, 28, device="cuda")
        target = torch.arange(WAYS, device="cuda").repeat_interleave(QUERIES)
        yield support, query + target.view(-1, 1, 1, 1) / CLASSES, target


def main():
    def stage(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(), nn.MaxPool2d(2))

    embed = nn.Sequential(stage(1, 32), stage(32, 32), stage(32, 32), nn.Flatten()).cuda()
    scale = nn.Parameter(torch.tensor(1.0, device="cuda"))
    opt = torch.optim.Adam([*embed.parameters(), scale], lr=1e-3)
    stream = episodes(1)

    def episode_loss():
        support, query, target = next(stream)
        protos = embed(support.flatten(0, 1)).view(WAYS, SHOTS, -1).mean(1)
        dist = torch.cdist(embed(query), protos)
        return F.cross_entropy(-scale * dist, target)

    for update in range(120):
        n = min(8, 1 + update // 7)
        losses = []
        for _ in range(n):
            losses.append(episode_loss())
        total = sum(losses) / n + 0.1 * torch.stack(losses).var(unbiased=False)
        opt.zero_grad()
        total.backward()
        opt.step()
        if update % 20 == 19:
            print("update", update + 1, "episodes", n, "loss", round(total.item(), 4))


main()
