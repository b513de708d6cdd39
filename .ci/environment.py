"""Make the project's ``.venv`` from nothing, and skip what is already done.

    [TORCH=2.13.0] python3 .ci/environment.py demo|test [--gpu auto|machine|emulated|none]

Needs Python 3.10 or newer and, where no GPU is found, gcc on x86-64 Linux: then an emulated GPU is built under
PyTorch's own CUDA build. ``demo`` installs vramscope and what serves it, ``test`` also what the tests need.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / ".vramscope"
EMULATED_GPU = ROOT / "agent" / "vramscope_emulated_gpu"

TORCH = os.environ.get("TORCH") or "2.15.0"  # for the emulated GPU; a machine with a GPU takes any that it has

HEADLESS = "chromium-headless-shell"  # Debian's Chromium with no windows: the tests take a quarter less CPU with it

# What torch needs beside the CUDA libraries, which are emulated, and triton, which only torch.compile uses.
SMALL_REQUIREMENTS = """
import importlib.metadata, re
for requirement in importlib.metadata.requires("torch"):
    if not re.match(r"(nvidia|cuda)-|triton", requirement) and "extra ==" not in requirement:
        print(requirement)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("purpose", choices=["demo", "test"])
    parser.add_argument("--gpu", choices=["auto", "machine", "emulated", "none"], default=os.environ.get("GPU", "auto"))
    arguments = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 - this file runs before anything else could check
        raise SystemExit(f"vramscope needs Python 3.10 or newer; this is {platform.python_version()}: make PYTHON=...")

    kind = kind_of_torch(arguments.gpu)
    make_venv(system_site_packages=kind == "the system's")
    install_torch(kind)
    install_vramscope(kind, for_tests=arguments.purpose == "test")
    if arguments.purpose == "test":
        install_programs()


# ---- which torch ---------------------------------------------------------------------------------------------------


def kind_of_torch(gpu: str) -> str:
    """``the system's``, ``plain`` (from the index, for the machine's GPU), ``emulated`` or ``cpu``."""
    if gpu == "machine" or (gpu == "auto" and has_gpu()):
        return "the system's" if system_torch_sees_gpu() else "plain"
    could_emulate = platform.system() == "Linux" and platform.machine() == "x86_64"
    if gpu == "none" or (gpu == "auto" and not could_emulate):
        return "cpu"
    if not could_emulate:
        raise SystemExit("vramscope: the emulated GPU needs x86-64 Linux")
    if not shutil.which("gcc"):
        raise SystemExit(
            "vramscope: no GPU here, and the emulated one needs gcc; GPU=none goes without (gigabytes of torch)"
        )
    return "emulated"


def has_gpu() -> bool:
    """Whether a real driver finds a real device; the emulated one is not on the loader's path."""
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def system_torch_sees_gpu() -> bool:
    check = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0


# ---- the steps -----------------------------------------------------------------------------------------------------


def make_venv(system_site_packages: bool) -> None:
    if not works(PYTHON, "-c", "pass"):
        with step("a Python environment in .venv"):
            options = ["--system-site-packages"] if system_site_packages else []
            shutil.rmtree(VENV, ignore_errors=True)
            if not works(sys.executable, "-m", "venv", *options, VENV):
                shutil.rmtree(VENV, ignore_errors=True)
                raise SystemExit("python3 -m venv does not work here; on Debian: apt-get install python3-venv")
    if not works(VENV / "bin" / "uv", "--version"):
        with step("uv, which installs the rest"):
            run(PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "uv")


def install_torch(kind: str) -> None:
    if kind == "emulated":
        install_emulated_gpu()
    elif kind != "the system's":
        what = "torch, for this GPU" if kind == "plain" else "torch, which will use the CPU"
        once("torch", [kind], what, lambda: install(["torch"], quiet=False))


def install_emulated_gpu() -> None:
    """torch's CUDA build without the CUDA libraries, and the emulated ones in their place."""

    def install_torch_alone() -> None:
        # Settings of pip and uv are left aside: a folder of wheels named there may hold a +cpu build, which would win.
        plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "UV_NO_CONFIG": "1", "UV_FIND_LINKS": ""}
        install([f"torch=={TORCH}"], options=["--no-deps"], environment=plain, quiet=False)
        small = subprocess.run([PYTHON, "-c", SMALL_REQUIREMENTS], check=True, capture_output=True, text=True).stdout
        install([*small.splitlines(), "numpy", "nvidia-ml-py", "pyelftools"])

    def build() -> None:
        with_sources = {**os.environ, "PYTHONPATH": str(EMULATED_GPU.parent)}
        run(PYTHON, "-m", "vramscope_emulated_gpu.install_into_python", environment=with_sources)
        run(PYTHON, "-c", 'import torch; torch.empty(1, device="cuda")')

    once("torch", ["emulated", TORCH], f"torch {TORCH}, the CUDA build (over 500 MB)", install_torch_alone)
    sources = sorted(p for p in EMULATED_GPU.rglob("*") if p.suffix in {".py", ".c", ".h"} and "test" not in p.name)
    once("emulated-gpu", [TORCH, *(p.read_text() for p in sources)], "the emulated GPU's libraries", build)
    print(
        "vramscope: no GPU here: PyTorch runs on an emulated one, which counts memory and computes nothing", flush=True
    )


def install_vramscope(kind: str, for_tests: bool) -> None:
    """The package, editable, with its server; and for tests what they and the real frameworks need."""

    def step_of(what: str, extras: str, options: list[str]) -> None:
        def install_editable() -> None:
            # uv does not look at the system's packages: it would fetch a second torch for the frameworks
            install(["--editable", f".[{extras}]"], options, only_pip=kind == "the system's")

        once(what, [(ROOT / "pyproject.toml").read_text(), str(ROOT), extras, *options], what, install_editable)

    step_of("vramscope and its server", "server", [])
    if for_tests:
        frameworks = [] if kind == "cpu" else ["--group", "frameworks"]
        step_of("what the tests need", "server,postgres,notify", ["--group", "test", "--group", "docs", *frameworks])
        if frameworks:
            for group, what in (("optimizers", "8-bit optimizers"), ("deepspeed", "DeepSpeed")):
                # (DeepSpeed is built here, in seconds: without kernels of its own, and it asks torch for its version.)
                beside = ["--no-deps", "--no-build-isolation", "--target", str(VENV / group), "--group", group]
                once(
                    what,
                    [(ROOT / "pyproject.toml").read_text()],
                    what,
                    lambda beside=beside: install([], beside, environment={"DS_BUILD_OPS": "0"}),
                )


def install_programs() -> None:
    """Chromium and PostgreSQL, by apt where that is allowed; else the tests that need them are skipped and say so."""
    missing = []
    if not any(shutil.which(n) for n in (HEADLESS, "chromium", "chromium-browser", "google-chrome")):
        missing.append("chromium")
    if not shutil.which("postgres") and not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        missing.append("postgresql")
    if not missing:
        return
    apt = None
    if shutil.which("apt-get"):
        apt = [] if os.geteuid() == 0 else ["sudo", "-n"] if works("sudo", "-n", "true") else None
    if apt is None:
        print(f"vramscope: {' and '.join(missing)} not found and not installable here: their tests will be skipped")
        return
    with step(f"{' and '.join(missing)}, by apt"):
        quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        subprocess.run([*apt, *quiet, "update"], stdout=subprocess.DEVNULL)
        if "chromium" in missing and works("apt-cache", "show", HEADLESS):
            missing[missing.index("chromium")] = HEADLESS
        command = [*apt, *quiet, "install", "-y", "--no-install-recommends", *missing]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            print("vramscope: apt could not install them: their tests will be skipped")


# ---- how -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and afterwards how long it took."""
    print(f"vramscope: {what} ...", flush=True)
    start = time.monotonic()
    yield
    print(f"vramscope: {what}: done in {time.monotonic() - start:.0f} s", flush=True)


def once(name: str, inputs: Iterable[str], what: str, action: Callable[[], None]) -> None:
    """Do a step, unless it has succeeded in this environment with the same inputs."""
    stamp = STAMPS / name.replace(" ", "-")
    seen = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == seen:
        return
    with step(what):
        action()
    STAMPS.mkdir(exist_ok=True)
    stamp.write_text(seen)


def install(
    packages: list[str],
    options: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    quiet: bool = True,
    only_pip: bool = False,
) -> None:
    """Install into .venv with uv, which is quick; with pip where uv fails or may not be used."""
    common = ["install", *(["--quiet"] if quiet else []), *options, *packages]
    settings = {**os.environ, **(environment or {})}
    if not only_pip:
        uv = [VENV / "bin" / "uv", "pip", *common, "--python", PYTHON]
        if subprocess.run(uv, cwd=ROOT, env=settings).returncode == 0:
            return
        print("vramscope: uv could not do that; trying pip", flush=True)
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
    if "--group" in common:  # which pip knows since 25.1
        run(*pip, "install", "--quiet", "--upgrade", "pip")
    run(*pip, *common, environment=settings)


def run(*command: object, environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the project's folder; where it fails, it has told why, and we end with its status."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment)
    if done.returncode:
        raise SystemExit(f"vramscope: this failed: {' '.join(map(str, command))}")


def works(*command: object) -> bool:
    """Whether a command can be run and succeeds."""
    try:
        return subprocess.run([str(c) for c in command], capture_output=True).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    main()
