"""Attached: what it says about the process, its machine, its GPU and its code."""

from __future__ import annotations

import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training import Arrived, environment

from vramscope import __version__
from vramscope.process.identity import git_commit, job_rank, run_name

TRAINING = """
import os, sys, torch
from torch import nn
from vramscope import agent
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
agent.attach(model, project="who", name="is it", tags=["a", "b"], config={"lr": 0.1})
for _ in range(3):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
print(os.getpid(), torch.cuda.get_device_properties(0).uuid, torch.cuda.get_device_properties(0).total_memory)
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder under git with a training in it, committed."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    git(folder, "init", "--quiet")
    git(folder, "add", "train.py")
    git(folder, "commit", "--quiet", "--message", "a training")
    return folder


@pytest.mark.gpu
def test_attached_describes_the_run(collector, spool, repository: Path) -> None:
    """Started from another folder, the script's commit is reported."""
    import pynvml

    job = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    command = [sys.executable, str(repository / "train.py"), "--lr", "0.1"]
    done = subprocess.run(
        command,
        env=environment(collector, spool, **job),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pid, uuid, total_bytes = done.stdout.split()
    arrived = Arrived(collector)
    attached = arrived.attached
    assert (attached.project, attached.name, attached.tags, attached.config) == (
        "who",
        "is it",
        ["a", "b"],
        {"lr": 0.1},
    )
    assert (attached.rank, attached.world_size, arrived.ranks) == (3, 8, {3})
    assert (attached.host, attached.pid) == (socket.gethostname(), int(pid))
    assert attached.git_commit == git(repository, "rev-parse", "HEAD")
    assert attached.command == [str(repository / "train.py"), "--lr", "0.1"]
    assert (attached.python, attached.torch, attached.cuda) == (
        platform.python_version(),
        torch.__version__,
        torch.version.cuda,
    )
    assert attached.agent_version == __version__
    assert attached.allocator_settings is not None and "max_split_size_mb:128" in attached.allocator_settings
    (device,) = attached.devices
    assert (device.index, device.uuid, device.total_bytes) == (0, f"GPU-{uuid}", int(total_bytes))
    assert device.name == torch.cuda.get_device_name(0)
    pynvml.nvmlInit()
    assert attached.driver == pynvml.nvmlSystemGetDriverVersion()
    assert attached.host_total_bytes is not None and attached.host_total_bytes > 1 << 28


@pytest.mark.parametrize(
    ("script", "notebook", "name"),
    [
        ("/home/me/train.py", None, "train"),
        ("/env/ipykernel_launcher.py", "/home/me/First try.ipynb", "First try"),
        ("/env/ipykernel_launcher.py", None, "notebook"),
        ("/usr/lib/colab_kernel_launcher.py", None, "notebook"),
    ],
)
def test_a_run_is_named_after_the_script_or_the_notebook(
    monkeypatch, script: str, notebook: str | None, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if notebook:
        monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    assert re.fullmatch(rf"{name} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", run_name(None))
    assert run_name("given") == "given"


def test_git_commit_marks_changed_tracked_files(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "notes.txt").write_text("untracked")
    assert git_commit(repository) == commit
    (repository / "train.py").write_text("changed")
    assert git_commit(repository) == commit + "+"
    assert git_commit(repository.parent) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "5"}, (4, 5)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, (0, 1)),
    ],
)
def test_rank_and_world_size_come_from_the_launcher(environ, expected) -> None:
    assert job_rank(environ) == expected
