"""``vramscope demo``: a small training under ``vramscope run``, with a server if none runs, and a summary."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from vramscope_server.cli import show as show_command
from vramscope_server.cli.client import Failure, address, how_to_start
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, CHECK_FAILED
from vramscope_server.cli.local_server import STOP_SECONDS, VRAMSCOPE, server_at

TRAINING: Final = Path(__file__).with_name("demo_training.py")
NAME: Final = "demo"


def show(server: str, steps: int) -> int:
    """Train for ``steps`` steps (0: until Ctrl-C), print the summary and return the exit code.

    Raises client.Failure: 2 without PyTorch, 4 without a server.
    """
    if importlib.util.find_spec("torch") is None:
        raise Failure("the demo needs PyTorch: pip install torch", BAD_ARGUMENTS)
    url = address(server)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    with server_at(url, "The demo") as used:
        print(f"vramscope: this run will appear at {url}" + ("" if steps else ", stop it with Ctrl-C"), flush=True)
        run = secrets.token_hex(8)
        status = _train(url, run, steps)
        if status:
            print(f"vramscope: the training ended with status {status}", file=sys.stderr)
            return CHECK_FAILED
        print(flush=True)
        show_command.show(url, False, run)
    if used.has_stopped:
        print(f"vramscope: the server has stopped; start it again with: {how_to_start(url)}")
    return 0


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
