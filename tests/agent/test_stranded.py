"""Stranded bytes in a live training: unknown before the first window, then read now and then, and part of what is free."""

from itertools import pairwise

import pytest
from training import Arrived, run

pytestmark = pytest.mark.gpu


def test_stranded_is_read_once_a_window_was_recorded(collector, spool) -> None:
    """Fewer steps than a later window waits for, which would be read at once."""
    run("agent.attach(model, interval_ms=20)\nfor _ in range(18): train(1); time.sleep(0.2)", collector, spool)
    arrived = Arrived(collector)
    rows = [row for row in arrived.rows("samples") if row["device"] == 0]
    read = [row for row in rows if "stranded_bytes" in row]
    assert read
    pauses = [(after["time_ns"] - before["time_ns"]) / 1e9 for before, after in pairwise(read)]
    assert all(pause > 0.5 for pause in pauses), "every two seconds, not with each sample"
    assert "stranded_bytes" not in rows[0], "no window had been recorded then"
    assert all(0 < row["stranded_bytes"] <= row["reserved_bytes"] - row["active_bytes"] for row in read)


def test_without_windows_it_stays_unknown(collector, spool) -> None:
    script = "agent.attach(model, interval_ms=20, windows=False)\nfor _ in range(10): train(1); time.sleep(0.05)"
    run(script, collector, spool)
    rows = Arrived(collector).rows("samples")
    assert rows and not any("stranded_bytes" in row for row in rows)
