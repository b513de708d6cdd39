"""Reads the process tree of a real DataLoader with two workers; run as a program of its own, which has no other children.

Prints JSON: for each case, the reading before the workers began and the one while their batches wait.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

from vramscope.memory.process_tree import ProcessTree, TreeMemory

MIB = 1 << 20
BATCH = 4 * MIB


class Case(NamedTuple):
    own_bytes: int = MIB
    loaded_bytes: int = 0
    strategy: str = "file_descriptor"


CASES = {
    "small": Case(),
    "named files": Case(strategy="file_system"),
    "large": Case(own_bytes=65 * MIB),
    "loaded": Case(loaded_bytes=256 * MIB),
}


class Filling(Dataset[torch.Tensor]):
    """Each worker fills an array of its own with the first sample. All share what the parent has loaded."""

    def __init__(self, own_bytes: int, loaded_bytes: int = 0) -> None:
        self.own_bytes, self.own = own_bytes, bytearray()
        self.loaded = bytearray(b"1") * loaded_bytes

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.own:
            self.own = bytearray(b"1") * self.own_bytes
        return torch.ones(BATCH, dtype=torch.uint8)


def waiting(dataset: Filling) -> TreeMemory:
    """Read the tree once two workers have prepared all batches that they may prepare, two each."""
    batches = iter(
        DataLoader(dataset, batch_size=None, num_workers=2, prefetch_factor=2, multiprocessing_context="fork")
    )
    first = next(batches)
    tree, readings = ProcessTree(), [TreeMemory()]
    while len(readings) < 5 or len({read.shared_memory_bytes for read in readings[-4:]}) > 1:
        time.sleep(0.1)
        readings.append(tree.read(os.getpid()))
    del first, batches
    return readings[-1]


if __name__ == "__main__":
    readings = {}
    for name, case in CASES.items():
        multiprocessing.set_sharing_strategy(case.strategy)
        shared_before = ProcessTree().read(os.getpid()).shared_memory_bytes
        readings[name] = (shared_before, waiting(Filling(case.own_bytes, case.loaded_bytes))._asdict())
    print(json.dumps(readings))
