"""Runs of a cluster's job: found by the API, listed by ``ls --job``, summarized by ``report --job`` and Slurm's epilog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import RunningServer
from wire_maker import GIB, SECOND, Agent, leak, scan

from vramscope.protocol import messages

EPILOG = Path(__file__).resolve().parents[2] / "examples" / "slurm_epilog.sh"


def slurm(task: int) -> messages.Job:
    return messages.Job(
        manager="slurm", id=str(4248 + task), array=f"4242_{task}", name="sweep", nodes="node[1-2]", partition="a100"
    )


@pytest.fixture(scope="module")
def array(server: RunningServer) -> RunningServer:
    """Two tasks of an array: one finished, one out of memory. And runs of other jobs."""
    fine = Agent(name="first", jobs=[slurm(1)])
    server.send(fine, fine.samples(), fine.steps(30, peak_reserved_bytes=60 * GIB), scan(leak()), fine.ended())
    dead = Agent(name="second", jobs=[slurm(2)], start_ns=fine.start_ns + SECOND)
    error = messages.Event(time_ns=dead.start_ns + SECOND, kind="out_of_memory", step=30)
    ended = dead.ended("failed", error_type="torch.OutOfMemoryError", error_line="CUDA out of memory.")
    server.send(dead, dead.samples(1, ooms=1), dead.steps(30), error, ended)
    others = [
        Agent(name="longer number", jobs=[messages.Job(manager="slurm", id="42421")]),
        Agent(name="4242", config={"job": "4242"}),
        Agent(name="in a pod", jobs=[messages.Job(manager="kubernetes", id="träin", pod="train-0"), slurm(31)]),
    ]
    for other in others:
        server.send(other, other.samples(), other.ended())
    return server


def names(server: RunningServer, job: str) -> set[str]:
    rows: list[dict[str, Any]] = server.get("/runs", job=job)["runs"]
    return {row["name"] for row in rows}


def test_runs_are_found_by_job_array_task_and_pod(array: RunningServer) -> None:
    assert names(array, "4242") == {"first", "second", "in a pod"}
    assert names(array, "4242_2") == {"second"}
    assert names(array, "4249") == {"first"}
    assert names(array, "4242_3") == set(), "not task 31"
    assert names(array, "train-0") == names(array, "träin") == {"in a pod"}
    assert names(array, "sweep") == set(), "a name is no identifier"


def test_a_run_has_its_jobs(array: RunningServer, cli: Any) -> None:
    (row,) = array.get("/runs", job="4242_1")["runs"]
    assert (row["jobs"][0]["nodes"], row["jobs"][0]["array"], row["jobs"][0]["pod"]) == ("node[1-2]", "4242_1", None)
    (rank,) = array.get(f"/runs/{row['run_id']}")["ranks"]
    assert rank["jobs"] == row["jobs"]
    code, out, _ = cli("ls", "--job", "4242_1", "--json", "--server", array.url)
    assert code == 0 and '"4242_1"' in out and '"first"' in out and '"second"' not in out


def test_report_of_a_job(array: RunningServer, cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("report", "--job", "4242", "--server", array.url)
    assert code == 0
    assert out.splitlines()[0] == "Job 4242: 3 runs, 2 finished, 1 failed"
    assert "75.0 %" in out, "60 of 80 GiB"
    assert "second failed: torch.OutOfMemoryError: CUDA out of memory." in out
    assert "first leaks: " in out
    file = tmp_path / "job.html"
    code, out, _ = cli("report", "--job", "4242", "--out", str(file), "--server", array.url)
    text = file.read_text()
    assert code == 0 and "second failed: torch.OutOfMemoryError" in text and "node[1-2]" in text
    assert file.stat().st_size < 3_000_000


def test_report_refuses_a_job_without_runs_and_unclear_arguments(array: RunningServer, cli: Any) -> None:
    code, _, error = cli("report", "--job", "7", "--server", array.url)
    assert code == 3 and "no run belongs to job '7'" in error
    assert cli("report", "--server", array.url)[0] == 2
    assert cli("report", "first", "--job", "4242", "--server", array.url)[0] == 2


def epilog(server: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in Slurm's environment: without PATH, and without what the user has set."""
    slurm_has = {"VRAMSCOPE_SERVER": server, "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | environment
    return subprocess.run(
        ["/bin/sh", str(EPILOG)], env=slurm_has, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def command(tmp_path: Path) -> str:
    """The command line in a file, as an installation has it."""
    file = tmp_path / "vramscope"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramscope_server "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_the_epilog_prints_the_job(array: RunningServer, command: str) -> None:
    done = epilog(array.url, VRAMSCOPE=command, SLURM_JOB_ID="4250", SLURM_ARRAY_JOB_ID="4242", SLURM_ARRAY_TASK_ID="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Job 4242_2: 1 run, 1 failed\n") and "CUDA out of memory" in done.stdout
    assert epilog(array.url, VRAMSCOPE=command, SLURM_JOB_ID="4249").stdout.startswith("Job 4249: 1 run, 1 finished\n")


def test_the_epilog_writes_into_a_folder(array: RunningServer, command: str, tmp_path: Path) -> None:
    done = epilog(array.url, VRAMSCOPE=command, SLURM_JOB_ID="4249", VRAMSCOPE_REPORT_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "vramscope-4249.txt").read_text().startswith("Job 4249: 1 run")


def test_the_epilog_never_fails(command: str, tmp_path: Path) -> None:
    """A failing Epilog takes the node out of service."""
    nowhere = "http://127.0.0.1:9"
    for environment in (
        {"VRAMSCOPE": command, "SLURM_JOB_ID": "1"},
        {"VRAMSCOPE": "/no/such/file", "SLURM_JOB_ID": "1"},
        {"VRAMSCOPE": command, "SLURM_JOB_ID": "1", "VRAMSCOPE_REPORT_DIR": str(tmp_path / "missing")},
        {},
    ):
        assert epilog(nowhere, **environment).returncode == 0
