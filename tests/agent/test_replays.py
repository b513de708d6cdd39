"""Steps that are replays of a CUDA graph: not seen, which is said; told by the training, and then seen."""

from __future__ import annotations

import pytest
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = pytest.mark.gpu

REPLAYED = """
from vramscope.steps.patches import cuda_graphs as replays
replays.SECONDS = 0.0
session = agent.attach(model, interval_ms=20)
train(2)
graph = torch.cuda.CUDAGraph()
buffer = torch.zeros(1000, device="cuda")
with torch.cuda.graph(graph):
    buffer + 1
for _ in range(300):
    graph.replay()
    {each}
agent.detach()
from vramscope.process.watched_calls import is_watched
assert not is_watched(torch.cuda.CUDAGraph.replay)
"""


def test_what_is_replayed_within_a_forward_or_an_evaluation_is_no_step(collector, spool) -> None:
    script = REPLAYED.replace("    graph.replay()", "    with session.phase('eval'): graph.replay()").format(
        each="pass"
    )
    assert "CUDA graphs are replayed" not in run(script, collector, spool)


def notices(arrived: Arrived) -> list[str]:
    return [event.data["text"] for event in arrived.of(messages.Event) if event.kind == "notice"]


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ("pass", True),
        ("session.step()", False),
        ("train(1)", False),
        ("_ == 50 and train(1)", False),
    ],
)
def test_replays_without_steps_are_told_once_with_what_to_say(collector, spool, each: str, expected: bool) -> None:
    printed = run(REPLAYED.format(each=each), collector, spool)
    seen = [text for text in notices(Arrived(collector)) if "CUDA graphs are replayed" in text]
    assert len(seen) == expected
    assert printed.count("session.step() after each replay") == expected
