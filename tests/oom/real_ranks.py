"""Three ranks under a real torchrun, of which the second runs out of memory: ``python tests/oom/real_ranks.py [--at-once]``.

torchrun ends the others within a second, and they say how they stood. With ``--at-once`` the one that runs out kills them itself,
within some ms: then their newest samples stand in the place of their records. Run by hand; the suite has ranks that need no
launcher (test_bystanders.py). Exit code 1 where a rank is not reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "backend")]

from running import RunningServer  # noqa: E402

TRAINING = """
import os, signal, time
from pathlib import Path
import torch, torch.distributed
from torch import nn
from vramscope import agent
agent.attach(run_id=os.environ["RUN"], project="ranks")
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
Path(f"pid{rank}").write_text(str(os.getpid()))
with torch.device("cuda"):
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(400):
    rows = 64000 if (rank, step) == (1, 30) else 4000 + 500 * rank
    try:
        model(torch.empty(rows, 1024, device="cuda")).square().mean().backward()
    except torch.OutOfMemoryError:
        for other in (0, 2) if "AT_ONCE" in os.environ else ():
            os.kill(int(Path(f"pid{other}").read_text()), signal.SIGKILL)
        raise
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


def main() -> int:
    at_once = "--at-once" in sys.argv
    run = uuid.uuid4().hex[:16]
    with tempfile.TemporaryDirectory() as folder:
        server = RunningServer(Path(folder) / "server", lost_after_seconds=2)
        script = Path(folder) / "train.py"
        script.write_text(TRAINING)
        env = {**os.environ, "VRAMSCOPE_SERVER": server.url, "VRAMSCOPE_SPOOL_DIR": f"{folder}/spool", "RUN": run}
        env |= {"EMULATED_GPU_TOTAL_MEM": "2G", "EMULATED_GPU_LEDGER": "private", "OMP_NUM_THREADS": "1"}
        env |= {"AT_ONCE": "1"} if at_once else {}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)]
        subprocess.run(command, env=env, cwd=folder, timeout=300, capture_output=True, check=False)
        rows, deadline = [], time.monotonic() + 10
        while len([row for row in rows if row["as_of_seconds"] is not None]) < 3 and time.monotonic() < deadline:
            fatal = server.get(f"/runs/{run}/oom")["fatal"]
            rows = [] if fatal is None else server.get(f"/oom/{fatal}", wait_seconds=0)["ranks"]
            time.sleep(0.1)
        server.stop()
    for row in rows:
        print(
            {
                name: row[name]
                for name in ("rank", "ran_out", "as_of_seconds", "step", "phase", "line", "allocated_bytes")
            }
        )
    seen = [row["rank"] for row in rows if row["allocated_bytes"] and (at_once or row["record"])]
    return 0 if seen == [0, 1, 2] and (not at_once or [row["ran_out"] for row in rows] == [None, True, None]) else 1


if __name__ == "__main__":
    sys.exit(main())
