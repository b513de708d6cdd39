"""The emulation counts as installed: what needs torch can be added later, and fetches no CUDA package over it."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vramscope_emulated_gpu import cuda_headers, registration
from vramscope_emulated_gpu.build import BuildError


@pytest.fixture
def wheel_that_wants_torch(tmp_path):
    """A wheel like lightning's: pure Python, and requires torch."""
    path = tmp_path / "wants_torch-1-py3-none-any.whl"
    info = "wants_torch-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("wants_torch.py", "")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: wants-torch\nVersion: 1\nRequires-Dist: torch\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_pip_would_fetch_no_cuda_package(wheel_that_wants_torch):
    """Without an index to fetch from: whatever were missing would be an error."""
    assert requirements_met_by_torch(), "torch requires CUDA packages"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", wheel_that_wants_torch]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    plain["PIP_CONFIG_FILE"] = os.devnull  # a machine's own constraints may exclude the newest torch
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Would install (.*)", done.stdout) == ["wants-torch-1"]


def test_uv_would_fetch_no_cuda_package(wheel_that_wants_torch):
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if not uv:
        pytest.skip("uv is not installed")
    command = [uv, "pip", "install", "--dry-run", "--offline", "--no-index", "--python", sys.executable]
    done = subprocess.run([*command, wheel_that_wants_torch], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ [+~-] ([\w-]+)", done.stderr, re.MULTILINE) == ["wants-torch"]


def requirements_met_by_torch():
    return [r for r in importlib.metadata.requires("torch") or () if r.startswith(("nvidia-", "cuda-"))]


def test_what_was_registered_can_be_uninstalled():
    """An installer removes what RECORD lists: every file of ours is listed with its digest."""
    distribution = importlib.metadata.distribution("vramscope-emulated-gpu")
    names = {f.name for f in distribution.files}
    assert {"libcuda.so.1", "libcudart.so.13", "_emulated_gpu.py", "emulated-gpu.pth", "RECORD"} <= names
    for file in distribution.files:
        if file.hash:
            digest = hashlib.sha256(file.locate().read_bytes()).digest()
            assert file.hash.value == base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), file


def test_a_version_is_chosen_inside_the_range_that_torch_asks_for():
    read = registration.read_requirement
    assert read('cuda-bindings<14,>=13.0.3; platform_system == "Linux"') == ("cuda-bindings", [], "13.0.3")
    assert read("cuda-toolkit[cublas,cudart]==13.0.3") == ("cuda-toolkit", ["cublas", "cudart"], "13.0.3")
    with pytest.raises(SystemExit, match="names no version"):
        read("nvidia-something")


def test_headers_of_another_cuda_are_refused(tmp_path):
    """CUDA 12 has another cudaDeviceProp: what is compiled with it would crash."""
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "host_defines.h").touch()
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
    assert cuda_headers.find(str(tmp_path), tmp_path, 12) == tmp_path
    with pytest.raises(BuildError, match="no headers of CUDA 13"):
        cuda_headers.find(str(tmp_path), tmp_path, 13)
