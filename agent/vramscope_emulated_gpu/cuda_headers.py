"""Where the headers of CUDA 13 are: on this machine, or in two packages of the index (8 MB)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from vramscope_emulated_gpu.build import BuildError

PACKAGES = ["nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*"]


def find(choice: str, site: Path) -> Path:
    """Folder with the headers. Raises BuildError if they are not here and cannot be fetched.

    choice   A folder; ``pip``: from the index; empty: those of this machine or of ``site``, else from the index.
    site     Folder ``site-packages``, where NVIDIA's own packages put headers too.
    """
    if choice and choice != "pip":
        if not has_version_13(Path(choice)):
            raise BuildError(f"{choice} holds no headers of CUDA 13")
        return Path(choice)
    machine = sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    here = [] if choice else [*machine, site / "nvidia" / "cu13" / "include"]
    return next((path for path in here if has_version_13(path)), None) or from_index()


def has_version_13(include: Path) -> bool:
    """True if the folder holds the headers of CUDA 13."""
    header = include / "cuda_runtime_api.h"
    return header.exists() and bool(re.search(r"define CUDART_VERSION +13", header.read_text(errors="replace")))


def cache_folder() -> Path:
    """Folder of vramscope in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramscope"


def from_index() -> Path:
    """Fetch the headers, or take those that were fetched earlier."""
    cache = cache_folder() / "cuda-headers"
    include = cache / "nvidia" / "cu13" / "include"
    if not has_version_13(include):
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        command = [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(cache), *PACKAGES]
        if subprocess.run(command).returncode:
            raise BuildError(f"the headers of CUDA 13 are not here, and pip cannot fetch {' and '.join(PACKAGES)}")
        for wheel in cache.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(cache)
    return include
