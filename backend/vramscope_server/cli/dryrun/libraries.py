"""The libraries of the emulated GPU for the PyTorch of the command, built once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.progress import Bar

FIND_TORCH: Final = """
import importlib.util, json
found = importlib.util.find_spec("torch")
print(json.dumps(found.submodule_search_locations[0] if found else None))
"""
ASSIGNED: Final = re.compile(r"^(\w+)[^=\n]*= '([^']*)'", re.MULTILINE)
"""Names and texts in PyTorch's version.py."""
DONE: Final = "complete"
MAJORS: Final = (12, 13)
"""Versions of CUDA whose libraries can be emulated."""
NEWER_THAN: Final = 75
"""Compute capability from which on every PyTorch for these versions has kernels."""


@dataclass(frozen=True)
class CudaTorch:
    """A PyTorch that is built for CUDA."""

    python: str
    package: Path
    version: str
    cuda_major: int


def interpreter_of(command: Sequence[str]) -> str:
    """Return the Python that a command runs: itself, that of a script such as torchrun, else this one."""
    program = shutil.which(command[0])
    if program is None:
        return sys.executable
    if Path(program).name.startswith("python"):
        return program
    with Path(program).open("rb") as file:
        first = file.readline(500)
    named = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    return named[0] if named and "python" in Path(named[0]).name else sys.executable


def torch_of(python: str) -> CudaTorch:
    """Find the PyTorch of an interpreter without importing it. Raises client.Failure if it cannot be emulated."""
    done = subprocess.run([python, "-c", FIND_TORCH], capture_output=True, text=True)
    folder = json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else None
    if folder is None:
        raise Failure(f"a dry run needs PyTorch, and {python} has none: pip install torch", BAD_ARGUMENTS)
    facts = dict(ASSIGNED.findall((Path(folder) / "version.py").read_text()))
    version, cuda = facts.get("__version__", "unknown"), facts.get("cuda")
    if not cuda:
        raise Failure(
            f"a dry run needs a CUDA build of PyTorch; {version} is built for another device. "
            "It needs no GPU: pip install torch --index-url https://download.pytorch.org/whl/cu130",
            BAD_ARGUMENTS,
        )
    major = int(cuda.partition(".")[0])
    if major not in MAJORS:
        raise Failure(f"a dry run needs PyTorch for CUDA 12 or 13; {version} is for CUDA {cuda}", BAD_ARGUMENTS)
    return CudaTorch(python, Path(folder), version, major)


def runs_on(torch: CudaTorch, capability: int) -> bool:
    """Whether this PyTorch has kernels for cards of a capability. Imports it, for old cards only."""
    if capability >= NEWER_THAN:
        return True
    code = "import torch; print(torch.cuda.is_available(), *torch._C._cuda_getArchFlags().split())"
    done = subprocess.run([torch.python, "-c", code], capture_output=True, text=True)
    return f"sm_{capability}" in done.stdout.split()


def libraries_for(torch: CudaTorch) -> list[Path]:
    """Return the libraries, built now if this PyTorch has none yet (about 10 s). Raises client.Failure."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Failure("a dry run needs x86-64 Linux", BAD_ARGUMENTS)
    if importlib.util.find_spec("elftools") is None:
        raise Failure("a dry run needs pyelftools: pip install 'vramscope[dryrun]'", BAD_ARGUMENTS)
    from vramscope_emulated_gpu import build, cuda_headers

    sources = sorted(path for path in build.SOURCES.parent.rglob("*") if path.suffix in {".py", ".c", ".h"})
    version = (torch.package / "version.py").read_text()
    key = hashlib.sha256("\0".join([version, *(path.read_text() for path in sources)]).encode()).hexdigest()[:16]
    folder = cuda_headers.cache_folder() / "emulated-gpu" / f"{torch.version.partition('+')[0]}-{key}"
    if not (folder / DONE).exists():
        if not shutil.which("gcc"):
            raise Failure("a dry run builds its emulated GPU once, and needs gcc for it", BAD_ARGUMENTS)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Bar("building the emulated GPU"), tempfile.TemporaryDirectory(dir=folder.parent) as new:
                build.build(
                    torch.package, cuda_headers.find("", torch.package.parent, torch.cuda_major), Path(new) / "lib"
                )
                (Path(new) / "lib" / DONE).touch()
                with contextlib.suppress(OSError):  # another process was first
                    (Path(new) / "lib").replace(folder)
        except build.BuildError as fault:
            raise Failure(f"the emulated GPU cannot be built: {fault}", BAD_ARGUMENTS) from fault
    return sorted(folder.glob("lib*.so*"))
