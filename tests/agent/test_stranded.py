"""Unusable bytes in a live training: unknown before the first window, then read now and then, and part of what is free."""

import os
from itertools import pairwise

import pytest
import warm
from training import Arrived, run

from vramscope.memory.unusable import layout

pytestmark = pytest.mark.gpu


def test_unusable_is_read_once_a_window_was_recorded(collector, spool) -> None:
    """Fewer steps than a later window waits for, which would be read at once."""
    run("agent.attach(model, interval_ms=20)\nfor _ in range(18): train(1); time.sleep(0.2)", collector, spool)
    arrived = Arrived(collector)
    rows = [row for row in arrived.rows("samples") if row["device"] == 0]
    read = [row for row in rows if "unusable_bytes" in row]
    assert read
    pauses = [(after["time_ns"] - before["time_ns"]) / 1e9 for before, after in pairwise(read)]
    assert all(pause > 0.5 for pause in pauses), "every two seconds, not with each sample"
    assert "unusable_bytes" not in rows[0], "no window had been recorded then"
    assert all(0 < row["unusable_bytes"] <= row["reserved_bytes"] - row["active_bytes"] for row in read)


def test_without_windows_it_stays_unknown(collector, spool) -> None:
    script = "agent.attach(model, interval_ms=20, windows=False)\nfor _ in range(10): train(1); time.sleep(0.05)"
    run(script, collector, spool)
    rows = Arrived(collector).rows("samples")
    assert rows and not any("unusable_bytes" in row for row in rows)


def test_a_history_of_the_user_gets_no_event() -> None:
    import torch

    kept = torch.empty(1 << 20, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        assert layout() is None
        (trace,) = [one for one in torch.cuda.memory._snapshot()["device_traces"] if one] or [[]]
        assert not trace
        assert layout(marks_history=True)
        traces = torch.cuda.memory._snapshot()["device_traces"]
        assert "snapshot" in [event["action"] for one in traces for event in one]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert layout()
    del kept


def test_without_an_allocator_there_is_no_layout() -> None:
    """PyTorch 2.13 crashes if it is asked for its history before."""
    done = warm.run("from vramscope.memory.unusable import layout; print(layout())", env=os.environ)
    assert (done.returncode, done.stdout.strip()) == (0, "None"), done.stderr


def test_on_a_torch_that_gives_no_layout_without_a_history_it_is_read_while_there_is_none(monkeypatch) -> None:
    """As before torch 2.11, whose memory_snapshot() has one parameter. Run on 2.10 too, by hand."""
    import torch

    kept = torch.empty(1 << 20, device="cuda")
    new = layout()
    monkeypatch.setattr(
        torch.cuda, "memory_snapshot", lambda mempool_id=None: torch._C._cuda_memorySnapshot(mempool_id)["segments"]
    )
    assert new and layout() == new
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        assert layout() is None, "it would come with the history"
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert layout() is not None
    del kept
