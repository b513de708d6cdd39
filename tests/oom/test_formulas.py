"""Savings of optimizer remedies are what the allocator then has less, within the stated error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]

import warm  # noqa: E402

from vramscope.oom_diagnosis.cause import CauseKind  # noqa: E402
from vramscope.oom_diagnosis.demand import estimate_of  # noqa: E402
from vramscope.oom_diagnosis.facts import Facts  # noqa: E402
from vramscope_server.analysis.oom.remedies import optimizer_state  # noqa: E402
from vramscope_server.analysis.oom.remedies.remedy import RemedyContext  # noqa: E402

MEASURE = """
import gc, json, torch
from torch import nn

def layers(count, width, kind):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(count)]).to("cuda", kind), (64, width)

def convolutions():
    made = [nn.Conv2d(64 * n or 3, 64 * (n + 1), 3, padding=1) for n in range(6)]
    return nn.Sequential(*made).cuda(), (1, 3, 8, 8)

MODELS = {
    "large layers": lambda: layers(3, 4096, torch.float32),
    "layers of no power of two": lambda: layers(4, 1000, torch.float32),
    "bfloat16": lambda: layers(6, 2048, torch.bfloat16),
    "convolutions": convolutions,
}
OPTIMIZERS = {
    "foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "one by one": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "no state": lambda parameters: torch.optim.SGD(parameters, 0.01, foreach=False),
}

def blocks(tensor):
    return -(-tensor.numel() * tensor.element_size() // 512) * 512

def measured(make, optimizer_of):
    gc.collect()
    model, shape = make()
    optimizer = optimizer_of(model.parameters())
    kind = next(model.parameters()).dtype
    for _ in range(2):
        model(torch.empty(shape, device="cuda", dtype=kind)).sum().backward()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        optimizer.zero_grad()
    sizes = [blocks(one) for one in model.parameters()]
    return {"peak": peak, "held": held, "parameters": sum(sizes), "largest": max(sizes), "narrow": kind == torch.bfloat16}

measured(MODELS["bfloat16"], OPTIMIZERS["no state"])  # (cuBLAS takes its workspace, and keeps it)
print(json.dumps({m: {o: measured(make, of) for o, of in OPTIMIZERS.items()} for m, make in MODELS.items()}))
"""


@pytest.mark.gpu
def test_optimizer_remedies_save_what_they_promise(tmp_path: Path, emulated_gpu: None) -> None:
    env = {**os.environ, "EMULATED_GPU_TOTAL_MEM": "8G", "EMULATED_GPU_LEDGER": "private"}
    out, err = warm.Program(MEASURE, env=env, cwd=tmp_path).communicate(timeout=120)
    assert out, err
    for model, one in json.loads(out.splitlines()[-1]).items():
        foreach, one_by_one, none = one["foreach"], one["one by one"], one["no state"]
        saved = {
            "foreach=False": ("foreach", foreach["peak"] - one_by_one["peak"]),
            "SGD without momentum": (
                "no state",
                foreach["peak"] - none["peak"],
            ),  # the update ran out: its copies go too
        }
        named = {remedy.what: remedy for remedy in optimizer_state.remedies_for(context(foreach))}
        for words, (formula, saved_bytes) in saved.items():
            remedy = next(remedy for what, remedy in named.items() if words in what)
            least, most = (1 + share for share in optimizer_state.MEASURED[formula])
            assert remedy.saves_bytes is not None
            assert remedy.saves_bytes * least <= saved_bytes <= remedy.saves_bytes * most, (model, words)
            assert "(measured savings were 0.5 % smaller to " in remedy.source_words


def context(measured: dict[str, Any]) -> RemedyContext:
    """An error in the optimizer's step with these bytes in its record."""
    parameters = measured["parameters"]
    facts = Facts(
        asked_bytes=parameters, total_bytes=8 << 30, free_bytes=1 << 20, reserved_bytes=4 * parameters, step=1,
        used_bytes=4 * parameters, parameters_bytes=parameters, gradients_bytes=parameters, optimizer_bytes=2 * parameters,
        buffers_bytes=0, trainable_bytes=parameters, phase="optimizer", update="foreach",
    )  # fmt: skip
    need = estimate_of(facts)
    assert need is not None
    box: Any = SimpleNamespace(
        optimizer_kind="AdamW", update="foreach", state_bytes_per_parameter_byte=2.0,
        largest_parameter_bytes=measured["largest"], narrow_bytes=parameters if measured["narrow"] else 0,
    )  # fmt: skip
    return RemedyContext(facts, box, need, CauseKind.OPTIMIZER, lambda confs: [], ())
