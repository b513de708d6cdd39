"""A server with four runs whose times, names and numbers are always the same, and with one snapshot file."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "pages"))
sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

import test_oom_page
from profile_maker import a_profile
from running import RunningServer
from snapshot_maker import snapshot_of, with_private_pool
from window_maker import leaking, training
from wire_maker import GIB, Agent, leak, scan

from vramscope.protocol import messages
from vramscope.protocol.oom_record import SURVIVED_EVENT
from vramscope.protocol.oom_record import pack as pack_box
from vramscope.protocol.profile import pack as pack_profile
from vramscope.protocol.window import pack as pack_window

START_NS = 1_780_000_000_000_000_000
"""When the first run began; the others began a day later each."""
DAY_NS = 86_400 * 10**9
PLAIN, LEAN, RANKS, DEAD = "plain0000001", "lean00000001", "ranks0000001", "dead00000001"
WINDOWS = {
    PLAIN: {"windowplain1": training(), "windowplain2": leaking()},
    LEAN: {"windowlean01": training(seed=1, layers=8)},
    RANKS: {},
    DEAD: {"windowdead01": training(2, 6, seed=2)},
}
PROFILE, RECORD, LATER_RECORD = "profileplain", "recorddead01", "recorddead02"


def started(data_dir: Path) -> tuple[RunningServer, str]:
    """(the server, the id of the snapshot)."""
    server = RunningServer(data_dir, retention_days=None)
    _plain(server)
    _lean(server)
    _ranks(server)
    _dead(server)
    data = pickle.dumps(with_private_pool(snapshot_of(12, devices=2), 3))
    ident = server.http.post("/snapshots", content=data, params={"name": "a.pickle"}).json()["snapshot"]
    deadline = time.monotonic() + 300
    while server.get(f"/snapshots/{ident}")["state"] not in ("ready", "failed"):
        assert time.monotonic() < deadline, "the snapshot was not converted"
        time.sleep(0.05)
    return server, ident


def _techniques(agent: Agent, *chips: tuple[str, str, dict[str, Any]]) -> messages.Techniques:
    return messages.Techniques(
        time_ns=agent.start_ns,
        step=1,
        techniques=[
            messages.Technique(kind=kind, chip=chip, declared=chip, observed=chip, detail=detail)
            for kind, chip, detail in chips
        ],
        findings=[
            messages.Pitfall(
                kind="eager-attention", text="Attention is eager.", advice="Use sdpa.", file="train.py", line=7
            )
        ],
    )


def _pieces(ident: str, kind: str, data: bytes, **about: Any) -> list[messages.Piece]:
    size = messages.MAX_PIECE_BYTES
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [
        messages.Piece(artifact=ident, kind=kind, number=number, pieces=len(parts), about=about, data=part)
        for number, part in enumerate(parts)
    ]


def _windows(server: RunningServer, agent: Agent) -> None:
    for ident, one in WINDOWS[agent.run].items():
        about = {"device": 0, "first_step": one.first_step, "last_step": one.last_step, "reason": one.reason}
        if one.holdings:
            about["leaks"] = len(one.holdings)
        server.send(agent, *_pieces(ident, "window", pack_window(one), **about))


def _plain(server: RunningServer) -> None:
    """A training with leaks, two windows, a profile and a trace."""
    agent = Agent(
        PLAIN, start_ns=START_NS, project="gpt2", name="plain", tags=["first"], config={"lr": 0.001, "batch_size": 8},
        command=["train.py", "--lr", "0.001"], git_commit="abc1234", host_total_bytes=64 * GIB,
    )  # fmt: skip
    agent.session = "splain000001"
    rows = 40
    floors = [GIB + at * (8 << 20) for at in range(rows)]
    server.send(
        agent,
        agent.samples(rows * 3, process_rss_bytes=3 * GIB, device_used_bytes=5 * GIB, process_device_bytes=4 * GIB,
                      gpu_utilization_percent=80, temperature_celsius=60, power_milliwatts=300_000, host_used_bytes=9 * GIB),
        agent.steps(rows, after_step_bytes=floors, end_allocated_bytes=floors, end_reserved_bytes=4 * GIB, micro_steps=1, watched=1,
                    graphs_alive=list(range(rows)), backward_ns=10**7, optimizer_ns=10**6, data_ns=10**6, agent_ns=10**4,
                    backward_peak_allocated_bytes=3 * GIB, optimizer_peak_allocated_bytes=2 * GIB),
        agent.scalars(loss=[2.5 - at * 0.01 for at in range(rows - 2)] + [None, float("inf")]),
    )  # fmt: skip
    batch = ("batch", "batch 8", {"batch_size": 8})
    server.send(
        agent,
        _techniques(agent, batch, ("optimizer", "AdamW", {"variant": "AdamW"})),
        scan(leak(), leak("overlap", "output", held_bytes=16 << 20, exclusive_bytes=16 << 20), time_ns=START_NS + 3 * 10**9),
        messages.Event(time_ns=START_NS + 2 * 10**9, kind="notice", step=5, data={"text": "a notice"}),
        messages.Overhead(
            seconds_per_step=0.001, fraction=0.01, resolvable=True, noise_fraction=0.002, watched_steps=30,
            unwatched_steps=10, hook_seconds=0.04, sampler_cpu_seconds=0.1, dropped_samples=0,
        ),
    )  # fmt: skip
    _windows(server, agent)
    about = {"first_step": 20, "last_step": 21, "reason": "asked for"}
    server.send(agent, *_pieces(PROFILE, "profile", pack_profile(a_profile()), **about))
    server.send(agent, *_pieces("traceplain01", "trace", b"not really a trace", **about))
    server.send(agent, agent.ended(at=20.0))


def _lean(server: RunningServer) -> None:
    """The same with less: gradient checkpointing, and a lower peak."""
    agent = Agent(
        LEAN, start_ns=START_NS + DAY_NS, project="gpt2", name="lean", tags=["second"],
        jobs=[messages.Job(manager="slurm", id="4249", array="4242_7", partition="a100")],
        config={"lr": 0.002, "batch_size": 8}, command=["train.py", "--lr", "0.002"], git_commit="abc1235",
        allocator_settings="expandable_segments:True",
    )  # fmt: skip
    agent.session = "slean0000001"
    rows = 40
    server.send(
        agent,
        agent.samples(rows),
        agent.steps(rows, peak_allocated_bytes=2 * GIB, peak_reserved_bytes=3 * GIB, duration_ns=12 * 10**7, after_step_bytes=GIB,
                    graphs_alive=0, watched=1),
        agent.scalars(loss=[2.5 - at * 0.012 for at in range(rows)]),
        _techniques(agent, ("batch", "batch 8", {"batch_size": 8}), ("gradient_checkpointing", "checkpointing", {})),
        scan(time_ns=START_NS + DAY_NS + 3 * 10**9),
    )  # fmt: skip
    _windows(server, agent)
    server.send(agent, agent.ended(at=15.0))


def _ranks(server: RunningServer) -> None:
    """Two ranks with two devices each; a failed run of another project."""
    for rank in (0, 1):
        agent = Agent(
            RANKS, rank=rank, world_size=2, devices=2, start_ns=START_NS + 2 * DAY_NS, project="resnet", name="two-ranks",
            host=f"node{rank}", pid=100 + rank, framework="accelerate",
        )  # fmt: skip
        agent.session = f"sranks00000{rank}"
        for device in (0, 1):
            server.send(
                agent,
                agent.samples(20, device=device, allocated_bytes=GIB * (1 + rank + device)),
                agent.steps(10, device=device, peak_allocated_bytes=GIB * (2 + rank + device)),
            )
        server.send(
            agent,
            scan(leak("cycle", "Image.known", held_bytes=GIB >> rank), time_ns=START_NS + 2 * DAY_NS + 10**9, step=9),
        )
        server.send(agent, agent.ended("failed", at=9.0, error_type="ValueError", error_line="a bad value"))


def _dead(server: RunningServer) -> None:
    """Two out-of-memory errors: one that was survived, and the one that ended the run, with a window open."""
    start_ns = START_NS + 3 * DAY_NS
    agent = Agent(DEAD, start_ns=start_ns, project="gpt2", name="dead", tags=[], devices=1)
    agent.session = "sdead0000001"
    server.send(
        agent, agent.samples(60), agent.steps(30), _techniques(agent, ("batch", "batch 64", {"batch_size": 64}))
    )
    _windows(server, agent)
    at_error = start_ns + 40 * 10**9
    # The makers of the page's test ask their module for the time: here it is always the same.
    before, test_oom_page.time = test_oom_page.time, SimpleNamespace(time_ns=lambda: at_error)  # type: ignore[assignment]
    try:
        boxes = [
            test_oom_page.rich_box(RECORD, "windowdead01", window="windowdead01"),
            test_oom_page.box(LATER_RECORD, phase="forward", progress=0.5, step=12, node=None, asked_bytes=GIB,
                              time_ns=at_error - 20 * 10**9),
        ]  # fmt: skip
    finally:
        test_oom_page.time = before
    for box in boxes:
        about = {"time_ns": box.time_ns, "step": box.step, "asked_bytes": box.asked_bytes, "seen_by": box.seen_by}
        fields = {"record": box.record, "asked_bytes": box.asked_bytes}
        server.send(
            agent,
            messages.Event(time_ns=box.time_ns, kind="out_of_memory", step=box.step, data=fields),
            *_pieces(box.record, "oom", pack_box(box), **about),
        )
    survived = {"record": LATER_RECORD}
    server.send(
        agent,
        messages.Event(time_ns=at_error - 19 * 10**9, kind=SURVIVED_EVENT, step=13, data=survived),
        agent.ended(
            "failed",
            at=41.0,
            error_type="OutOfMemoryError",
            error_line="CUDA out of memory. Tried to allocate 4.00 GiB.",
        ),
    )
