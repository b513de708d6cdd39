"""Put an emulated GPU under the PyTorch of the Python that runs this file.

    python tests/emulated_gpu/build.py [--cuda-include DIR|pip]

Needs an installed CUDA 13 build of torch (its nvidia-* packages are not wanted), pyelftools and gcc, on x86-64 Linux.
Reads which symbols torch asks of the CUDA libraries, compiles the hand-written ones in ``src``, generates the rest, and
puts the libraries where torch's own RUNPATH looks for them: ``site-packages/nvidia/cu13/lib``. More in the README.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cuda_headers
import registration
from stubs import stub_source
from symbols import Wanted, defined_symbols, wanted_symbols

SOURCES = Path(__file__).resolve().parent / "src"

# library: (what it is made of, what a generated stub returns: 0 where PyTorch reads no result, else "not supported")
LIBRARIES: dict[str, tuple[list[str], int]] = {
    "cuda": (
        ["settings.c", "model.c", "ledger.c", "ranges.c", "memory.c", "copies.c", "driver.c", "virtual_memory.c"],
        801,
    ),
    "cudart": (["runtime_devices.c", "runtime_memory.c", "runtime_streams.c", "runtime_kernels.c"], 801),
    "nvidia-ml": (["nvml.c"], 3),
    "cublas": (["cublas.c"], 0),
    "cublasLt": (["cublas_lt.c"], 0),
    "cudnn": (["cudnn.c"], 0),
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


def pinned_versions(torch_package: Path) -> list[str]:
    """Compiler flags with the versions of cuDNN and NCCL that the wheel pins: torch compares them at run time."""
    metadata = next(torch_package.parent.glob("torch-*.dist-info/METADATA")).read_text()
    flags = []
    for macro, package in (("CUDNN_VERSION", "nvidia-cudnn-cu13"), ("NCCL_VERSION", "nvidia-nccl-cu13")):
        if found := re.search(rf"{package}==(\d+)\.(\d+)\.(\d+)", metadata):
            major, minor, patch = map(int, found.groups())
            flags.append(f"-D{macro}={major * 10000 + minor * 100 + patch}")
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
    if done.returncode or done.stderr:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cuda-include",
        default=os.environ.get("CUDA_INCLUDE", ""),
        help="folder of CUDA 13's headers; 'pip': two packages of the index; default: /usr/local/cuda*, else pip",
    )
    arguments = parser.parse_args()

    site = Path(sysconfig.get_path("purelib"))
    torch_package = site / "torch"
    version = torch_package / "version.py"
    if not version.exists() or not re.search(r"cuda\b.*= '13", version.read_text()):
        raise SystemExit(f"no torch for CUDA 13 in {site}: install it first, with --no-deps")

    include = cuda_headers.find(arguments.cuda_include)
    wanted = wanted_symbols(torch_package, set(LIBRARIES))
    flags = [f"-I{include}", *pinned_versions(torch_package)]
    target = site / "nvidia" / "cu13" / "lib"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        libraries = [build_library("cuda", wanted["cuda"], flags, out)]
        others = [name for name in wanted if name != "cuda"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            libraries += pool.map(lambda name: build_library(name, wanted[name], flags, out), others)
        for library in libraries:  # by a rename, so that a process that runs keeps the library that it has
            shutil.copy(library, target / f".{library.name}.new")
            os.replace(target / f".{library.name}.new", target / library.name)
    registration.register(site, [target / library.name for library in libraries])


if __name__ == "__main__":
    main()
