"""What ``make demo STEPS=...`` runs: it ends by itself, with a summary of the run, and leaves nothing running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ports import free_port
from waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def of(folder: Path) -> list[str]:
    """Command lines of processes whose environment names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def test_the_demo_trains_shows_its_run_and_stops_what_it_started(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")  # it keeps its data beside them
    port = free_port()
    command = [sys.executable, tmp_path / "examples" / "demo.py", "--steps", "4", "--port", str(port)]
    env = {**os.environ, "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    address = f"http://127.0.0.1:{port}"
    assert f"vramscope: open {address} to watch the training\n" in done.stdout
    assert f"vramscope: watching run 'gpt2-small': {address}/runs/" in done.stderr
    fields = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert fields["steps"].startswith("4")
    assert "finished" in done.stdout and "GiB" in done.stdout
    assert "vramscope: the server has stopped" in done.stdout
    assert of(tmp_path) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    assert not any(path.name.endswith(".batch") for path in tmp_path.rglob("*")), "everything reached the server"


def test_ctrl_c_in_its_first_training_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    port = free_port()
    command = [sys.executable, tmp_path / "examples" / "demo.py", "--steps", "100000", "--port", str(port)]
    env = {**os.environ, "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool")}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        runs = f"http://127.0.0.1:{port}/api/v1/runs"
        while "watching run" not in demo.stdout.readline():
            assert demo.poll() is None
        eventually(lambda: (httpx.get(runs, trust_env=False).json()["runs"] or [{}])[0].get("steps"), what="its steps")
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        rest = demo.stdout.read()
        assert demo.wait(60) == 0, rest
    assert "Traceback" not in rest and "vramscope: the server has stopped" in rest
    assert of(tmp_path) == []
