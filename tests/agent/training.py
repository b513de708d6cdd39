"""Runs small trainings in processes of their own against a collector, and reads what arrived."""

from __future__ import annotations

import os
import sys
import textwrap
from array import array
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm
from collector import Collector

from vramscope.protocol import messages, series

PRELUDE = """
import sys, time, torch
from torch import nn
from vramscope import agent
from vramscope.guard import guard
guard.raise_faults = True
device = "cuda" if torch.cuda.is_available() else "cpu"
"""

LOOP = """
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
def train(steps, micro_steps=1):
    for _ in range(steps):
        for _ in range(micro_steps):
            model(torch.zeros(32, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def environment(collector: Collector, spool: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "VRAMSCOPE_SERVER": collector.url,
        "VRAMSCOPE_SPOOL_DIR": str(spool),
        "HF_HUB_OFFLINE": "1",
        "WANDB_DISABLED": "true",
        **more,
    }


def start(script: str, collector: Collector, spool: Path, *, loop: bool = True, **more: str) -> warm.Program:
    """A python process that runs the script; with ``loop``, a model and ``train(steps, micro_steps)`` are at hand."""
    code = PRELUDE + (LOOP if loop else "") + textwrap.dedent(script)
    return warm.Program(code, env=environment(collector, spool, **more), cwd=spool.parent)


def run(script: str, collector: Collector, spool: Path, *, loop: bool = True, expect: int = 0, **more: str) -> str:
    """Run to the end; its standard error and output together. Fails where the exit code is another."""
    process = start(script, collector, spool, loop=loop, **more)
    out, err = process.communicate(timeout=150)
    assert process.returncode == expect, err[-4000:]
    return err + out


class Arrived:
    """What the collector holds, put in order."""

    def __init__(self, collector: Collector) -> None:
        batches = sorted(collector.stored.values(), key=lambda batch: (batch.session, batch.sequence))
        self.messages = [(batch, message) for batch in batches for message in batch.messages]
        self.runs = {batch.run for batch in batches}
        self.sessions = {batch.session for batch in batches}
        self.ranks = {batch.rank for batch in batches}

    def of(self, kind: type) -> list:
        return [message for _, message in self.messages if isinstance(message, kind)]

    @property
    def attached(self) -> messages.Attached:
        """The newest word of who trains."""
        return self.of(messages.Attached)[-1]

    @property
    def ended(self) -> messages.Ended | None:
        ended = self.of(messages.Ended)
        return ended[-1] if ended else None

    def rows(self, stream: str, rank: int | None = None) -> list[dict[str, int]]:
        """Rows of a stream as dicts of what is known, in order of arrival."""
        rows = []
        for batch, block in self.messages:
            if isinstance(block, messages.Block) and block.stream == stream and rank in (None, batch.rank):
                columns = {name: array("q", column) for name, column in block.columns.items()}
                for position in range(block.rows):
                    row = {name: c[position] for name, c in columns.items() if c[position] != series.UNKNOWN}
                    rows.append({**row, "device": block.device})
        return rows

    def phases(self) -> dict[str, int]:
        """Number of steps in which each phase was seen."""
        seen: defaultdict[str, int] = defaultdict(int)
        for row in self.rows("steps"):
            for phase in series.PHASES:
                if row.get(f"{phase}_ns", 0) > 0:
                    seen[phase] += 1
        return dict(seen)


def told_of(collector: Collector, name: str) -> dict[str, list[tuple[int, float]]]:
    """Of the run of this name: name of the value -> (step, number), in the order of arrival."""
    batches = sorted(collector.stored.values(), key=lambda batch: (batch.session, batch.sequence))
    runs = {b.run for b in batches for m in b.messages if isinstance(m, messages.Attached) and m.name == name}
    assert len(runs) == 1, name
    fields: dict[str, list[tuple[int, float]]] = {}
    for scalars in (scalars for batch in batches if batch.run in runs for scalars in batch.scalars):
        steps, times = array("q", scalars.step), array("q", scalars.time_ns)
        assert len(steps) == len(times) == scalars.rows
        for column, packed in scalars.columns.items():
            for at, step in enumerate(steps):
                if packed[at * 8 : at * 8 + 8] != series.ABSENT:
                    fields.setdefault(column, []).append((step, array("d", packed)[at]))
    return fields
