"""One rank of many through PyTorch's fake process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from vramscope_server.cli.client import Failure
from vramscope_server.cli.dryrun import show
from vramscope_server.cli.dryrun.training import Plan

MESH = """
from vramscope.dry_run import one_rank

one_rank.install()
from torch.distributed import get_backend, get_world_size
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("a", "b"))
print(get_backend(), get_world_size(), mesh["a"].size(), get_backend(mesh["b"].get_group()))
"""
PROGRAM = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group, new_group
from torch.distributed.fsdp import fully_shard

init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
size = dist.get_world_size()
if size > 1:
    new_group(list(range(size)), backend="nccl")
model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    model(torch.empty(16, 4096, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DATA_PARALLEL = """
import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    model(torch.empty(16, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAYER_BYTES = 4096 * 4096 * 4


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        (["/venv/bin/torchrun", "train.py"], "torchrun"),
        (["python", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
    ],
)
def test_a_launcher_is_refused(words, launcher):
    """It would set the number of ranks itself."""
    with pytest.raises(Failure, match=f"the script itself, not {launcher}"):
        show("", False, words, "h100", steps=1, timeout_seconds=1, ranks=8)


@pytest.mark.parametrize(("ranks", "devices"), [(1, 1), (4, 4), (64, 8)])
def test_a_machine_has_a_card_for_each_rank_and_at_most_eight(ranks, devices):
    assert Plan(["python", "train.py"], [], "http://x", 1, 1, ranks=ranks).devices == devices


def dry_run(
    url: str, folder: Path, *options: str, command: str = "", program: str = PROGRAM
) -> tuple[dict[str, Any], int, str]:
    (folder / "train.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    words = [sys.executable, "-m", "vramscope_server", "dryrun", "--card", "h100", "--json", "--steps", "2", *options]
    words += ["--server", url, "--", command or sys.executable, str(folder / "train.py")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    return json.loads(done.stdout) if done.stdout else {}, done.returncode, done.stderr


def test_a_device_mesh_makes_the_groups(tmp_path):
    """Without ``init_process_group`` in the program."""
    names = {"VRAMSCOPE_DRY_RUN_RANKS": "8", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [sys.executable, "-c", MESH]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | names, timeout=60, check=False)
    assert done.stdout.split() == ["fake", "8", "2", "fake"], done.stderr


@pytest.mark.gpu
def test_a_rank_of_64_holds_its_share(url, tmp_path):
    """Weights and both states of the optimizer are a 64th; two whole layers and a gradient exist at a time."""
    answer, code, said = dry_run(url, tmp_path, "--ranks", "64")
    assert code == 0, said
    assert answer["assumptions"] == ["63 other ranks are not run, and NCCL's buffers are not counted"]
    share = 8 * LAYER_BYTES / 64
    assert 3 * share < answer["peak_allocated_bytes"] < 3 * share + 8 * LAYER_BYTES
    assert [row["rank"] for row in answer["ranks"]] == [0]


@pytest.mark.gpu
def test_another_rank_has_the_device_of_its_place_on_the_machine(url, tmp_path):
    answer, code, said = dry_run(url, tmp_path, "--ranks", "64", "--as-rank", "13", program=DATA_PARALLEL)
    assert (code, [row["rank"] for row in answer["ranks"]]) == (0, [13]), said
    assert answer["peak_allocated_bytes"] > 4 * 2048 * 2048 * 4


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        (("--as-rank", "3"), "", "--as-rank 3 needs --ranks 4 or more"),
        (("--ranks", "8"), "torchrun", "with --ranks the command is the script itself, not torchrun"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, options, command, message):
    _, code, said = dry_run("http://127.0.0.1:9", tmp_path, *options, command=command)
    assert code == 2 and message in said


@pytest.mark.gpu
@pytest.mark.parametrize("program", [PROGRAM, DATA_PARALLEL], ids=["fully_shard", "DistributedDataParallel"])
def test_one_of_two_has_the_peak_of_two_that_run(url, tmp_path, program):
    alone, _, said = dry_run(url, tmp_path, "--ranks", "2", program=program)
    script = str(tmp_path / "train.py")
    words = [sys.executable, "-m", "vramscope_server", "dryrun", "--card", "h100", "--json", "--steps", "2", "--server"]
    words += [url, "--", sys.executable, "-m", "torch.distributed.run"]
    words += ["--nproc-per-node", "2", "--master-port", str(free_port()), script]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    both = json.loads(done.stdout)
    assert both["answer"] == alone["answer"] == "fits", said + done.stderr
    for counter in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert {row[counter] for row in both["ranks"]} == {alone["ranks"][0][counter]}


@pytest.mark.gpu
def test_a_hook_of_the_program_may_come_after_its_first_forward(url, tmp_path):
    """PyTorch takes one hook for each model, and the dry run has put its own there."""
    registers = """model(torch.empty(16, 2048, device="cuda"))
model.register_comm_hook(None, allreduce_hook)
for _ in range(100):"""
    program = DATA_PARALLEL.replace("for _ in range(100):", registers)
    assert program != DATA_PARALLEL
    imported = "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook\n"
    alone, _, said = dry_run(url, tmp_path, "--ranks", "2", program=imported + program)
    assert alone["answer"] == "fits", said
