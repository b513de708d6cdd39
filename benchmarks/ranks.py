"""Trains as one rank with the agent, allocates and frees a block, and writes down when.

    torchrun --nproc-per-node 8 benchmarks/ranks.py SERVER SECONDS FILE

pages.py compares these times with the times at which a page shows the changes. Rank 0 writes FILE: one time a line, in seconds
since the epoch. Each step is that of a tiny MLP, and then sleeps, because eight ranks share two cores.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import torch

from vramscope import agent

BLOCK_BYTES = 64 << 20
STEP_SECONDS = 0.05


def main() -> None:
    server, seconds, file = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = agent.attach(model, server=server, name="ranks")
    assert session is not None
    draw = random.Random(rank)
    block: torch.Tensor | None = None
    moments: list[float] = []
    end = time.monotonic() + seconds
    change = time.monotonic() + 1
    while time.monotonic() < end:
        model(torch.ones(8, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if time.monotonic() >= change:
            # at no fixed distance, so that no period of the sampler's, the sender's or the page's is met each time
            change = time.monotonic() + draw.uniform(0.7, 1.3)
            block = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device) if block is None else None
            moments.append(time.time())
            if rank == 0:
                file.write_text("".join(f"{moment!r}\n" for moment in moments))
        time.sleep(STEP_SECONDS)


if __name__ == "__main__" and sys.argv[1:]:
    main()
