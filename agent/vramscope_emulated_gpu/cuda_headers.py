"""Where the headers of CUDA are: on this machine, or in two packages of the index (8 MB for CUDA 13, 41 MB for CUDA 12)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vramscope_emulated_gpu.build import BuildError

PACKAGES: Final[Mapping[int, tuple[str, str]]] = {
    12: ("nvidia-cuda-runtime-cu12==12.8.*", "nvidia-cuda-nvcc-cu12==12.8.*"),
    13: ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*"),
}
INCLUDE: Final[Mapping[int, str]] = {12: "nvidia/cuda_runtime/include", 13: "nvidia/cu13/include"}
"""Folder of the headers in ``site-packages`` and in the packages."""


def find(choice: str, site: Path, major: int) -> Path:
    """Folder with the headers. Raises BuildError if they are not here and cannot be fetched.

    choice   A folder; ``pip``: from the index; empty: those of this machine or of ``site``, else from the index.
    site     Folder ``site-packages``, where NVIDIA's own packages put headers too.
    major    Version of CUDA.
    """
    if choice and choice != "pip":
        if not has_version(Path(choice), major):
            raise BuildError(f"{choice} holds no headers of CUDA {major}")
        return Path(choice)
    machine = sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    here = [] if choice else [*machine, site / INCLUDE[major]]
    return next((path for path in here if has_version(path, major)), None) or from_index(major)


def has_version(include: Path, major: int) -> bool:
    """True if the folder holds all headers of that version. Another one has other structures: what it compiles would crash."""
    header = include / "cuda_runtime_api.h"
    return (
        header.exists()
        and (include / "crt" / "host_defines.h").exists()
        and bool(re.search(rf"define CUDART_VERSION +{major}\d\d\d", header.read_text(errors="replace")))
    )


def cache_folder() -> Path:
    """Folder of vramscope in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramscope"


def from_index(major: int) -> Path:
    """Fetch the headers, or take those that were fetched earlier."""
    cache = cache_folder() / f"cuda-{major}-headers"
    include = cache / INCLUDE[major]
    if not has_version(include, major):
        cache.mkdir(parents=True, exist_ok=True)
        command = [*_installer(), "install", "--quiet", "--no-deps", "--target", str(cache), *PACKAGES[major]]
        if subprocess.run(command).returncode:
            names = " and ".join(PACKAGES[major])
            raise BuildError(f"the headers of CUDA {major} are not here, and {names} cannot be fetched")
        if major == 12:  # two packages, which the compiler expects in one folder
            shutil.copytree(cache / "nvidia/cuda_nvcc/include/crt", include / "crt", dirs_exist_ok=True)
            shutil.rmtree(cache / "nvidia/cuda_nvcc")
    return include


def _installer() -> list[str]:
    """The beginning of a command that installs packages: pip's, or uv's where an environment has no pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip"]
    raise BuildError("the headers of CUDA are not here, and there is neither pip nor uv to fetch them")
