"""Sending a profile from a real process: on request of the server, with and without CUDA, without an effect on the
training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collector import Collector
from training import Arrived, run

from vramscope.profiler.events import _is_device_work
from vramscope.protocol import messages
from vramscope.protocol.profile import Profile, unpack


def artifacts(collector: Collector) -> dict[str, list[bytes]]:
    """Return kind -> the complete artifacts."""
    pieces: dict[str, list[messages.Piece]] = {}
    for piece in Arrived(collector).of(messages.Piece):
        pieces.setdefault(piece.artifact, []).append(piece)
    found: dict[str, list[bytes]] = {}
    for parts in pieces.values():
        if len(parts) == parts[0].pieces:
            data = b"".join(part.data for part in sorted(parts, key=lambda part: part.number))
            found.setdefault(parts[0].kind, []).append(data)
    return found


def only(collector: Collector) -> Profile:
    (data,) = artifacts(collector)["profile"]
    return unpack(data)


@pytest.mark.gpu
def test_a_request_brings_tables_and_trace(collector: Collector, spool: Path) -> None:
    """And a forked child neither records nor sends; afterwards PyTorch's functions are its own."""
    output = run(
        """
import os
from torch.autograd import profiler
session = agent.attach(model, windows=False)
uploads = session._profiler._uploads
session._on_request(["record_trace"])  # as an answer of the server's does
for _ in range(800):
    time.sleep(0.05)
    train(1)
    if uploads._thread is not None and not uploads._count:
        break
if (child := os.fork()) == 0:
    os._exit(profiler._prepare_profiler.__module__ == "vramscope.profiler.pytorch_profiler")
print("child", os.waitpid(child, 0)[1])
agent.detach()
print("own", profiler._prepare_profiler.__module__ != "vramscope.profiler.pytorch_profiler", torch._C._autograd._profiler_enabled())
""",
        collector,
        spool,
        VRAMSCOPE_CLOSE_TIMEOUT_S="30",
    )
    assert "child 0" in output and "own True False" in output
    assert "USDT" not in output, "PyTorch's profiling library writes nothing to the terminal"
    profile = only(collector)
    assert (profile.reason, profile.steps, profile.stacks, profile.device) == ("asked for", 2, True, 0)
    assert profile.allocated_bytes and profile.peak_bytes and profile.phases["forward"] > 0
    assert "Sequential" in profile.words and "aten::addmm" in profile.words
    (trace,) = artifacts(collector)["trace"]
    assert any(event.get("name") == "aten::addmm" for event in json.loads(gzip.decompress(trace))["traceEvents"])
    abouts: list[dict[str, Any]] = [piece.about for piece in Arrived(collector).of(messages.Piece)]
    assert (profile.first_step, profile.last_step) in {(about["first_step"], about["last_step"]) for about in abouts}


def test_without_cuda_there_are_times_and_the_training_is_bit_identical(collector: Collector, spool: Path) -> None:
    output = run(
        """
assert not torch.cuda.is_available()
def trained(watched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    if watched:
        session = agent.attach(model)
    for step in range(60):
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20 and watched:
            session.profile()
    if watched:
        for _ in range(800):
            time.sleep(0.05)
            if not agent._live._profiler._uploads._count:
                break
        agent.detach()
    return [p.detach() for p in model.parameters()]
print("identical", all(map(torch.equal, trained(False), trained(True))))
""",
        collector,
        spool,
        loop=False,
        CUDA_VISIBLE_DEVICES="",
        VRAMSCOPE_CLOSE_TIMEOUT_S="30",
    )
    assert "identical True" in output
    profile = only(collector)
    assert (profile.device, profile.peak_bytes, profile.allocated_bytes, profile.device_time) == (-1, None, None, False)
    assert profile.steps == 2 and profile.span_ns > 0


@pytest.mark.parametrize(
    ("name", "kind", "works"),
    [
        ("void at::native::vectorized_elementwise_kernel", "kernel", True),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", True),
        ("Memset (Device)", "gpu_memset", True),
        ("[memory]", "cpu_instant_event", False),
        ("Stream Wait Event", "cuda_sync", False),
        ("Context Sync", "cuda_sync", False),
        ("Optimizer.step#AdamW.step", "gpu_user_annotation", False),
    ],
)
def test_device_work_is_recognised_without_activity_types(name, kind, works):
    """Replays events of torch 2.6, which has no activity types."""
    old = SimpleNamespace(name=lambda: name, is_user_annotation=lambda: "annotation" in kind)
    new = SimpleNamespace(**vars(old), activity_type=lambda: kind)
    assert _is_device_work(old) is _is_device_work(new) is works
