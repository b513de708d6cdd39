"""``vramscope server`` as a process: what it says, why it does not start, how it ends. And ``vramscope demo`` with one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from vramscope_server.__main__ import main
from vramscope_server.cli.server import to_open

VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``vramscope server`` at a free port with a data folder of its own; ended at the test's end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, open_files: int | None = None, **environment: str) -> subprocess.Popen[str]:
        command = [*VRAMSCOPE, "server", "--port", "0", "--data-dir", str(tmp_path / "data"), *words]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -Sn {open_files}; exec "$@"', "sh", *command]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """From the line that it starts with."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"vramscope is running at (http://127\.0\.0\.1:\d+)\n", line)
    assert found, line + process.communicate(timeout=10)[1]
    return found[1]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a server says that does not start: one line, exit code 2."""

    def say(*words: str) -> str:
        assert main(["server", *words]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    return say


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_at_once_when_told(start, tmp_path, how):
    """Address and database; with a page that polls it stops in two seconds, exit code 0."""
    process = start(VRAMSCOPE_LOG_LEVEL="debug")
    url = address_of(process)
    assert str(tmp_path / "data" / "vramscope.db") in process.stdout.readline()
    while "figures are ready" not in process.stderr.readline():
        assert process.poll() is None
    with httpx.Client(timeout=10, trust_env=False) as page:
        assert page.get(f"{url}/api/v1/live/delta").status_code == 200
        started = time.monotonic()
        process.send_signal(how)
        err = process.stderr.read()
        assert process.wait(20) == 0
    assert time.monotonic() - started < 4, "two seconds, and some for a busy machine"
    assert "Traceback" not in err and "ERROR" not in err


def test_who_never_ends_a_request_keeps_nobody_out(start):
    """Half requests, and watchers who do nothing else, more of both than files that a process may open at first."""
    process = start(open_files=128)
    url = address_of(process)
    at = ("127.0.0.1", int(url.rpartition(":")[2]))
    fields = {
        "half a head": b"GET /api/v1/runs HTTP/1.1\r\nHost: x",
        "half a body": b"POST /api/v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 800000\r\n\r\nabc",
        "an idle page": b"GET /api/v1/live/delta HTTP/1.1\r\nHost: x\r\n\r\n",
    }
    with contextlib.ExitStack() as stack:
        for head in list(fields.values()) * 60:
            connection = stack.enter_context(socket.create_connection(at, timeout=20))
            connection.sendall(head)
        assert httpx.get(f"{url}/api/v1/runs", timeout=20, trust_env=False).status_code == 200
    process.terminate()
    assert process.wait(20) == 0
    assert "Too many open files" not in process.stderr.read()


def test_a_token_is_told_once_at_the_first_start(start):
    """It opens the server; the second start says only that tokens are required."""
    for first in (True, False):
        process = start(VRAMSCOPE_REQUIRE_TOKENS="1")
        url = address_of(process)
        process.terminate()
        out = process.stdout.read()
        assert process.wait(20) == 0
        assert ("vrs_" in out) == first
        assert "VRAMSCOPE_TOKEN" in out if first else "tokens are required" in out
        assert url not in out


@pytest.mark.parametrize(("bound", "opened"), [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")])
def test_the_address_of_every_address_is_one_that_a_browser_opens(bound, opened):
    every = f"http://{opened}:8265, and at every other address of this machine"
    assert to_open(f"http://{bound}:8265") == every
    assert to_open("http://10.0.0.2:8265") == "http://10.0.0.2:8265"


def test_a_taken_port_is_told_by_whom(server, refused):
    """By a vramscope server: here it is. By something else: take another port."""
    assert f"in use by another vramscope server: {server.url}" in refused("--port", str(server.port))
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        port = str(other.getsockname()[1])
        output = refused("--port", port)
    assert f"port {port} of 127.0.0.1 is in use; use another --port" in output


def test_what_cannot_be_is_told_in_one_line(tmp_path, refused, monkeypatch):
    """A port, a database, an address, a variable: each named, exit code 2."""
    assert "--port cannot be 70000" in refused("--port", "70000")
    (tmp_path / "notes.txt").write_text("these are notes, not a database")
    assert "is not an SQLite database" in refused("--port", "0", "--database", str(tmp_path / "notes.txt"))
    assert (tmp_path / "notes.txt").read_text() == "these are notes, not a database"
    assert "cannot listen at 203.0.113.1" in refused("--port", "0", "--host", "203.0.113.1")
    monkeypatch.setenv("VRAMSCOPE_RETENTION_DAYS", "-1")
    assert "VRAMSCOPE_RETENTION_DAYS cannot be '-1'" in refused()
    monkeypatch.delenv("VRAMSCOPE_RETENTION_DAYS")
    for value in ("0.5", "14", "-1", "nan", "inf", "1e300"):
        monkeypatch.setenv("VRAMSCOPE_LOST_AFTER_SECONDS", value)
        assert f"VRAMSCOPE_LOST_AFTER_SECONDS cannot be '{value}'" in refused()


def test_a_database_can_be_a_path(start, tmp_path):
    process = start("--database", str(tmp_path / "mine.db"))
    address_of(process)
    assert (tmp_path / "mine.db").exists()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the demo trains with PyTorch")
def test_the_demo_trains_and_ends_with_the_summary(tmp_path):
    """With a server of its own that is gone afterwards; the run stays in the data folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "VRAMSCOPE_DATA_DIR": str(tmp_path), "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool")}
    command = [*VRAMSCOPE, "demo", "--steps", "12", "--server", url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert f"this run will appear at {url}" in done.stdout
    assert re.search(r"^demo  finished  in project demo", done.stdout, re.MULTILINE)
    assert re.search(r"^steps +12, ", done.stdout, re.MULTILINE)
    assert re.search(rf"^{url}/runs/[0-9a-f]+$", done.stdout, re.MULTILINE)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_the_demo_without_pytorch_says_so():
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from vramscope_server.__main__ import main\nsys.exit(main(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pip install torch" in done.stderr and done.stderr.count("\n") == 1
