"""A mode of the user's sees the operations of the program, and none of a whole session's."""

from __future__ import annotations

import json

import pytest
from training import run

PROGRAM = """
import json, os
from torch.overrides import TorchFunctionMode
class Trace(TorchFunctionMode):
    names = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__qualname__", str(func)) + str(getattr(func, "__self__", "")))
        return func(*args, **(kwargs or {}))
if "ATTACH" in os.environ:
    agent.attach(model)
with Trace():
    train(150)
    time.sleep(0.3)
    train(150)
print(json.dumps({name.partition(" at 0x")[0]: Trace.names.count(name) for name in Trace.names}))
"""


@pytest.mark.gpu
def test_a_mode_sees_nothing_of_the_agent(collector, spool) -> None:
    bare, watched = run(PROGRAM, collector, spool), run(PROGRAM, collector, spool, ATTACH="1")
    assert counted(watched) == counted(bare)


def counted(output: str) -> dict[str, int]:
    calls: dict[str, int] = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return calls
