"""``vramscope demo``: a small training under ``vramscope run``, with a server if none runs, and a summary."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from vramscope_server.cli import show as show_command
from vramscope_server.cli.client import Failure, address, how_to_start, is_local
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, CHECK_FAILED, NO_SERVER

TRAINING: Final = Path(__file__).with_name("demo_training.py")
VRAMSCOPE: Final = (sys.executable, "-m", "vramscope_server")
NAME: Final = "demo"
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10


def show(server: str, steps: int) -> int:
    """Train for ``steps`` steps (0: until Ctrl-C), print the summary and return the exit code.

    Raises client.Failure: 2 without PyTorch, 4 without a server.
    """
    if importlib.util.find_spec("torch") is None:
        raise Failure("the demo needs PyTorch: pip install torch", BAD_ARGUMENTS)
    url = address(server)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    with _server_at(url) as is_ours:
        print(f"vramscope: this run will appear at {url}" + ("" if steps else ", stop it with Ctrl-C"), flush=True)
        run = secrets.token_hex(8)
        status = _train(url, run, steps)
        if status:
            print(f"vramscope: the training ended with status {status}", file=sys.stderr)
            return CHECK_FAILED
        print(flush=True)
        show_command.show(url, False, run)
    if is_ours:
        print(f"vramscope: the server has stopped; start it again with: {how_to_start(url)}")
    return 0


@contextlib.contextmanager
def _server_at(url: str) -> Iterator[bool]:
    """Ensure that a server answers until the block ends. Yields True if it was started here."""
    if _answers(url):
        yield False
        return
    if not is_local(url):
        raise Failure(f"no server answers at {url}. The demo can start one on this machine only.", NO_SERVER)
    where = httpx.URL(url)
    with tempfile.TemporaryFile("w+") as log:
        words = [*VRAMSCOPE, "server", "--host", where.host, "--port", str(where.port or 80)]
        # In its own session: Ctrl-C must reach the training first, so that the server receives its last data.
        server = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failure(f"the server did not start. Its output: {log.read().strip() or 'none'}", NO_SERVER)
                time.sleep(0.05)
            yield True
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _answers(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/api/v1/health", timeout=2, trust_env=not is_local(url)).json()
        return health["status"] in ("ok", "degraded")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


def _train(url: str, run: str, steps: int) -> int:
    """Run ``vramscope run -- python SCRIPT`` and return the exit status (0 after Ctrl-C)."""
    words = ["run", "--server", url, "--project", "demo", "--name", NAME]
    script = [sys.executable, str(TRAINING), "--steps", str(steps)]
    environment = {**os.environ, "VRAMSCOPE_RUN_ID": run}
    training = subprocess.Popen([*VRAMSCOPE, *words, "--", *script], env=environment)
    try:
        return training.wait()
    except KeyboardInterrupt:
        try:  # the terminal sends the signal to the training as well
            status = training.wait(3)
        except subprocess.TimeoutExpired:
            training.send_signal(signal.SIGINT)
            status = _end_of(training)
    return 0 if status in (-signal.SIGINT, 128 + signal.SIGINT) else status


def _end_of(training: subprocess.Popen[bytes]) -> int:
    try:
        return training.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        training.kill()
        return training.wait()
