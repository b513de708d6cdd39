"""A sample of what runs, forward and backward; and what the emulation refuses rather than answer wrongly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def randn(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


def train(module, *inputs):
    out = module.to("cuda")(*inputs)
    (out[0] if isinstance(out, tuple) else out).float().sum().backward()


@pytest.mark.parametrize(
    "module, shape",
    [
        (nn.Linear(8, 8), (4, 8)),
        (nn.Conv2d(3, 8, 3), (2, 3, 16, 16)),
        (nn.ConvTranspose2d(3, 8, 3), (2, 3, 16, 16)),
        (nn.BatchNorm2d(3), (8, 3, 16, 16)),
        (nn.GroupNorm(2, 8), (2, 8, 8, 8)),
        (nn.LayerNorm(8), (4, 8)),
        (nn.MaxPool2d(2), (1, 3, 8, 8)),
        (nn.Dropout(), (64,)),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_modules_run_forward_and_backward(module, shape):
    train(module, randn(*shape, requires_grad=True))


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"])
def test_every_attention_backend_runs(backend):
    q = randn(2, 4, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert q.grad.shape == q.shape


@pytest.mark.parametrize(
    "optimizer, options",
    [("SGD", {"momentum": 0.9}), ("AdamW", {"fused": True}), ("AdamW", {"foreach": False}), ("Adafactor", {})],
)
def test_optimizers_step(optimizer, options):
    parameters = [randn(10, 10, requires_grad=True) for _ in range(3)]
    stepper = getattr(torch.optim, optimizer)(parameters, lr=0.1, **options)
    sum(p.sum() for p in parameters).backward()
    stepper.step()


def test_autocast_with_a_gradient_scaler_takes_its_steps():
    """Gradients are zero, so the scaler finds no infinity and never skips a step."""
    model = nn.Linear(8, 8).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            loss = model(randn(4, 8)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert {state["step"].item() for state in optimizer.state.values()} == {2}


def test_checkpointing_recomputes_and_saves_memory():
    """The peak falls, and the forward pass of the module is seen twice."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).cuda()
    calls, peaks = [], []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for checkpointed in (False, True):
        torch.cuda.reset_peak_memory_stats()
        x = randn(1024, 512, requires_grad=True)
        for block in model:
            x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
        x.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
        model.zero_grad()
        del x
    assert len(calls) == 3
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.sort(),
        lambda x: x.topk(3),
        lambda x: x.unique(),
        lambda x: x.cumsum(0),
        lambda x: x.softmax(0).multinomial(1),
        lambda x: torch.fft.rfft(x),
        lambda x: torch.einsum("i,j->ij", x, x),
        lambda x: torch.linalg.cholesky(torch.eye(4, device="cuda")),
        lambda x: torch.linalg.svd(torch.eye(4, device="cuda")),
        lambda x: torch.utils.data.default_collate([x, x]),
        lambda x: torch.ones(9).pin_memory().to("cuda", non_blocking=True),
    ],
)
def test_operations_run(operation):
    operation(randn(5))
    torch.cuda.synchronize()


def test_the_device_reads_as_zeros_but_for_what_the_host_just_wrote():
    """No kernel writes. What the host wrote can be read back until the next kernel, after which nobody knows it."""
    x = torch.tensor([1, 2, 3]).cuda()
    assert x.tolist() == [1, 2, 3]
    assert x.clone().tolist() == [1, 2, 3]
    assert (x + 1).tolist() == [0, 0, 0]
    assert x.tolist() == [0, 0, 0]


def test_sizes_that_depend_on_data_come_out_empty():
    """A stale count would ask for exabytes; zero is safe."""
    torch.tensor([7, 7, 7, 7]).cuda()
    assert randn(1000).nonzero().numel() == 0
    assert randn(1000)[randn(1000) > 0].numel() == 0


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_keep_what_the_backward_pass_needs(kind):
    """Sizes that cuDNN returned on a P100 for networks of this shape: github.com/pytorch/pytorch/issues/2895."""
    network = kind(123, 320, 4).cuda()
    x = randn(250, 100, 123)
    before = torch.cuda.memory_allocated()
    out, state = network(x)
    states = 2 * len(state) * state[0].nbytes if kind is nn.LSTM else 2 * state.nbytes  # the first ones are kept, too
    reserve = torch.cuda.memory_allocated() - before - out.nbytes - states
    published = {nn.LSTM: 736_000_000, nn.GRU: 864_000_000}[kind]
    assert 0 <= reserve - published < 2**20, "blocks are rounded up"
    out.sum().backward()


def test_what_cannot_be_emulated_is_refused():
    """The spaces of cuDNN's recurrent networks with a projection are not known; without cuDNN they run."""
    with pytest.raises(RuntimeError, match="not supported by the emulated GPU"):
        train(nn.LSTM(16, 16, proj_size=8), randn(5, 2, 16))
    with torch.backends.cudnn.flags(enabled=False):
        train(nn.LSTM(16, 16, proj_size=8), randn(5, 2, 16))
