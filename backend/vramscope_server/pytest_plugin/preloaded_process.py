"""Runs marked tests in forks of one process that has imported PyTorch."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramscope_server.pytest_plugin import preloaded_script
from vramscope_server.pytest_plugin.names import CHILD

OF_ONE_TEST: Final = (CHILD, "EMULATED_GPU_", "VRAMSCOPE_SPOOL_DIR", "PYTEST_CURRENT_TEST")
"""Begins of the names of variables that each test has of its own, and that nothing reads before it starts."""


class NotEnded(Exception):
    """The test did not end within its time."""


@dataclass(frozen=True)
class Ended:
    """A test that ended."""

    exit_code: int
    output: str


class PreloadedProcess:
    """The process of the marked tests of one suite. It starts with the first of them.

    A test whose environment differs from that of the test before starts a new process, because libraries read some
    variables when they are imported.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path, timeout_s: float
    ) -> Ended:
        """Run pytest with these words. Raises NotEnded with what the test printed if it takes too long."""
        process = self._started(environment)
        request = {
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
            "output": str(output),
        }
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    self.close()
                    raise NotEnded(_text(output))
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            return Ended(process.returncode or 1, _text(output))
        return Ended(int(answer), _text(output))

    def close(self) -> None:
        """End the process, and a test that still runs in it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def _started(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        shared = {name: value for name, value in environment.items() if not name.startswith(OF_ONE_TEST)}
        if self._process is not None and (shared != self._environment or self._process.poll() is not None):
            self.close()
        if self._process is None:
            self._environment = shared
            self._process = subprocess.Popen(
                [sys.executable, preloaded_script.__file__],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        return self._process


def _text(output: Path) -> str:
    return output.read_text(errors="replace") if output.exists() else ""
