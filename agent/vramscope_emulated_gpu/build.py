"""Build the libraries of the emulated GPU for one installed PyTorch.

Needs pyelftools and gcc, on x86-64 Linux. Reads which symbols torch asks of the CUDA libraries, compiles the hand-written
ones in ``src`` and generates the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from vramscope_emulated_gpu.stubs import stub_source
from vramscope_emulated_gpu.symbols import Wanted, defined_symbols, wanted_symbols

MAJORS: Final = (12, 13)
"""Versions of CUDA for which the sources compile."""
SOURCES: Final = Path(__file__).resolve().parent / "src"


class BuildError(Exception):
    """The libraries cannot be built here. The text says why."""


# library: (what it is made of, what a generated stub returns: 0 where PyTorch reads no result, else "not supported")
LIBRARIES: dict[str, tuple[list[str], int]] = {
    "cuda": (
        [
            "settings.c",
            "model.c",
            "ledger.c",
            "ranges.c",
            "memory.c",
            "copies.c",
            "reads.c",
            "driver.c",
            "virtual_memory.c",
        ],
        801,
    ),
    "cudart": (["runtime_devices.c", "runtime_memory.c", "runtime_streams.c", "runtime_kernels.c"], 801),
    "nvidia-ml": (["nvml.c"], 3),
    "cublas": (["cublas.c"], 0),
    "cublasLt": (["cublas_lt.c"], 0),
    "cudnn": (["cudnn.c", "cudnn_rnn.c", "cudnn_workspace.c"], 0),
    "cufft": (["cufft.c"], 5),
    "curand": ([], 1),
    "cusparse": (["cusparse.c"], 10),
    "cusparseLt": ([], 10),
    "cusolver": (["cusolver.c"], 0),
    "nccl": (["nccl.c"], 0),
    "cupti": (["cupti.c"], 0),
    "nvrtc": (["nvrtc.c"], 0),
    "nvshmem_host": ([], 0),
    "cufile": ([], 5001),
}

# Unused parameters are the rule here: a function that does nothing still has the prototype that its caller knows.
COMPILE = ["gcc", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]


def compiler_flags_for(torch_package: Path, major: int) -> list[str]:
    """Compiler flags with the version of CUDA, and those of cuDNN and NCCL that the wheel pins: torch compares them."""
    metadata = next(torch_package.parent.glob("torch-*.dist-info/METADATA")).read_text()
    flags = [f"-DCUDA_MAJOR={major}"]
    for macro, package in (("CUDNN_VERSION", "nvidia-cudnn"), ("NCCL_VERSION", "nvidia-nccl")):
        if found := re.search(rf"{package}-cu{major}==(\d+)\.(\d+)\.(\d+)", metadata):
            numbers = [int(number) for number in found.groups()]
            flags.append(f"-D{macro}={numbers[0] * 10000 + numbers[1] * 100 + numbers[2]}")
    return flags


def build_library(name: str, wanted: Wanted, compiler_flags: list[str], out: Path) -> Path:
    """Compile and link one library into ``out``; all but libcuda link against that one, which holds the books."""
    sources, stub_status = LIBRARIES[name]
    work = out / name
    work.mkdir()

    objects = []
    for source in sources:
        objects.append(work / f"{source}.o")
        run(*COMPILE, *compiler_flags, "-c", SOURCES / source, "-o", objects[-1])
    written = set().union(*(defined_symbols(o) for o in objects))

    stubs = work / "stubs.c"
    stubs.write_text("".join(stub_source(s, stub_status) for s in sorted(wanted.symbols - written)))
    objects.append(work / "stubs.o")
    run("gcc", "-O1", "-fPIC", "-fno-builtin", "-w", "-c", stubs, "-o", objects[-1])

    library = out / wanted.soname
    link = ["gcc", "-shared", f"-Wl,-soname,{wanted.soname}", "-Wl,--no-undefined", *objects, "-o", library]
    if wanted.version:
        version_script = work / "version"
        version_script.write_text(f"{wanted.version} {{ global: *; }};\n")
        link.append(f"-Wl,--version-script={version_script}")
    if sources and name != "cuda":
        link += [out / "libcuda.so.1", "-Wl,-rpath,$ORIGIN"]
    run(*link, "-ldl", "-lpthread")
    return library


def run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip() or done.returncode}")


def cuda_major(torch_package: Path) -> int | None:
    """Return the major version of CUDA that an installed torch is built for; None for another build."""
    version = torch_package / "version.py"
    found = re.search(r"^cuda\b.*= '(\d+)", version.read_text(), re.MULTILINE) if version.exists() else None
    return None if found is None else int(found[1])


def build(torch_package: Path, include: Path, target: Path) -> list[Path]:
    """Build the libraries into ``target``. Takes 5 to 15 s. Raises BuildError.

    torch_package   Folder ``torch`` of an installed build for CUDA 12 or 13.
    include         Folder with the headers of that CUDA (``cuda_headers.find``).
    """
    major = cuda_major(torch_package)
    if major not in MAJORS:
        raise BuildError(f"{torch_package} is no PyTorch for CUDA 12 or 13")
    wanted = wanted_symbols(torch_package, set(LIBRARIES))
    flags = [f"-I{include}", *compiler_flags_for(torch_package, major)]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        libraries = [build_library("cuda", wanted["cuda"], flags, out)]
        others = [name for name in wanted if name != "cuda"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            libraries += pool.map(lambda name: build_library(name, wanted[name], flags, out), others)
        for library in libraries:  # by a rename, so that a process that runs keeps the library that it has
            shutil.copy(library, target / f".{library.name}.new")
            (target / f".{library.name}.new").replace(target / library.name)
    return [target / library.name for library in libraries]
