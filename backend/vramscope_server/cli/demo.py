"""``vramscope demo``: a small training under ``vramscope run``, a server if there is none, and the summary at the end."""

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
from vramscope_server.cli.client import BAD_WORDS, CHECK_FAILED, NO_SERVER, Failure, address, how_to_start, is_local

TRAINING: Final = Path(__file__).with_name("demo_training.py")
VRAMSCOPE: Final = (sys.executable, "-m", "vramscope_server")
NAME: Final = "demo"
START_SECONDS: Final = 30
STOP_SECONDS: Final = 10


def show(server: str, steps: int) -> int:
    """Train until ``steps`` are done, or until Ctrl-C for 0, and print the summary. Returns the exit code.

    Raises talk.Failure: 2 without PyTorch, 4 if no server can be had.
    """
    if importlib.util.find_spec("torch") is None:
        raise Failure("the demo trains with PyTorch, which is not installed here: pip install torch", BAD_WORDS)
    url = address(server)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as tidily as Ctrl-C
    with _server_at(url) as is_ours:
        print(f"vramscope: watch it at {url}" + ("" if steps else ", stop it with Ctrl-C"), flush=True)
        run = secrets.token_hex(8)
        status = _train(url, run, steps)
        if status:
            print(f"vramscope: the training ended with status {status}", file=sys.stderr)
            return CHECK_FAILED
        print(flush=True)
        show_command.show(url, False, run)
    if is_ours:
        print(f"vramscope: the server has stopped; to look again: {how_to_start(url)}")
    return 0


@contextlib.contextmanager
def _server_at(url: str) -> Iterator[bool]:
    """A server answers there until the block ends. Gives whether it is one of ours."""
    if _answers(url):
        yield False
        return
    if not is_local(url):
        raise Failure(f"no server answers at {url}, and one can be started on this machine only.", NO_SERVER)
    where = httpx.URL(url)
    with tempfile.TemporaryFile("w+") as log:
        words = [*VRAMSCOPE, "server", "--host", where.host, "--port", str(where.port or 80)]
        # In a session of its own: Ctrl-C reaches the training first, and the server then takes the last of it.
        server = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failure(f"the server did not start. It said: {log.read().strip() or 'nothing'}", NO_SERVER)
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
    """Train as anybody could: ``vramscope run -- python SCRIPT``. Returns the exit status; stopped with Ctrl-C: 0."""
    words = ["run", "--server", url, "--project", "demo", "--name", NAME]
    script = [sys.executable, str(TRAINING), "--steps", str(steps)]
    environment = {**os.environ, "VRAMSCOPE_RUN_ID": run}
    training = subprocess.Popen([*VRAMSCOPE, *words, "--", *script], env=environment)
    try:
        return training.wait()
    except KeyboardInterrupt:
        try:  # the terminal has told the training, too
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
