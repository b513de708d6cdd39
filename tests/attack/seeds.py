"""Valid input of every kind, from which mutated input is made."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import msgspec
from profile_maker import a_profile
from snapshot_maker import snapshot_of, two_sizes, with_private_pool
from test_oom_page import box, rich_box
from window_maker import leaking, training
from wire_maker import GIB, SECOND, Agent, leak, new_id, scan

from vramscope.protocol import messages


def techniques(agent: Agent) -> messages.Techniques:
    return messages.Techniques(
        time_ns=agent.start_ns,
        step=1,
        techniques=[
            messages.Technique(kind="batch", chip="batch 8", declared="8", observed="8", detail={"batch_size": 8}),
            messages.Technique(kind="optimizer", chip="AdamW", observed="AdamW", detail={"variant": "AdamW"}),
        ],
        findings=[messages.Pitfall(kind="trap", text="a trap", advice="use sdpa", file="train.py", line=7)],
    )


def overhead() -> messages.Overhead:
    return messages.Overhead(
        seconds_per_step=0.001, fraction=0.01, resolvable=True, noise_fraction=0.002, watched_steps=30, unwatched_steps=10,
        hook_seconds=0.04, sampler_cpu_seconds=0.1, dropped_samples=0,
    )  # fmt: skip


def batches(agent: Agent) -> list[dict[str, Any]]:
    """The first batches of a run, each as a tree: together they have a message of each type."""
    tail = messages.Tail(device=0, peak_allocated_bytes=9 * GIB, peak_reserved_bytes=9 * GIB, phase="backward")
    event = messages.Event(
        time_ns=agent.start_ns + SECOND, kind="notice", step=5, data={"text": "a notice", "loss": 0.5}
    )
    piece = messages.Piece(artifact=new_id("t"), kind="trace", number=0, pieces=1, about={"device": 0}, data=b"content")
    made = [
        agent.batch(agent.samples(5, gpu_utilization_percent=80, host_used_bytes=GIB), agent.steps(4, peak_phase=3)),
        agent.batch(scan(leak(), leak("overlap", "output"), step=3), techniques(agent), overhead(), event, piece),
        agent.batch(agent.scalars(loss=[2.5, None, float("inf")], lr=[0.1, 0.1, 0.1]), agent.samples(3, at=1)),
        agent.batch(
            agent.steps(3, at=2, first=5),
            agent.ended("failed", error_type="ValueError", error_line="bad", tails=[tail]),
        ),
    ]
    return [msgspec.to_builtins(one, builtin_types=(bytes,)) for one in made]


def artifacts() -> dict[str, list[dict[str, Any]]]:
    """Kinds of artifacts, each with the trees of what is inside some of them."""

    def tree(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
        return found

    return {
        "window": [tree(training(2, 4)), tree(leaking())],
        "profile": [tree(a_profile()), tree(a_profile(device_time=False))],
        "oom": [tree(rich_box("cccc000000000001", None)), tree(box("cccc000000000002"))],
    }


def packed(tree: Any) -> bytes:
    """An artifact as it is sent."""
    return zlib.compress(msgspec.msgpack.encode(tree), 1)


def snapshots() -> list[dict[str, Any]]:
    """Snapshot files as the values that they are pickled from."""
    return [two_sizes(), with_private_pool(snapshot_of(6, devices=2), 2)]


def pickled(tree: Any, protocol: int) -> bytes:
    return pickle.dumps(tree, protocol)
