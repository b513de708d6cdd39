"""Where the headers of CUDA 13 are: on this machine, or in two packages of the index (8 MB)."""

from __future__ import annotations

import glob
import re
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = ["nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*"]
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "cuda-headers"


def find(choice: str) -> Path:
    """The include folder: ``choice`` itself, unless that is empty (the machine's, else the index's) or ``pip``."""
    if choice and choice != "pip":
        if not has_version_13(Path(choice)):
            raise SystemExit(f"{choice} holds no headers of CUDA 13")
        return Path(choice)
    machine = [Path(p) for p in sorted(glob.glob("/usr/local/cuda*/include"), reverse=True)] if not choice else []
    return next((p for p in machine if has_version_13(p)), None) or from_index()


def has_version_13(include: Path) -> bool:
    header = include / "cuda_runtime_api.h"
    return header.exists() and bool(re.search(r"define CUDART_VERSION +13", header.read_text(errors="replace")))


def from_index() -> Path:
    include = CACHE / "nvidia" / "cu13" / "include"
    if not has_version_13(include):
        CACHE.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", CACHE, *PACKAGES], check=True)
        for wheel in CACHE.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(CACHE)
    return include
