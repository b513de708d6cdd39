"""Dry runs of several ranks: finished collectives keep no tensors in the next steps."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from ports import free_port
from torch.torch_version import TorchVersion

pytestmark = pytest.mark.gpu
HELD = """
import sys, torch, torch.distributed as dist
from vramscope.dry_run.collectives import wait_until_finished
wait_until_finished()  # without a group
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=0, world_size=1)
x = torch.ones(32 * 2**20, dtype=torch.uint8, device="cuda")
dist.all_reduce(x, async_op=True).get_future().wait()
del x
if sys.argv[2] == "wait":
    wait_until_finished()
dist.all_reduce(torch.ones(1, device="cuda"))
print(torch.cuda.memory_allocated() // 2**20)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("way", "mib"), [("go on", 32), ("wait", 0)])
def test_finished_collectives_release_their_tensors(tmp_path: Path, way: str, mib: int) -> None:
    """Without the wait PyTorch's watchdog still had the tensor before 2.15, which is why dry runs of one program differed."""
    if TorchVersion(version("torch")) >= "2.15":
        mib = 0
    program = tmp_path / "program.py"
    program.write_text(HELD)
    words = [sys.executable, str(program), str(free_port()), way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.stdout.split() == [str(mib)], done.stderr
