"""A process of its own that runs loops one after the other: what torch imports costs seconds, and is paid once.

The parent asks with one line of JSON, the child answers with one. ``python child.py`` is the child.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

ANSWER_WITHIN_SECONDS = 90


class Child:
    """Runs loops elsewhere. A child that crashed or hangs fails its own question alone: the next one gets a new child."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="leaks-")
        self._process: subprocess.Popen[str] | None = None

    def ask(self, what: str, loop: str, device: str, *, mended: bool = False, **more: Any) -> Any:
        """``what``: "weigh" or "watch". Raises RuntimeError with what the child said where the loop or we failed."""
        process = self._running()
        question = {"what": what, "loop": loop, "device": device, "mended": mended, **more}
        assert process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(ANSWER_WITHIN_SECONDS, process.kill)
        alarm.start()
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            code, self._process = process.wait(), None
            raise RuntimeError(f"{loop} on {device}: the process ended with {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process = None
        self._folder.cleanup()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self._folder.name,
                env={**os.environ, "EMULATED_GPU_LEDGER": "private", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            )
        return self._process


def looks_of(answer: list[list[Any]]) -> list[Any]:
    """``[(steps, wire.Look)]`` from what a child answered to "watch"."""
    import msgspec

    from vramscope import wire

    return [(steps, msgspec.msgpack.decode(base64.b64decode(look), type=wire.Look)) for steps, look in answer]


def main(folder: str) -> None:
    """The child: answers until its input ends. What the loops print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    import torch
    import torch._dynamo
    from corpus import LOOPS
    from marks import write_mended

    torch.set_num_threads(1)
    mended = Path(folder) / "loops"
    if not mended.exists():
        write_mended(LOOPS, mended)
    for line in sys.stdin:
        question = json.loads(line)
        gc.collect()
        if os.environ.get("LEAKS_FREEZE") != "0":
            # The 300,000 objects of imported libraries are no part of a loop; without them a collection takes 1 ms, not 200.
            gc.freeze()
        try:
            reply = {"result": answer(question, mended if question["mended"] else LOOPS)}
        except Exception as error:
            import traceback

            reply = {"error": "".join(traceback.format_exception(error))}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def answer(question: dict[str, Any], folder: Path) -> Any:
    import msgspec
    import torch
    from corpus import load
    from meter import weigh
    from watched import watch

    loop, device = load(question["loop"], folder), question["device"]
    torch.manual_seed(0)
    if question["what"] == "weigh":
        return [dataclasses.asdict(reading) for reading in weigh(loop, device, collect=question["collect"])]
    if question["what"] == "watch":
        encode = msgspec.msgpack.Encoder().encode
        return [[entry["steps"], base64.b64encode(encode(entry["look"])).decode()] for entry in watch(loop, device)]
    raise ValueError(f"what: {question['what']!r} is neither weigh nor watch")


if __name__ == "__main__":
    main(sys.argv[1])
