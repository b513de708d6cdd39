"""The diagnosis is there at once. Evidence of the open recording comes later."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "backend"), str(Path(__file__).parents[1] / "pages")]

from running import RunningServer  # noqa: E402
from test_oom_page import box, sent  # noqa: E402
from window_maker import training  # noqa: E402
from wire_maker import Agent, new_id  # noqa: E402

from vramscope.protocol import messages  # noqa: E402
from vramscope.protocol.window import pack  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_the_diagnosis_does_not_wait_for_the_recording(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first answer with replays took 22 s in a server that had compiled nothing yet (load 15)."""
    from vramscope_server.analysis.oom import recording_evidence
    from vramscope_server.analysis.oom.remedies.remedy import Replayed

    agent, record, recording = Agent(), new_id("o"), new_id("w")
    server.send(agent, agent.samples())
    # (Free pieces that would have done: other settings are worth a replay.)
    counters = {"reserved_bytes.all.current": 30 << 30, "active_bytes.all.current": 20 << 30}
    sent(server, agent.run, box(record, window=recording, counters=counters, phase="backward"))
    coming = server.get(f"/oom/{record}")
    assert (coming["pending"], coming["window"], coming["by_site"]) == (True, None, None), "it is on its way"
    assert coming["cause"] == "fragmentation"

    about: dict[str, Any] = {"device": 0, "first_step": 1, "last_step": 3, "reason": "the first steps", "events": 12}
    server.send(
        agent,
        messages.Piece(artifact=recording, kind="window", number=0, pieces=1, about=about, data=pack(training(0))),
    )
    made, asked = recording_evidence.evidence_of, threading.Event()

    def slow(*given: Any) -> recording_evidence.WindowEvidence:
        assert asked.wait(60)
        return replace(made(*given), replayed=[Replayed("expandable_segments:True", True, 0, True)])

    monkeypatch.setattr(recording_evidence, "evidence_of", slow)
    first = server.get(f"/oom/{record}", wait_seconds=0)
    asked.set()
    assert (first["pending"], first["window"], first["by_site"]) == (True, recording, None)
    assert [row["source_words"] for row in first["remedies"] if row["conf"]] == [
        "at most all free blocks; the recording is being replayed"
    ]
    whole = server.get(f"/oom/{record}", wait_seconds=20)
    while whole["pending"]:
        whole = server.get(f"/oom/{record}", wait_seconds=20)
    assert whole["by_site"]
    assert "replayed" in {row["source"] for row in whole["remedies"]}
    assert (whole["cause"], whole["sentence"]) == (first["cause"], first["sentence"])


def test_slow_replays_are_waited_for(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were once given up while the page waited, and the page said that no recording was open."""
    from vramscope_server.analysis.oom import recording_evidence
    from vramscope_server.analysis.oom.remedies.remedy import Replayed

    agent, record, recording = Agent(), new_id("o"), new_id("w")
    server.send(agent, agent.samples())
    counters = {"reserved_bytes.all.current": 30 << 30, "active_bytes.all.current": 20 << 30}
    sent(server, agent.run, box(record, window=recording, counters=counters, phase="backward"))
    about: dict[str, Any] = {"device": 0, "first_step": 1, "last_step": 3, "reason": "the first steps", "events": 12}
    server.send(
        agent,
        messages.Piece(artifact=recording, kind="window", number=0, pieces=1, about=about, data=pack(training(0))),
    )
    made = recording_evidence.evidence_of

    def slow(trace: Any, confs: Any, progress: Any) -> recording_evidence.WindowEvidence:
        for done in range(20):
            progress(done, 20)
            time.sleep(0.05)
        return replace(made(trace, []), replayed=[Replayed("expandable_segments:True", True, 0, True)])

    monkeypatch.setattr(recording_evidence, "evidence_of", slow)
    monkeypatch.setattr(server.services.whatif_jobs, "_abandoned_seconds", 0.3)
    whole = server.get(f"/oom/{record}", wait_seconds=20)
    while whole["pending"]:
        whole = server.get(f"/oom/{record}", wait_seconds=20)
    assert "replayed" in {row["source"] for row in whole["remedies"]}


def test_a_lost_recording_is_not_waited_for(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramscope_server.api.oom import routes

    agent, record = Agent(), new_id("o")
    server.send(agent, agent.samples())
    sent(server, agent.run, box(record, window=new_id("w")))
    assert server.get(f"/oom/{record}")["pending"]
    monkeypatch.setattr(routes, "WINDOW_COMES_NS", 0)
    assert not server.get(f"/oom/{record}")["pending"]
