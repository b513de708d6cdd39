"""A training that a real kernel ends for want of memory, in a control group of its own: ``python tests/oom/real_kill.py``.

A word: MiB that a step keeps, 20; right at 20, 100 and 200 of a limit of 2 GiB, while at 300 nothing is said. Run by hand, as
root, on a Linux where the memory controller can be used; the suite reads recorded files instead (test_host.py).
The group lies below this process's own and is taken away again. Exit code 1 where the verdict was wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "backend")]

from running import RunningServer  # noqa: E402

from vramscope.memory.cgroup import _WORDS, _groups  # noqa: E402

LIMIT_BYTES = 2 << 30
TRAINING = """
import os, sys, time
import torch
from vramscope import agent
agent.attach(run_id=os.environ["RUN"], project="kill")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
while True:
    model(torch.randn(64, 256)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    kept.append(bytearray(os.urandom(1 << 20) * int(sys.argv[1])))
    time.sleep(0.1)
"""


def main() -> int:
    own = next(_groups(Path("/proc")))
    group = own.folder / f"vramscope-{os.getpid()}"
    group.mkdir()
    words = _WORDS[own.version]
    if own.version == 2:
        (own.folder / "cgroup.subtree_control").write_text("+memory")
    (group / words.limit).write_text(str(LIMIT_BYTES))
    run = uuid.uuid4().hex[:16]
    try:
        with tempfile.TemporaryDirectory() as folder:
            server = RunningServer(Path(folder) / "server", lost_after_seconds=2)
            training = subprocess.Popen(
                [sys.executable, "-c", TRAINING, *(sys.argv[1:] or ["20"])],
                env={**os.environ, "VRAMSCOPE_SERVER": server.url, "VRAMSCOPE_SPOOL_DIR": folder, "RUN": run},
                preexec_fn=lambda: (
                    (group / "cgroup.procs").write_text(str(os.getpid())) and None
                ),  # (it joins, then becomes Python)
            )
            code = training.wait(300)
            print(
                "ended with",
                signal.Signals(-code).name if code < 0 else code,
                (group / words.kills).read_text().split(),
            )
            answer = server.get(f"/runs/{run}/oom")
            while answer["state"] != "lost":
                time.sleep(0.2)
                answer = server.get(f"/runs/{run}/oom")
            print(answer["vanished"] or "nothing is said of it")
            server.stop()
    finally:
        group.rmdir()
    return 0 if code == -signal.SIGKILL and answer["vanished"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
