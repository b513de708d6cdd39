"""A process of its own that runs loops one after the other, forked off a Python that has loaded torch (warm.py).

The parent asks with one line of JSON, the child answers with one, over a socket in a folder of theirs.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import json
import os
import socket
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

ANSWER_WITHIN_SECONDS = 600.0
"""Seconds for one process. A loop takes one or two and imports of transformers ten more; a machine may be ten times slower."""
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); import child; child.main(sys.argv[2])"

NO_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}
"""Settings of cuBLAS. The loops are small: from PyTorch 2.15 on each product takes a workspace, which alone would be the peak."""


class Child:
    """Runs loops elsewhere. A child that crashed or hangs fails its own question alone: the next one gets a new child."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="leaks-")
        self._program: warm.Program | None = None
        self._talk: IO[str] | None = None

    def ask(self, what: str, loop: str, device: str, *, mended: bool = False, **more: Any) -> Any:
        """``what``: "weigh" or "watch". Raises RuntimeError with what the child said where the loop or we failed."""
        program, talk = self._running()
        question = {"what": what, "loop": loop, "device": device, "mended": mended, **more}
        alarm = threading.Timer(ANSWER_WITHIN_SECONDS, program.kill)
        alarm.start()
        try:
            talk.write(json.dumps(question) + "\n")
            talk.flush()
            line = talk.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = ""
        finally:
            alarm.cancel()
        if not line:
            code, self._program = program.wait(30), None
            raise RuntimeError(f"{loop} on {device}: the process ended with {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        if self._program is not None and self._talk is not None:
            self._talk.close()
            self._program.wait(ANSWER_WITHIN_SECONDS)
            self._program = None
        self._folder.cleanup()

    def _running(self) -> tuple[warm.Program, IO[str]]:
        if self._program is None or self._talk is None:
            path = Path(self._folder.name) / "questions"
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(str(path))
                door.listen(1)
                door.settimeout(ANSWER_WITHIN_SECONDS)
                self._program = warm.Program(
                    CHILD,
                    arguments=[str(Path(__file__).parent), self._folder.name],
                    cwd=self._folder.name,
                    env={**os.environ, "EMULATED_GPU_LEDGER": "private", "HF_HUB_OFFLINE": "1", **NO_WORKSPACES},
                )
                connection = door.accept()[0]
            with connection:
                connection.settimeout(None)
                self._talk = connection.makefile("rw")
        return self._program, self._talk


def scans_of(answer: dict[str, Any]) -> list[Any]:
    """``[(steps, messages.Scan)]`` from what a child answered to "watch"."""
    import msgspec

    from vramscope.protocol import messages

    return [
        (steps, msgspec.msgpack.decode(base64.b64decode(scan), type=messages.Scan)) for steps, scan in answer["scans"]
    ]


def windows_of(answer: dict[str, Any]) -> list[Any]:
    """The ``window.Window`` of a leak's finding, by time, where the child was asked for ``windows``."""
    from vramscope.protocol.window import unpack

    return sorted((unpack(base64.b64decode(data)) for data in answer["windows"]), key=lambda one: one.first_step)


def main(folder: str) -> None:
    """The child: answers until its questions end. What the loops print goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(folder) / "questions"))
        talk = connection.makefile("rw")
    warnings.simplefilter("ignore")
    import torch
    import torch._dynamo
    from corpus import LOOPS
    from marks import write_mended

    torch.set_num_threads(1)
    # A dataset of Python objects beside the loop: as many as LEAKS_OBJECTS says, in the process that loops run in.
    rows = int(os.environ.get("LEAKS_OBJECTS", "0")) // 4
    dataset = [{"words": [row], "label": (row, [row])} for row in range(rows)]  # noqa: F841
    mended = Path(folder) / "loops"
    if not mended.exists():
        write_mended(LOOPS, mended)
    for line in talk:
        question = json.loads(line)
        gc.collect()
        torch._dynamo.utils.counters.clear()  # what an earlier loop compiled is not this one's
        if os.environ.get("LEAKS_FREEZE") != "0":
            # The 300,000 objects of imported libraries are no part of a loop; without them a collection takes 1 ms, not 200.
            gc.freeze()
        try:
            reply = {"result": answer(question, mended if question["mended"] else LOOPS)}
        except Exception as error:
            import traceback

            reply = {"error": "".join(traceback.format_exception(error))}
        talk.write(json.dumps(reply) + "\n")
        talk.flush()


def answer(question: dict[str, Any], folder: Path) -> Any:
    import msgspec
    import torch
    from corpus import load
    from meter import weigh
    from variants import changed
    from watched import watch

    loop, device = load(question["loop"], folder), question["device"]
    torch.manual_seed(0)
    if question["what"] == "weigh":
        return [dataclasses.asdict(reading) for reading in weigh(loop, device, collect=question["collect"])]
    if question["what"] == "watch":
        encode = msgspec.msgpack.Encoder().encode
        with changed(question.get("policy", {}), question.get("without", ())):
            scans, recorded = watch(loop, device, windows=question.get("windows", False))
        return {
            "scans": [[entry["steps"], base64.b64encode(encode(entry["scan"])).decode()] for entry in scans],
            **recorded,
            "windows": [base64.b64encode(data).decode() for data in recorded["windows"]],
        }
    raise ValueError(f"what: {question['what']!r} is neither weigh nor watch")
