"""Selections by masks of the host have their true size, all others the largest."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu
PROGRAM = """
import gc, torch
from vramscope.dry_run import host_masks, largest_nonzero
from vramscope.guard import guard
guard.raise_faults = True
largest_nonzero.install(lambda frame, elements: elements)
host_masks.install()
host = torch.tensor([True, False, True, True])
mask, x = host.cuda(), torch.zeros(4, 3, device="cuda")
host[:] = False
assert len(x[mask]) == len(mask.nonzero()) == len(torch.where(mask)[0]) == 3
assert len(x[:2][mask[:2]]) == 1, "a view"
assert len(x.masked_select(mask[:, None])) == 9, "an expanded one"
x[mask] = torch.ones(3, 3, device="cuda")
assert len(torch.tensor([0, 5, 0], device="cuda").nonzero()) == 1
assert len(x[~mask]) == 4, "computed"
before = torch.cuda.memory_allocated()
storage = mask.untyped_storage()._cdata
kept = host_masks._copied[storage]
del mask
gc.collect()
assert torch.cuda.memory_allocated() < before, "not kept alive"
assert kept.storage.expired()
assert len((x[:, 0] > 0).nonzero()) == 4, "computed, at the address of the mask"
mask = torch.tensor([True, False, True, True]).to("cuda", non_blocking=True)
mask[0] = False
assert len(x[mask]) == 4, "changed on the device"
with torch.inference_mode():
    assert len(x[torch.tensor([True, False, True, True]).cuda()]) == 4
assert torch.eye(3).t().to(torch.float64).stride() == (1, 3)
assert torch.eye(3).to("cuda", torch.bfloat16).dtype is torch.bfloat16
weight = torch.ones(2, requires_grad=True)
weight.cuda().sum().backward()
assert weight.grad.shape == (2,) and weight.grad.is_cpu
print("all as expected")
"""


def test_selections_by_masks_of_the_host_have_their_size(emulated_gpu, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "all as expected", done.stderr
