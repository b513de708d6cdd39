"""What follows the last step is reported at the end from the allocator's own peak counters, which stay as the user expects."""

from __future__ import annotations

import json

import pytest
from training import Arrived, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]

EVALUATE = """
def evaluate(rows):
    model.eval()
    with torch.no_grad():
        model(torch.zeros(rows, 64, device=device))
    model.train()
"""
TELL = "import json; print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))"


def tail(script: str, collector, spool, expect: int = 0):
    """The session's only tail, and the peaks that PyTorch told the program of last."""
    output = run(EVALUATE + script, collector, spool, expect=expect)
    [found] = Arrived(collector).ended.tails
    seen = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return found, seen[-1] if seen else None


def test_an_evaluation_behind_the_last_step_is_told_to_the_byte(collector, spool) -> None:
    script = f"agent.attach(model)\ntrain(5)\nevaluate(100_000)\nagent.detach()\n{TELL}"
    found, output = tail(script, collector, spool)
    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == output
    assert (found.phase, found.step) == ("eval", None)
    assert max(row["peak_allocated_bytes"] for row in Arrived(collector).rows("steps")) < output[0] / 4


def test_a_session_with_no_step_has_its_peak_too_and_the_users_reset_takes_nothing_of_it(collector, spool) -> None:
    script = f"agent.attach(model)\nevaluate(100_000)\n{TELL}\ntorch.cuda.reset_peak_memory_stats()\nevaluate(10)\nagent.detach()"
    found, output = tail(script, collector, spool)
    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == output
    assert (found.phase, found.step) == ("eval", None)


def test_the_step_that_did_not_end_is_named(collector, spool) -> None:
    script = "agent.attach(model)\ntrain(3)\nmodel(torch.zeros(50_000, 64, device=device)).sum().backward()\nraise OSError('no')"
    found, _ = tail(script, collector, spool, expect=1)
    assert (found.phase, found.step) == ("backward", 4)
    assert found.peak_allocated_bytes > 50_000 * 256 * 4


def test_nothing_behind_the_last_step_is_no_higher_than_what_is_held(collector, spool) -> None:
    found, _ = tail("agent.attach(model)\ntrain(3)\nagent.detach()", collector, spool)
    assert found.peak_allocated_bytes == Arrived(collector).rows("steps")[-1]["end_allocated_bytes"]
