"""A program whose address space is limited, and that has used all of it: the error is recorded and explained all the same."""

from __future__ import annotations

import pytest
from training import Arrived, run

from vramscope.protocol import messages

FILLS = """
import resource
agent.attach(model)
train(3)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
kept = []
while True:
    kept.append(bytearray({chunk}))
"""


@pytest.mark.parametrize("chunk", [1 << 16, 2000])
def test_the_error_is_explained_though_no_memory_is_left(collector, spool, chunk) -> None:
    output = run(FILLS.format(chunk=chunk), collector, spool, expect=1)
    assert "failed inside" not in output
    assert "vramscope: The host's memory ran out, not the GPU's." in output
    arrived = Arrived(collector)
    assert (arrived.ended.state, arrived.ended.error_type) == ("failed", "MemoryError")
    assert "oom" in [piece.kind for piece in arrived.of(messages.Piece)]
