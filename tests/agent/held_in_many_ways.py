"""A program that holds many tensors in one way and says what looks beside them take: ``python held_in_many_ways.py WAY OBJECTS``.

A process of its own has as many modules and objects each time. On its clock nothing takes time but calls, of Python's functions and
of C's, so it says the same on any machine.
"""

import json
import sys
from collections import deque
from itertools import tee
from types import SimpleNamespace

import torch

from vramscope.leaks.scan import time_budget
from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import Costs

NUMBER = 50_000
CALL_SECONDS = 0.5e-6
SECONDS = 4 * NUMBER * CALL_SECONDS
"""Seconds that a scan may take."""
WHOLE = 1.6
"""Factor on it, because a part that was begun is finished: a container of 2,000 elements, or the tensors that are traced. Calls of
C take five times as long on this clock as in truth, where that is some 10 ms."""
WAYS = {
    # Each once made one part of a scan run on.
    "one_list": lambda: [torch.empty(1) for _ in range(NUMBER)],
    "lists": lambda: {key: [torch.empty(1) for _ in range(100)] for key in range(NUMBER // 100)},
    "records": lambda: [{"loss": torch.empty(1), "step": step} for step in range(NUMBER)],
    "variables": lambda: [SimpleNamespace(**{f"loss{key}": torch.empty(1)}) for key in range(NUMBER)],
    "nobody's": lambda: tee(torch.empty(1) for _ in range(NUMBER)),
}
OBJECTS = {"passed over": 0.0, "reached from variables": 1.0}
"""Seconds of one pass over all objects, for each of them."""


class Work:
    """The clock."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        return self.calls * CALL_SECONDS

    def __enter__(self) -> "Work":
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: object, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")


def main(way: str, objects: str) -> None:
    """Prints (seconds in all, what was left out) of three looks, one behind the other."""
    kept = WAYS[way]()
    if way == "nobody's":
        deque(kept[0], maxlen=0)
    time_budget.ORDINARY = 0
    scanner = Scanner(TensorKinds(), SECONDS)
    scans = []
    with Work() as work:
        scanner._costs = Costs(work)
        scanner._costs.measured(time_budget.PASS, 1, OBJECTS[objects])
        for _ in range(3):
            began = work()
            left_out = scanner.scan(0, lambda optimizer: False, None).not_scanned
            scans.append((work() - began, left_out))
    print(json.dumps(scans))
    assert kept is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
