"""Tell Python and its installers that the emulated libraries are there.

torch requires ``nvidia-*`` and ``cuda-*`` packages. If an installer found them missing, then the next
``pip install lightning`` would fetch the real ones, gigabytes of them, over the emulated libraries. So each gets the
metadata of an installed package: nothing but its name and the version that torch asks for. ``pip list`` shows them,
``pip uninstall`` removes them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

DISTRIBUTION = "vramscope-emulated-gpu"
STARTUP_MODULE = "_emulated_gpu.py"
STARTUP = '''\
"""Loaded by emulated-gpu.pth whenever this Python starts."""

import ctypes
import os

_libraries = os.path.join(os.path.dirname(__file__), "nvidia", "cu13", "lib")
ctypes.CDLL(os.path.join(_libraries, "libnvidia-ml.so.1"))  # pynvml opens it by its plain name: then it is there
os.environ.setdefault("TRITON_LIBCUDA_PATH", _libraries)  # triton would ask ldconfig
'''


def register(site: Path, libraries: Iterable[Path]) -> None:
    """Write into ``site`` what starts the emulation, and the metadata of what it stands for; the old goes first."""
    for installer in site.glob("*.dist-info/INSTALLER"):
        if installer.read_text().strip() == DISTRIBUTION:
            shutil.rmtree(installer.parent)

    (site / STARTUP_MODULE).write_text(STARTUP)
    (site / "emulated-gpu.pth").write_text(f"import {STARTUP_MODULE.removesuffix('.py')}\n")
    files = [*libraries, site / STARTUP_MODULE, site / "emulated-gpu.pth"]
    write_distribution(site, DISTRIBUTION, "0", "An emulated GPU under PyTorch's CUDA build, for tests", [], files)

    for requirement in importlib.metadata.requires("torch") or ():
        if re.match(r"(nvidia|cuda)-", requirement):
            name, extras, version = read_requirement(requirement)
            write_distribution(site, name, version, f"Stood in for by {DISTRIBUTION}", extras, [])


def read_requirement(requirement: str) -> tuple[str, list[str], str]:
    """Name, extras and a version that satisfies: ``==1.2`` gives 1.2, ``<14,>=13.0.3`` gives 13.0.3."""
    head = requirement.split(";")[0]
    name = re.match(r"[\w.-]+", head)
    extras = re.search(r"\[(.*)\]", head)
    version = re.search(r"(?:==|>=|~=)\s*([\w.]+)", head)
    if not name or not version:
        raise SystemExit(f"torch's requirement {requirement!r} names no version")
    return name.group(), [e.strip() for e in extras.group(1).split(",")] if extras else [], version.group(1)


def write_distribution(
    site: Path, name: str, version: str, summary: str, extras: list[str], files: Iterable[Path]
) -> None:
    """The metadata folder of one installed package that owns ``files``."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]  # else pip warns of each extra that torch asks for
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    (folder / "INSTALLER").write_text(DISTRIBUTION + "\n")
    owned = [*files, folder / "METADATA", folder / "INSTALLER"]
    records = [record(site, path) for path in owned] + [f"{(folder / 'RECORD').relative_to(site)},,"]
    (folder / "RECORD").write_text("\n".join(records) + "\n")


def record(site: Path, path: Path) -> str:
    """A line of RECORD: by these, an uninstaller knows what to remove."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{os.path.relpath(path, site)},sha256={digest},{path.stat().st_size}"
