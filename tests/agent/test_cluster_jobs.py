"""Jobs of a cluster, from what Slurm, Kubernetes, Ray, torchrun and MPI tell their processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from training import Arrived, environment

from vramscope.process.cluster import jobs
from vramscope.process.identity import JobRank, run_id
from vramscope.protocol.messages import Job

GIB = 1 << 30
SLURM = {
    "SLURM_JOB_ID": "4249", "SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_NAME": "gpt2 sweep",
    "SLURM_STEP_ID": "0", "SLURM_JOB_PARTITION": "a100", "SLURMD_NODENAME": "node12", "SLURM_JOB_NODELIST": "node[12-15]",
    "SLURM_JOB_NUM_NODES": "4", "SLURM_RESTART_COUNT": "1", "SLURM_MEM_PER_NODE": "65536",
}  # fmt: skip


def test_slurm() -> None:
    assert jobs(SLURM) == [
        Job(manager="slurm", id="4249", name="gpt2 sweep", array="4242_7", step="0", partition="a100", node="node12",
            nodes="node[12-15]", node_count=4, restarts=1, memory_limit_bytes=64 * GIB)
    ]  # fmt: skip


def test_what_slurm_does_not_say_is_unknown() -> None:
    assert jobs({"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "0"}) == [Job(manager="slurm", id="7")]


def test_kubernetes_by_variables_and_by_files(tmp_path: Path) -> None:
    account = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount"
    info = tmp_path / "etc/podinfo"
    for folder in (account, info):
        folder.mkdir(parents=True)
    (account / "namespace").write_text("research")
    inside = {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "HOSTNAME": "train-0-x7k2p"}
    assert jobs(inside, tmp_path) == [Job(manager="kubernetes", namespace="research")], "a host's name is not a pod's"
    (info / "labels").write_text('app="gpt2"\nbatch.kubernetes.io/job-name="train"\n')
    (info / "mem_limit").write_text("8589934592\n")
    named = inside | {"POD_NAME": "train-0-x7k2p", "MY_NODE_NAME": "gpu-3"}
    assert jobs(named, tmp_path) == [
        Job(manager="kubernetes", id="train", pod="train-0-x7k2p", namespace="research", node="gpu-3",
            memory_limit_bytes=8 * GIB)
    ]  # fmt: skip
    (tmp_path / "outside").mkdir()
    assert jobs({"POD_NAME": "p"}, tmp_path) == [], "no pod"


def test_torchrun_inside_of_slurm() -> None:
    started = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"}
    outer, inner = jobs({"SLURM_JOB_ID": "7"} | started)
    assert (outer.manager, outer.id) == ("slurm", "7")
    assert inner == Job(manager="torchrun", node_count=2, restarts=3), "every torchrun has the id none"
    assert jobs({"TORCHELASTIC_RUN_ID": "mine"}) == [Job(manager="torchrun", id="mine")]


def test_mpi() -> None:
    started = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "prterun-node1-99@1"}
    assert jobs(started) == [Job(manager="mpi", id="prterun-node1-99@1")]
    assert [job.manager for job in jobs({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PMI_SIZE": "2"})] == ["slurm"]


def test_two_jobs_of_mpi_are_two_runs() -> None:
    ranks = JobRank(0, 2)
    first, again, second = (
        run_id(None, ranks, {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": name}) for name in ("a@1", "a@1", "b@1")
    )
    assert first == again != second
    on_one_host = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}
    in_scripts = on_one_host | {"PMIX_NAMESPACE": "a@1"}  # each rank has a shell of its own as parent
    assert run_id(None, ranks, in_scripts) == first
    assert run_id(None, ranks, on_one_host) == run_id(None, ranks, on_one_host) != first


def test_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_job_id=lambda: "02000000", get_node_id=lambda: "ab12")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    assert jobs({"RAY_JOB_ID": "ffffffff"}) == [Job(manager="ray", id="02000000", node="ab12")]
    ray.is_initialized = lambda: False
    assert jobs({"RAY_JOB_ID": "ffffffff"}) == []


def test_odd_values_do_not_spoil_the_message() -> None:
    (job,) = jobs(
        {"SLURM_JOB_ID": "x" * 500, "SLURM_JOB_NAME": " ", "SLURM_JOB_NUM_NODES": "²", "SLURM_JOB_NODELIST": "n" * 9999}
    )
    assert (len(job.id or ""), job.name, job.node_count, len(job.nodes or "")) == (200, None, None, 4096)


PROGRAM = """
import torch
from torch import nn
from vramscope import agent
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
agent.attach(model)
for _ in range(3):
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
"""


def test_the_jobs_arrive_with_the_run(collector, spool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(collector, spool, **SLURM), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.dumps(job.array) for job in Arrived(collector).attached.jobs] == ['"4242_7"']
