"""Identity of a training process: run, rank, host, versions, devices, commit, command line. Read once, mostly off the
training thread."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from vramscope import __version__
from vramscope.process import cluster
from vramscope.process.redaction import Secrets
from vramscope.protocol import messages, series

GIT_TIMEOUT_S = 2.0
KERNELS: Final = ("ipykernel_launcher", "colab_kernel_launcher")
"""Scripts that run the cells of a notebook."""
RAY_WORKER: Final = "default_worker"
"""Script of the processes in which Ray runs a program's functions."""
NOTEBOOK: Final = "JPY_SESSION_NAME"
"""Environment variable in which Jupyter's server passes the notebook's path to a kernel."""

LOCAL_SIZES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Environment variables with the number of ranks on this host: of torchrun, Open MPI, and MPICH."""


class JobRank(NamedTuple):
    """Rank of this process, and number of ranks in its job."""

    rank: int
    world_size: int


def job_rank(environ: Mapping[str, str] = os.environ) -> JobRank:
    """Return rank and world size from torch.distributed if initialized, else from torchrun, Slurm or MPI; else 0 of 1."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return JobRank(distributed.get_rank(), distributed.get_world_size())
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        number, of = environ.get(rank, ""), environ.get(size, "")
        if number.isdigit() and of.isdigit() and int(number) < int(of):
            return JobRank(int(number), int(of))
    return JobRank(0, 1)


_MIG: Final = re.compile(r"MIG-[0-9a-fA-F-]{36}|MIG-GPU-[0-9a-fA-F-]{36}/\d+/\d+")
"""Full names of slices, of new and of older drivers. NVML knows no shortened ones."""


def run_id(chosen: str | None, job: JobRank, environ: Mapping[str, str] = os.environ) -> str:
    """Return the run id that all ranks of one job share: the chosen one, or one derived from what only this job has in common.

    With one rank it is random. With several it is derived from the launcher's job id, or from the launcher's process
    (pid and start time, the same for all ranks of a host). On several hosts without a job id, the rendezvous address is used.
    """
    if chosen:
        return chosen
    if job.world_size == 1:
        return random_id()
    job_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if job_id in ("", "none"):  # "none" is torchrun's default, the same for every job
        job_id = environ.get("SLURM_JOB_ID", "")
    if job_id:
        job_id += environ.get("SLURM_STEP_ID", "")
    elif "LOCAL_WORLD_SIZE" not in environ and environ.get("PMIX_NAMESPACE"):
        job_id = environ["PMIX_NAMESPACE"]  # a script around each rank would be a parent of its own
    elif str(job.world_size) in [environ.get(name, "") for name in LOCAL_SIZES]:
        parent = os.getppid()
        job_id = f"{socket.gethostname()} {parent} {start_ticks(parent)}"
    common = " ".join((job_id, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""), str(job.world_size)))
    return hashlib.sha256(common.encode()).hexdigest()[:16]


def random_id() -> str:
    """Return a random id, for a session or for a run with one process."""
    return secrets.token_hex(8)


def start_ticks(pid: int) -> str:
    """Return the start time of a process in kernel ticks, "" if unknown. With the pid it identifies a process uniquely."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def run_name(chosen: str | None) -> str:
    """Return the chosen name, or the name of the script or notebook followed by the local time in seconds."""
    if chosen:
        return chosen
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    if script in KERNELS:
        script = Path(os.environ.get(NOTEBOOK, "")).stem or "notebook"
    if script == RAY_WORKER and "ray" in sys.modules:
        script = "ray"
    return f"{script or 'python'} {time.strftime('%Y-%m-%d %H:%M:%S')}"


class Commit:
    """Commit of the script's repository; known once it was looked up."""

    def __init__(self) -> None:
        self.text: str | None = None
        self._is_known = False

    def look_up(self) -> None:
        """Read it once, on the sender's thread: git takes about 10 ms."""
        if not self._is_known:
            self._is_known = True
            script = Path(sys.argv[0]).parent if sys.argv and sys.argv[0] else Path()
            self.text = git_commit(script if script.is_dir() else Path())


def git_commit(directory: Path) -> str | None:
    """Return the commit checked out in ``directory``, with ``+`` if tracked files were changed; None outside a repository.

    Runs git twice (about 10 ms), so it must not run on the training thread.
    """

    # By its path: to search for it, subprocess changes the warning filters, and Python forgets which warnings were
    # shown.
    program = shutil.which("git")
    if program is None:
        return None

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                [program, "-C", str(directory), *words],
                capture_output=True,
                text=True,
                timeout=GIT_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def devices(indices: tuple[int, ...]) -> list[messages.Device]:
    """Describe the watched devices. They are CUDA's if CUDA is initialized."""
    found = []
    for index in indices:
        if index == series.CPU:
            found.append(messages.Device(index=series.CPU, name=f"CPU ({platform.machine()})"))
            continue
        import torch

        if not torch.cuda.is_initialized():
            found.append(_other_device(index))
            continue
        properties = torch.cuda.get_device_properties(index)
        found.append(
            messages.Device(
                index=index, name=properties.name, uuid=uuid_of(properties), total_bytes=properties.total_memory
            )
        )
    return found


def _other_device(index: int) -> messages.Device:
    """Describe a device of an accelerator other than CUDA."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    kind = "cpu" if accelerator is None else accelerator.type
    if kind == "mps":
        total_bytes = int(torch.mps.recommended_max_memory())
        return messages.Device(index=index, name=f"Apple GPU (MPS, {platform.machine()})", total_bytes=total_bytes)
    properties = getattr(getattr(torch, kind, None), "get_device_properties", lambda index: None)(index)
    name = getattr(properties, "name", None)
    return messages.Device(
        index=index,
        name=f"{name} ({kind.upper()})" if name else kind.upper(),
        total_bytes=getattr(properties, "total_memory", None),
    )


def uuid_of(properties: Any, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a device's UUID as NVML spells it. A slice of a card (MIG) has one of its own, never the card's.

    A process uses at most one slice. ``CUDA_VISIBLE_DEVICES`` names it, if anything does.
    """
    uuid = getattr(properties, "uuid", None)
    if " MIG " not in f"{properties.name} ":
        return None if uuid is None else f"GPU-{uuid}"
    chosen = environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if _MIG.fullmatch(chosen):
        return chosen
    return None if uuid is None else f"MIG-{uuid}"


def attached(
    *,
    project: str,
    name: str,
    tags: tuple[str, ...],
    config: dict[str, messages.Scalar],
    resumes: bool,
    job: JobRank,
    framework: str,
    device_indices: tuple[int, ...],
    start_ns: int,
    driver: str | None,
    commit: str | None,
    allocator_settings: str,
    host_total_bytes: int | None,
    secrets: Secrets,
) -> messages.Attached:
    """Build the message that opens a session."""
    import torch

    return messages.Attached(
        project=secrets.hide(project),
        name=secrets.hide(name)[:200],
        tags=[secrets.hide(tag) for tag in tags],
        config=config,
        resumes=resumes,
        rank=job.rank,
        world_size=job.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        start_ns=start_ns,
        framework=framework,
        devices=devices(device_indices),
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        driver=driver,
        allocator_settings=allocator_settings,
        git_commit=commit,
        command=secrets.command_line(sys.argv),
        agent_version=__version__,
        host_total_bytes=host_total_bytes,
        jobs=[_redacted(job, secrets) for job in cluster.jobs()],
    )


def _redacted(job: messages.Job, secrets: Secrets) -> messages.Job:
    texts = {name: text for name, text in msgspec.structs.asdict(job).items() if isinstance(text, str)}
    limits = {"nodes": cluster.LONGEST_LIST}
    hidden = {name: secrets.hide(text)[: limits.get(name, messages.MAX_NAME)] for name, text in texts.items()}
    return msgspec.structs.replace(job, **hidden | {"manager": job.manager})
