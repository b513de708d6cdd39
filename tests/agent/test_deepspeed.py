"""The real DeepSpeed: its steps, its gradients and its loss are none that PyTorch's own hooks would show."""

from __future__ import annotations

import textwrap

import pytest
from collector import Collector
from ports import free_port
from training import Arrived, run, told_of

from vramscope.protocol import messages, series

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(180)]

PRELUDE = """
import os
sys.path.append(f"{sys.prefix}/deepspeed")
os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
import deepspeed
"""


def trained(script: str, collector: Collector, spool, **more: str) -> Arrived:
    script = PRELUDE + textwrap.dedent(script)
    run(script, collector, spool, loop=False, MASTER_PORT=str(free_port()), **more)
    return Arrived(collector)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_steps_categories_and_techniques_are_those_of_the_training(collector, spool, stage: int) -> None:
    """ZeRO steps its groups of parameters one by one, takes gradients away, and keeps them in buckets that live in the backward."""
    arrived = trained(
        f"""
        model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)])
        groups = [{{"params": [p for p in model.parameters() if p.dim() == d]}} for d in (1, 2)]
        zero = dict(stage={stage}, reduce_bucket_size=8 << 20)
        config = dict(train_micro_batch_size_per_gpu=8, gradient_accumulation_steps=2, zero_optimization=zero,
            bf16=dict(enabled=True), zero_allow_untested_optimizer=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups), config=config)
        agent.attach(engine, name="zero")
        engine.optimizer.loss_scale = 64.0  # as fp16 has one
        for batch in range(12):
            out = engine(torch.zeros(8, 256, device="cuda", dtype=torch.bfloat16)).float().square().mean()
            engine.backward(out.cpu().mul(0).nan_to_num() + batch)  # (what the emulated GPU computes is no number)
            engine.step()
        """,
        collector,
        spool,
    )
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["micro_steps"] == 2 for row in steps)
    assert arrived.attached.framework == "deepspeed"
    config = arrived.attached.config
    assert (config["deepspeed"], config["gradient_accumulation_steps"]) == (f"zero stage {stage}", 2)
    last = arrived.of(messages.Techniques)[-1]
    assert {technique.kind: (technique.chip, technique.declared) for technique in last.techniques} == {
        "gradient_accumulation": ("accumulation 2", "gradient_accumulation_steps=2"),
        "mixed_precision": ("bf16 weights with fp32 masters", "mixed_precision='bf16'"),
        "optimizer": ("AdamW", None),
        "batch": ("batch 8", None),
        "distributed": (f"ZeRO-{stage}", f"deepspeed='zero stage {stage}'"),
    }
    assert last.findings == []
    reported = told_of(collector, "zero")["backward_loss"]
    assert reported == [(n + 1, 2 * n + 0.5) for n in range(6)], "the mean of the micro-steps, before the scale"
    weights, bucket = 4 * (256 * 256 + 256), 16 << 20
    for row in steps[1:]:
        parts = [row[f"peak_{category}_bytes"] for category in series.CATEGORIES]
        assert sum(parts) == row["peak_allocated_bytes"]
        parameters, gradients, state = parts[:3]
        assert parameters == pytest.approx(weights * (2 + 4), rel=0.02), "in 16 bits, and their copies in 32"
        assert state == pytest.approx(weights * 8, rel=0.02)
        assert bucket <= gradients < bucket + weights * 4, "once, though every gradient is a view of it"
