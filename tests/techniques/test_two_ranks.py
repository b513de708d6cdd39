"""Accelerate with two processes: a prepared model under DDP, and an unprepared model that trains by mistake."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm
from ports import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(300), pytest.mark.xdist_group("techniques")]

CODE = """
import json, sys, warnings
warnings.filterwarnings("ignore")
sys.path.insert(0, sys.argv[1])
import torch, watching
from accelerate.utils import InitProcessGroupKwargs
from cases import CASES, Blocks, case, loop, plainly
from framework_cases import accelerated

CASES.clear()

@case
def prepared():
    return accelerated(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])

@case
def beside():
    accelerator, _ = accelerated()
    return accelerator, loop(Blocks(plainly))[1]

def devices(*sizes):
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cuda", sizes, mesh_dim_names=("outer", "inner")[:len(sizes)])

@case
def split():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4)).cuda()
    return loop(parallelize_module(model, devices(2), {"0": ColwiseParallel(), "2": RowwiseParallel()}))

@case
def in_groups():
    from torch.distributed.fsdp import fully_shard
    return loop(fully_shard(Blocks(plainly).cuda(), mesh=devices(2, 1)))

print(json.dumps(watching.run_all()))
torch.distributed.destroy_process_group()
"""


def test_ddp_is_detected_and_reported_missing(tmp_path: Path) -> None:
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    programs = [
        warm.Program(
            CODE,
            arguments=[str(Path(__file__).parent)],
            env={**os.environ, **ranks, "RANK": str(rank), "LOCAL_RANK": "0"},  # (there is one GPU for both)
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    for program in programs:
        output, faults = program.communicate(280)
        assert program.returncode == 0, faults[-4000:]
        answers = json.loads(output.splitlines()[-1])
        assert [answer["failed"] for answer in answers.values() if "failed" in answer] == []
        distributed = {
            case: next(one for one in answer["last"]["techniques"] if one["kind"] == "distributed")
            for case, answer in answers.items()
        }
        assert {case: (one["chip"], one["declared"], one["observed"]) for case, one in distributed.items()} == {
            "prepared": ("DDP x 2", "distributed_type='MULTI_GPU'", "DDP over 2 ranks"),
            "beside": ("DDP", "distributed_type='MULTI_GPU'", ""),
            "split": ("DTensor x 2", None, "DTensor (R; S(0); S(1)) over 2 ranks"),
            "in_groups": ("FSDP2 x 2", None, "FSDP2 (R, S(0)) over 2 ranks"),
        }
        batches = {
            case: next(one for one in answer["last"]["techniques"] if one["kind"] == "batch")["detail"]
            for case, answer in answers.items()
        }
        assert {case: batch.get("effective_batch_size") for case, batch in batches.items() if case != "beside"} == {
            "prepared": 8,
            "split": None,  # the ranks share a batch
            "in_groups": 16,
        }
        assert {case: [one["kind"] for one in answer["last"]["findings"]] for case, answer in answers.items()} == {
            "prepared": [],
            "beside": ["distributed-not-seen"],
            "split": [],
            "in_groups": [],
        }
