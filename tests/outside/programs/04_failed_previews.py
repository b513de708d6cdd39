"""A small diffusion trainer that also serves preview requests; a request with a wrong argument fails deep inside the sampler and the worker files the exception object for a later report, whose traceback keeps the latents of every failed request alive. Source: https://github.com/vllm-project/vllm-omni/pull/6385 - the pull request established that CUDA tensors are retained by the tracebacks of failed diffusion requests, memory growing with each failure."""
EXPECTED = {"kind": "leak", "holder": ["failures", "traceback", "ValueError", "exception"], "growing": True}

import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, dim=768):
        super().__init__()
        self.dim = dim
        self.net = nn.Sequential(nn.Linear(dim + 1, 512), nn.SiLU(), nn.Linear(512, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=-1))


def guide(latents, uncond, scale):
    if scale < 0:
        raise ValueError(f"guidance scale must not be negative, got {scale}")
    return latents + scale * (latents - uncond)


@torch.no_grad()
def sample(model, n, scale):
    latents = torch.randn(n, model.dim, device="cuda")
    uncond = torch.randn(n, model.dim, device="cuda")
    for k in range(4, 0, -1):
        t = torch.full((n, 1), k / 4, device="cuda")
        latents = latents - 0.1 * model(guide(latents, uncond, scale), t)
    return latents.mean().item()


class PreviewWorker:
    def __init__(self, model):
        self.model = model
        self.answers = []
        self.failures = []

    def handle(self, request):
        try:
            self.answers.append(sample(self.model, request["n"], request["scale"]))
        except ValueError as exc:
            self.failures.append((request["id"], exc))  # <- here


model = Denoiser().cuda()
worker = PreviewWorker(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(75):
    x0 = torch.randn(128, 768, device="cuda")
    noise = torch.randn_like(x0)
    t = torch.rand(128, 1, device="cuda")
    loss = (model((1 - t) * x0 + t * noise, t) - noise).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 3 == 0:
        worker.handle({"id": step, "n": 1024, "scale": 3.0 if step % 2 else -1.0})

print(len(worker.answers), "previews,", len(worker.failures), "failed")
for number, exc in worker.failures[:3]:
    print("request", number, "->", exc)
