"""The demo that a page starts: a small training on the server's machine, in a process that ends with the server.

It never uses a real GPU: those may belong to other trainings. It runs on the emulated GPU where one is installed, else on
the CPU.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

PROJECT: Final = "demo"
NAME: Final = "demo"
STEPS: Final = 300
MAX_SECONDS: Final = 900.0
"""A demo that takes longer is ended."""
TRAINING: Final = Path(__file__).parent / "cli" / "demo_training.py"
EMULATED_GPU: Final = "vramscope-emulated-gpu"
"""Distribution that puts an emulated GPU under this Python's PyTorch."""
_LAST_LINES: Final = 20
_STOP_SECONDS: Final = 10.0


class DemoState(str, Enum):
    """State of the demo of this server."""

    idle = "idle"
    running = "running"
    finished = "finished"
    failed = "failed"


class DemoDevice(str, Enum):
    """Device of the demo."""

    cpu = "cpu"
    emulated_gpu = "emulated_gpu"


class DemoRunning(Exception):
    """The demo is running already."""


@dataclass(frozen=True, slots=True)
class DemoStatus:
    """The newest demo of this server process."""

    state: DemoState = DemoState.idle
    device: DemoDevice | None = None
    run_id: str | None = None
    started_at: float | None = None
    """Time of the start, since 1970."""
    problem: str | None = None
    """Last line of the output of a demo that failed."""


class DemoRun:
    """One demo at a time. :meth:`close` when the server shuts down. Any thread may call it."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self._status = DemoStatus()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def status(self) -> DemoStatus:
        """The newest demo, or an idle state."""
        return self._status

    def start(self, address: str, token: str | None, ended: Callable[[], None]) -> DemoStatus:
        """Start the training, which reports to ``address`` with ``token``. ``ended`` is called once, at its end.

        Raises DemoRunning.
        """
        with self._changing:
            if self._status.state is DemoState.running or self._closing:
                raise DemoRunning
            run_id, device = secrets.token_hex(8), _device()
            environment = _environment(os.environ, run_id, token, device)
            # The process ends with the thread that started it, so this thread waits for it.
            self._thread = threading.Thread(
                target=self._run, args=(address, environment, ended), name="vramscope-demo", daemon=True
            )
            self._thread.start()
            self._status = DemoStatus(DemoState.running, device, run_id, time.time())
            return self._status

    def close(self) -> None:
        """End the training."""
        with self._changing:
            self._closing = True
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, address: str, environment: Mapping[str, str], ended: Callable[[], None]) -> None:
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            status = self._train(_command(address, self.steps), environment, lines)
            problem = None if status == 0 else next((line for line in reversed(lines) if line), f"exit status {status}")
        except OSError as fault:
            problem = f"The process could not be started: {fault.strerror or fault}."
        state = DemoState.finished if problem is None else DemoState.failed
        self._status = replace(self._status, state=state, problem=problem)
        ended()

    def _train(self, command: list[str], environment: Mapping[str, str], lines: deque[str]) -> int:
        with self._changing:
            if self._closing:
                return 1
            process = self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        limit = threading.Timer(MAX_SECONDS, process.kill)
        limit.daemon = True
        limit.start()
        try:
            with contextlib.closing(process.stdout) if process.stdout else contextlib.nullcontext() as output:
                lines.extend(line.strip() for line in output or ())
            return process.wait()
        finally:
            limit.cancel()


def has_pytorch() -> bool:
    """Whether the server's Python has PyTorch, without importing it."""
    return importlib.util.find_spec("torch") is not None


def _device() -> DemoDevice:
    try:
        importlib.metadata.distribution(EMULATED_GPU)
    except importlib.metadata.PackageNotFoundError:
        return DemoDevice.cpu
    return DemoDevice.emulated_gpu


def _command(address: str, steps: int) -> list[str]:
    training = [sys.executable, str(TRAINING), "--steps", str(steps)]
    watched = ["run", "--server", address, "--project", PROJECT, "--name", NAME, "--", *training]
    ending = [sys.executable, "-m", "vramscope_server.child_process", str(os.getpid())]
    return [*ending, sys.executable, "-m", "vramscope_server", *watched]


def _environment(environ: Mapping[str, str], run_id: str, token: str | None, device: DemoDevice) -> dict[str, str]:
    """Environment of the training: the settings of the server are not those of an agent."""
    kept = {name: value for name, value in environ.items() if not name.startswith("VRAMSCOPE_")}
    if "VRAMSCOPE_SPOOL_DIR" in environ:
        kept["VRAMSCOPE_SPOOL_DIR"] = environ["VRAMSCOPE_SPOOL_DIR"]
    kept["VRAMSCOPE_RUN_ID"] = run_id
    if token is not None:
        kept["VRAMSCOPE_TOKEN"] = token
    if device is DemoDevice.emulated_gpu:
        kept["EMULATED_GPU_LEDGER"] = "private"
        kept.setdefault("EMULATED_GPU_NAME", "emulated H100 80GB")
    else:
        kept["CUDA_VISIBLE_DEVICES"] = kept["HIP_VISIBLE_DEVICES"] = "-1"
    return kept
