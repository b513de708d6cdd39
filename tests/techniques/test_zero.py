"""ZeRO in Accelerate, transformers and Lightning: declared and observed, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import warm
from expected import SDPA
from ports import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(300), pytest.mark.xdist_group("techniques")]

ADAMW = ("AdamW", None, "torch.optim.AdamW")
EXPECTED = {
    "engine_offloaded": {
        "optimizer": ADAMW,
        "batch": ("batch 8", None, "inputs of 8 x 64"),
        "distributed": ("ZeRO-3", "deepspeed='zero stage 3'", "ZeRO-3, one rank"),
        "offload": (
            "parameter offload",
            "cpu_offload='optimizer to cpu, param to cpu'",
            "on the host: unused parameters, 100 % of the optimizer state",
        ),
    },
    "accelerate_zero": {
        "optimizer": ADAMW,
        "batch": ("batch 4", None, "inputs of 4 x 64"),
        "distributed": ("ZeRO-2", "deepspeed='zero stage 2'", "ZeRO-2, one rank"),
    },
    "hf_zero": {
        "gradient_accumulation": ("accumulation 2", "gradient_accumulation_steps=2", "2 micro-steps per step"),
        "optimizer": ("AdamW", "optim='adamw_torch'", "torch.optim.AdamW"),
        "batch": ("batch 2 x 16", "per_device_train_batch_size=2", "2 sequences of 16, 2 times per step"),
        "distributed": ("ZeRO-1", "deepspeed='zero stage 1'", "ZeRO-1, one rank"),
        "attention": SDPA,
    },
    "lightning_zero": {
        "optimizer": ADAMW,
        "batch": ("batch 4", None, "inputs of 4 x 64"),
        "distributed": ("ZeRO-3", "deepspeed='zero stage 3'", "ZeRO-3, one rank"),
    },
}


def test_zero_alone_and_in_three_frameworks(tmp_path: Path) -> None:
    code = (
        f"import json, sys, warnings; warnings.filterwarnings('ignore'); sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import watching, zero_cases; open('answers.json', 'w').write(json.dumps(watching.run_all()))"
    )
    rank = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    environment = {**os.environ, **rank, "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    done = warm.run(code, env=environment, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert [answer["failed"] for answer in answers.values() if "failed" in answer] == []
    for case, techniques in EXPECTED.items():
        last = answers[case]["last"]
        fields = {one["kind"]: (one["chip"], one["declared"], one["observed"]) for one in last["techniques"]}
        assert (case, fields, last["findings"]) == (case, techniques, [])
    assert answers.keys() == EXPECTED.keys()
