"""Who is training: run, rank, host, versions, devices, commit, command line. Read once, mostly off the training thread."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramscope import __version__
from vramscope.memory.host import Host
from vramscope.process.redaction import Secrets
from vramscope.protocol import messages, series
from vramscope.recording.settings_in_force import VARIABLES, words_in_force

GIT_TIMEOUT_S = 2.0
KERNELS: Final = ("ipykernel_launcher", "colab_kernel_launcher")
"""scripts that run a notebook's cells"""
NOTEBOOK: Final = "JPY_SESSION_NAME"
"""the variable in which Jupyter's server tells a kernel the notebook's path"""


class Place(NamedTuple):
    """Where this process stands in its job."""

    rank: int
    world_size: int


def place(environ: Mapping[str, str] = os.environ) -> Place:
    """Rank and world size: of torch.distributed where it runs, else as torchrun, Slurm or MPI say; else 0 of 1."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Place(distributed.get_rank(), distributed.get_world_size())
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        number, of = environ.get(rank, ""), environ.get(size, "")
        if number.isdigit() and of.isdigit() and int(number) < int(of):
            return Place(int(number), int(of))
    return Place(0, 1)


def run_id(given: str | None, where: Place, environ: Mapping[str, str] = os.environ) -> str:
    """The id that all ranks of one job agree on: given, or made from what only this job has in common.

    For one rank: random. For many: from the launcher's job id, or from the launcher's own process (its pid and start
    time, the same for all ranks of a host), or, over several hosts without a job id, from the rendezvous address.
    """
    if given:
        return given
    if where.world_size == 1:
        return fresh_id()
    job = environ.get("TORCHELASTIC_RUN_ID", "")
    if job in ("", "none"):  # "none" is torchrun's default, the same for every job
        job = environ.get("SLURM_JOB_ID", "")
    if job:
        job += environ.get("SLURM_STEP_ID", "")
    elif environ.get("LOCAL_WORLD_SIZE", "") == str(where.world_size):
        parent = os.getppid()
        job = f"{socket.gethostname()} {parent} {start_ticks(parent)}"
    common = " ".join((job, environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", ""), str(where.world_size)))
    return hashlib.sha256(common.encode()).hexdigest()[:16]


def fresh_id() -> str:
    """A random id: of a session, or of a run that nobody shares."""
    return secrets.token_hex(8)


def start_ticks(pid: int) -> str:
    """When a process started, in the kernel's ticks: with the pid it names the process for good. "" where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def run_name(given: str | None) -> str:
    """Given, or the script's name (in a notebook its own, where Jupyter tells it) and the local time to the second."""
    if given:
        return given
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    if script in KERNELS:
        script = Path(os.environ.get(NOTEBOOK, "")).stem or "notebook"
    return f"{script or 'python'} {time.strftime('%Y-%m-%d %H:%M:%S')}"


def git_commit(directory: Path) -> str | None:
    """The commit that is checked out there, with ``+`` where tracked files were changed; None outside a repository.

    Runs git twice (some 10 ms): not for the training thread.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *words],
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
    """The watched devices. CUDA must be initialised for those that are not the CPU."""
    found = []
    for index in indices:
        if index == series.CPU:
            found.append(messages.Device(index=series.CPU, name=f"CPU ({platform.machine()})"))
            continue
        import torch

        properties = torch.cuda.get_device_properties(index)
        found.append(
            messages.Device(
                index=index, name=properties.name, uuid=uuid_of(properties), total_bytes=properties.total_memory
            )
        )
    return found


def uuid_of(properties: Any) -> str | None:
    """The UUID in NVML's spelling."""
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def allocator_settings() -> str:
    """The allocator settings in force, those that were given last first; "" for the defaults."""
    text, told = _given(), _told()
    if told:
        _in_force.clear()
        _in_force[text] = words_in_force(told, text)
    return _in_force.get(text, text)[:4096]


_in_force: Final[dict[str, str]] = {}
"""what the allocator told when the newest text had been given: it tells nothing while a history is recorded"""
_NOBODYS_POOL: Final = (-1, -1)


def _given() -> str:
    import torch

    settings = getattr(torch._C, "_accelerator_getAllocatorSettings", None)  # torch 2.13 and later
    text = settings() if settings is not None else None
    if isinstance(text, str):
        return text
    # in PyTorch's own order
    return next((os.environ[name] for name in VARIABLES if name in os.environ), "")


def _told() -> dict[str, Any]:
    """A snapshot's ``allocator_settings``; {} where that would take long, or make a CUDA context. Some 20 µs."""
    import torch

    if not hasattr(torch._C, "_accelerator_getAllocatorSettings") or not torch.cuda.is_initialized():
        return {}
    if torch.cuda.get_allocator_backend() != "native" or torch._C._cuda_isHistoryEnabled():
        return {}
    # (of a pool that there is none of: no segments are told)
    told = torch._C._cuda_memorySnapshot(_NOBODYS_POOL).get("allocator_settings")
    return told if isinstance(told, dict) else {}


def attached(
    *,
    project: str,
    name: str,
    tags: tuple[str, ...],
    config: dict[str, messages.Scalar],
    resumes: bool,
    where: Place,
    framework: str,
    watched: tuple[int, ...],
    start_ns: int,
    driver: str | None,
    commit: str | None,
    hidden: Secrets,
) -> messages.Attached:
    """The message that opens a session."""
    import torch

    return messages.Attached(
        project=hidden.hide(project),
        name=hidden.hide(name)[:200],
        tags=[hidden.hide(tag) for tag in tags],
        config=config,
        resumes=resumes,
        rank=where.rank,
        world_size=where.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        start_ns=start_ns,
        framework=framework,
        devices=devices(watched),
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        driver=driver,
        allocator_settings=allocator_settings(),
        git_commit=commit,
        command=hidden.command_line(sys.argv),
        agent_version=__version__,
        host_total_bytes=Host().total_bytes(),
    )
