"""Finds the jobs of this process: of Slurm, Kubernetes, Ray, torchrun and MPI, from environment variables, files and Ray's API."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vramscope.guard import guarded
from vramscope.protocol.messages import MAX_NAME, Job
from vramscope.protocol.series import MAX_VALUE

SERVICE_ACCOUNT: Final = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
POD_INFO: Final = "etc/podinfo"
"""Folder in which Kubernetes' documentation mounts the files of the downward API."""
JOB_LABELS: Final = (
    "batch.kubernetes.io/job-name",
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "job-name",
)
"""Labels that hold the name of a pod's job; the first that is set counts."""
MIB: Final = 1 << 20
LONGEST_LIST: Final = 4096
_LABEL: Final = re.compile(r'^([^=]+)="(.*)"$')


def jobs(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> list[Job]:
    """Return the jobs of this process, the outermost first. An unknown value is None.

    root   folder in which Kubernetes mounts files; a parameter for tests
    """
    found = (_slurm(environ), _kubernetes(environ, root), _ray(), _torchrun(environ), _mpi(environ))
    return [job for job in found if job is not None]


def jobs_of(environ: Mapping[str, str], root: Path) -> list[Job]:
    """Return the jobs of another process, from its environment and its root folder; those of Ray are unknown."""
    found = (_slurm(environ), _kubernetes(environ, root), _torchrun(environ), _mpi(environ))
    return [job for job in found if job is not None]


def _slurm(environ: Mapping[str, str]) -> Job | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    memory_mib = _whole(environ.get("SLURM_MEM_PER_NODE"))
    return Job(
        manager="slurm",
        id=_name(environ["SLURM_JOB_ID"]),
        name=_name(environ.get("SLURM_JOB_NAME")),
        array=_name(f"{array}_{task}") if array and task else None,
        step=_name(environ.get("SLURM_STEP_ID")),
        partition=_name(environ.get("SLURM_JOB_PARTITION")),
        node=_name(environ.get("SLURMD_NODENAME")),
        nodes=_text(environ.get("SLURM_JOB_NODELIST")),
        node_count=_whole(environ.get("SLURM_JOB_NUM_NODES")),
        restarts=_whole(environ.get("SLURM_RESTART_COUNT")),
        memory_limit_bytes=min(memory_mib * MIB, MAX_VALUE)
        if memory_mib
        else None,  # 0 stands for all memory of the node
    )


def _kubernetes(environ: Mapping[str, str], root: Path) -> Job | None:
    """A pod. The variables are those of docs/clusters.md; all but JOB_NAME may begin with ``MY_``."""
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None

    def value(name: str, file: str) -> str | None:
        return environ.get(name) or environ.get(f"MY_{name}") or _read(root / POD_INFO / file)

    # Jenkins sets JOB_NAME in all of its builds.
    job_name = None if "JENKINS_URL" in environ else environ.get("JOB_NAME")
    labels: dict[str, str] = {}
    for line in (_read(root / POD_INFO / "labels") or "").splitlines():
        if match := _LABEL.match(line):
            labels[match[1]] = match[2]
    return Job(
        manager="kubernetes",
        id=_name(job_name or next((labels[name] for name in JOB_LABELS if name in labels), None)),
        pod=_name(value("POD_NAME", "name")),
        namespace=_name(value("POD_NAMESPACE", "namespace") or _read(root / SERVICE_ACCOUNT)),
        node=_name(value("NODE_NAME", "node")),
        memory_limit_bytes=_whole(value("MEM_LIMIT", "mem_limit")) or None,
    )


@guarded("the identity of the Ray job")
def _ray() -> Job | None:
    """The job of an initialized Ray. Its environment variable is not used, because workers start before they have a job."""
    ray = sys.modules.get("ray")
    is_initialized = getattr(ray, "is_initialized", None)  # the program's own module may have this name
    if ray is None or is_initialized is None or not is_initialized():
        return None
    context = ray.get_runtime_context()
    return Job(manager="ray", id=_name(context.get_job_id()), node=_name(context.get_node_id()))


def _torchrun(environ: Mapping[str, str]) -> Job | None:
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    run_id = environ["TORCHELASTIC_RUN_ID"]
    return Job(
        manager="torchrun",
        id=None if run_id == "none" else _name(run_id),  # torchrun's default, the same for every job
        node_count=_whole(environ.get("GROUP_WORLD_SIZE")),
        restarts=_whole(environ.get("TORCHELASTIC_RESTART_COUNT")),
    )


def _mpi(environ: Mapping[str, str]) -> Job | None:
    """A job that mpirun started; one that srun started is Slurm's."""
    if "SLURM_STEP_ID" in environ or not {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} & environ.keys():
        return None
    return Job(manager="mpi", id=_name(environ.get("PMIX_NAMESPACE")))


def _name(text: str | None) -> str | None:
    return text.strip()[:MAX_NAME] or None if text else None


def _text(text: str | None) -> str | None:
    return text.strip()[:LONGEST_LIST] or None if text else None


def _whole(text: str | None) -> int | None:
    text = (text or "").strip()
    return min(int(text), MAX_VALUE) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
