"""Single operations: losses, norms and products that benchmarks of kernels compare with, attention, allocations alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from published_programs import program

F = nn.functional
MIB = 2**20


def repeated_peak(call: Callable[[], object]) -> float:
    """Return the median peak of ten calls, in bytes."""
    peaks = []
    for _ in range(10):
        torch.cuda.reset_peak_memory_stats()
        call()
        peaks.append(torch.cuda.max_memory_allocated())
    return sorted(peaks)[5]


@program
def cross_entropy(words: int, tokens: int = 16384) -> Mapping[str, float]:
    x = torch.randn(tokens, words, requires_grad=True, device="cuda")
    target = torch.randint(words, (tokens, 1), device="cuda").squeeze(1)
    loss = nn.CrossEntropyLoss()
    return {"peak": repeated_peak(lambda: loss(x, target).backward())}


@program
def gated_mlp(
    rows: int, length: int, act: str, width: int = 4096, inner: int = 11008, mode: str = "full"
) -> Mapping[str, float]:
    """The MLP of a Llama with its three products, in bfloat16."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    x = torch.randn(rows, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = LlamaMLP(LlamaConfig(hidden_size=width, intermediate_size=inner, hidden_act=act)).to("cuda", torch.bfloat16)

    def full() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return {"peak": repeated_peak(full if mode == "full" else lambda: layer(x))}


@program
def layer_norm(width: int) -> Mapping[str, float]:
    beside = nn.LayerNorm(width).to("cuda")  # the benchmark's own kernel has parameters, too
    layer = nn.LayerNorm(width, eps=1e-6).to("cuda")
    x = torch.randn(4096, width, device="cuda")
    gradient = torch.randn_like(x)
    x.requires_grad_()
    found = repeated_peak(lambda: layer(x).backward(gradient, retain_graph=True))
    del beside
    return {"peak": found}


@program
def rms_norm(width: int) -> Mapping[str, float]:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    beside = nn.Parameter(torch.ones(width, device="cuda"))  # the benchmark's own kernel has a weight, too
    layer = LlamaRMSNorm(width, eps=1e-6).to("cuda")
    x = torch.randn(2048, width, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn_like(x)
    x.requires_grad_()
    found = repeated_peak(lambda: layer(x).backward(gradient, retain_graph=True))
    del beside
    return {"peak": found}


@program
def divergence(kind: str, words: int, tokens: int) -> Mapping[str, float]:
    """Divergences between two distributions over a vocabulary: Kullback-Leibler, Jensen-Shannon, total variation."""
    logarithms = kind == "jensen-shannon"
    x = torch.randn(tokens, words, requires_grad=True, device="cuda")
    x = x.softmax(dim=-1) if kind == "total variation" else x.log_softmax(dim=-1)
    y = torch.randn(tokens, words, device="cuda")
    y = y.log_softmax(dim=-1) if logarithms else y.softmax(dim=-1)
    kl = nn.KLDivLoss(reduction="batchmean", log_target=logarithms)

    def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        distance = torch.abs(p - q) / 2.0
        return torch.sum(distance) / p.size(0)

    def jensen_shannon(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        middle = 0.5 * (torch.exp(p) + torch.exp(q))
        log_middle = torch.log(middle)
        return 0.5 * (kl(log_middle, p) + kl(log_middle, q))

    loss = {"kullback-leibler": kl, "total variation": total_variation, "jensen-shannon": jensen_shannon}[kind]
    return {"peak": repeated_peak(lambda: loss(x, y).backward(retain_graph=True))}


@program
def head_and_loss(tokens: int) -> Mapping[str, float]:
    """The output layer of a model with 128,256 words, and its loss, in bfloat16. A second output layer lies beside it."""
    heads = [nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    loss = nn.CrossEntropyLoss()
    x = torch.randn(tokens, 4096, requires_grad=True, dtype=torch.bfloat16, device="cuda")
    target = torch.randint(128256, (tokens, 1), dtype=torch.long, device="cuda").squeeze(1)

    def forward() -> torch.Tensor:
        logits = heads[0](x)
        return loss(logits, target)  # the logits go with the function

    return {"peak": repeated_peak(lambda: forward().backward())}


@program
def capped_loss(kind: str) -> Mapping[str, float]:
    """Output layer of Gemma 2 with soft capping and its loss, over 8,192 tokens: peak less what was there before."""
    e = torch.randn(8192, 2304, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    c = torch.randn(256000, 2304, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, 256000, (8192,), device="cuda")

    def loss() -> torch.Tensor:
        logits = e @ c.T
        logits = torch.tanh(logits / 30.0) * 30.0
        return F.cross_entropy(logits.float(), target)

    loss().backward()  # the source warms up, so that cuBLAS has its workspace
    e.grad = c.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    value = loss()
    if kind == "forward":
        return {"added": torch.cuda.max_memory_allocated() - before}
    if kind == "backward":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
    value.backward()
    return {"added": torch.cuda.max_memory_allocated() - before}


@program
def plain_attention(rows: int, length: int, width: int, *, backward: bool) -> Mapping[str, float]:
    """Attention in elementary float32 operations, with results of a first comparison still alive."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = q * (1.0 / q.shape[-1] ** 0.5)
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    q = torch.rand((rows, length, width), device="cuda", requires_grad=backward)
    kept: list[Any] = [torch.empty_like(q), attention(q, q, q)]
    if backward:
        kept[1].backward(torch.ones_like(q))
        kept.append(torch.empty_like(q))  # the gradient of the other implementation
        kept[1] = kept[1].detach()
        out, gradient = attention(q, q, q), torch.ones_like(q)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            out.backward(gradient, retain_graph=True)
    else:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            attention(q, q, q)
    return {"peak": torch.cuda.max_memory_allocated()}


@program
def attention_parts() -> Mapping[str, float]:
    """Parts of a Megatron attention with 32 heads and 4,096 tokens in bfloat16: what each of them adds."""
    q = torch.randn(32, 4096, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = torch.randn_like(q).requires_grad_(), torch.randn_like(q).requires_grad_()
    torch.bmm(q, k.transpose(1, 2))  # cuBLAS takes its workspace
    found = {}
    before = torch.cuda.memory_allocated()

    def note(name: str) -> None:
        nonlocal before
        now = torch.cuda.memory_allocated()
        found[name], before = now - before, now

    room = torch.empty(32, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0.0, alpha=0.1)
    note("scores")
    weights = torch.softmax(scores, dim=-1)
    note("softmax")
    dropped = F.dropout(weights, 0.1)
    note("dropout")
    context = torch.bmm(dropped, v)
    note("context")
    del room, context
    return found


@program
def products_of_batches(rows: int, steps: int) -> Mapping[str, float]:
    """One weight, trained with batches that come from the host; gradients of some batches are added up."""
    data = torch.randn([512, 32, 1024])
    weight = torch.randn([1024, 32], requires_grad=True, device="cuda")
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for i in range(2):
        optimizer.zero_grad()
        for j in range(steps):
            offset = i * 256 + rows * j
            x = data[offset : offset + rows].to("cuda")
            y = x.matmul(weight)
            loss = y.sum()
            loss.backward()
        optimizer.step()
    return {"peak": torch.cuda.max_memory_allocated()}


@program
def wide_layers() -> Mapping[str, float]:
    """Two wide layers: forward and backward in checkpointed segments, then without them."""
    layers = (nn.Linear(1000, 40000), nn.ReLU(), nn.Linear(40000, 1000), nn.ReLU(), nn.Linear(1000, 5), nn.ReLU())
    model = nn.Sequential(*layers).to("cuda")
    x = torch.randn(10, 1000, device="cuda", requires_grad=True)
    out = checkpoint_sequential([*model], 2, x, use_reentrant=True)
    model.zero_grad()
    out.sum().backward()
    found = {"checkpointed": torch.cuda.max_memory_allocated()}
    kept = [out.data.clone(), *(parameter.grad.data.clone() for parameter in model.parameters())]  # type: ignore[union-attr]
    x = x.clone().detach_()
    out = model(x)
    kept.append(out.data.clone())
    model.zero_grad()
    out.sum().backward()
    found["plain"] = torch.cuda.max_memory_allocated()
    return found


@program
def tensors_of_a_function() -> Mapping[str, float]:
    """A hundred small tensors, then one more that lives in a global variable."""
    tensors = [torch.randn(100, 100, device="cuda") for _ in range(100)]
    hundred = torch.cuda.memory_allocated()
    tensors.append(torch.randn(100, 100, device="cuda"))
    return {"hundred": hundred, "hundred and one": torch.cuda.memory_allocated()}


@program
def two_tensors() -> Mapping[str, float]:
    kept = [torch.randn([1024, 1024], device="cuda"), torch.randn([256, 1024, 1024, 1], device="cuda")]
    found = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    del kept
    return found


@program
def shared_weight() -> Mapping[str, float]:
    """A product of a small matrix, whose first call makes cuBLAS take its workspace."""
    acts = nn.Embedding(10, 768)(torch.randint(0, 10, (10,))).to("cuda")
    found = {"inputs": torch.cuda.memory_allocated()}
    weight = torch.randn(768, 768, requires_grad=True).to("cuda")
    found["weight"] = torch.cuda.memory_allocated()
    acts = torch.matmul(acts, weight)
    found["product"] = torch.cuda.memory_allocated()
    return found


@program
def wide_mlp() -> Mapping[str, float]:
    """Layers with a billion weights each: memory with the model, and with its gradients."""
    sizes = [16, 32, 1024, 2**20, 1024, 32, 16]
    x, y = torch.randn(16, device="cuda"), torch.randn(16, device="cuda")
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)))
    found = {"model": torch.cuda.memory_allocated()}
    loss = nn.MSELoss()(y, model(x))
    loss.backward()
    return found | {"gradients": torch.cuda.memory_allocated()}
