"""What would be published: built twice alike, and accepted by the tools that check packages, which the test installs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from ports import free_port
from waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("twine", "check-wheel-contents", "pyroma")
NO_AUTHOR = {"Your package does not have author data.", "Your package does not have author-email data."}
"""The only remarks of pyroma: the project has no person's name and address yet."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: object, **variables: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def uv() -> str:
    return shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"


def built(folder: Path) -> dict[str, str]:
    """Wheel and source distribution, built in this folder, with their digests."""
    run(uv(), "build", "--quiet", "--out-dir", folder, ROOT)
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != ".gitignore"
    }


def test_what_is_published_is_reproducible_and_complete(tmp_path: Path) -> None:
    first = built(tmp_path / "first")
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl"]
    assert built(tmp_path / "again") == first
    tools = tmp_path / "tools"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, *TOOLS)
    files = sorted((tmp_path / "first").glob("vramscope*"))
    wheel = next(file for file in files if file.suffix == ".whl")
    source = next(file for file in files if file.suffix == ".gz")
    run(sys.executable, "-m", "twine", "check", "--strict", *files, PYTHONPATH=str(tools))
    run(sys.executable, "-m", "check_wheel_contents", wheel, PYTHONPATH=str(tools))
    remarks = run(sys.executable, "-m", "pyroma", "-n", "7", source, PYTHONPATH=str(tools))
    assert {line for line in remarks.splitlines() if line.startswith("Your package")} <= NO_AUTHOR


def test_uvx_runs_the_server_from_the_wheel(tmp_path: Path) -> None:
    """``uvx 'vramscope[server]' server``, with the wheel in the place of PyPI's."""
    built(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    port, data = free_port(), str(tmp_path / "data")
    uvx = [
        uv(),
        "tool",
        "run",
        "--from",
        f"vramscope[server] @ file://{wheel}",
        "vramscope",
        "server",
        "--port",
        str(port),
    ]
    environment = os.environ | {"VRAMSCOPE_DATA_DIR": data, "PYTHONPATH": ""}
    server = subprocess.Popen(uvx, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        health = eventually(lambda: answer(f"http://127.0.0.1:{port}/api/v1/health"), 300)
        assert json.loads(health)["status"] == "ok"
    finally:
        server.terminate()
        server.wait(30)


def answer(address: str) -> bytes | None:
    """Body of a GET; None while nobody listens."""
    try:
        with urllib.request.urlopen(address, timeout=20) as reply:
            return reply.read()  # type: ignore[no-any-return]
    except urllib.error.URLError:
        return None
