"""Run a loop as a session would watch it, and keep each scan, the step of each, and the windows."""

from __future__ import annotations

import contextlib
import gc
import io
from typing import Any

from meter import Steps, warm

from vramscope.protocol import messages


def watch(loop: Any, device: str, *, windows: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Each scan in order, ``{"steps": done by then, "scan": messages.Scan}``; and, where they are wanted, of found leaks the
    recorded ``windows``, the steps done at each scan within one (``looked_at``), and what was allocated before the loop.

    Raises what the detector raises.
    """
    from vramscope.guard import guard
    from vramscope.integrations import plain
    from vramscope.integrations.extensions import extend
    from vramscope.leaks.detector import LeakDetector
    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.recording.plan import FIRST, WindowPlan
    from vramscope.recording.recorder import WindowRecorder
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks
    from vramscope.transport.ring import Ring

    guard.raise_faults = True
    gc.collect()
    scans: list[dict[str, Any]] = []
    steps, clock = Steps(), StepClock()

    def report(scan: messages.Scan) -> None:
        scans.append({"steps": steps.count, "scan": scan})

    before_bytes = 0
    if device == "cuda":
        before_bytes = warm(device)
        clock.watch(share_peak_counters().watch(0))
    hooks = LoopHooks(clock)
    extend(hooks)
    ring, plan = Ring(), WindowPlan()
    plan.mark_started(FIRST)
    looked_at: list[int] = []

    class Noting(WindowRecorder):
        def held(self, seen: Any) -> None:
            looked_at.append(steps.count)
            super().held(seen)

    recorder = Noting(clock, ring, roots=hooks.roots, optimizers=hooks.optimizers, pace_s=0.0, plan=plan)
    detector = LeakDetector(clock, report=report, tell=lambda leak: recorder.leak_found())
    hooks.graphs = detector
    hooks.install()
    plain.connect(None, hooks)
    if windows:
        recorder.begin()
        detector.questions.recording = recorder
    try:
        with steps.watched(), contextlib.redirect_stdout(io.StringIO()):
            loop(device)
        detector.report_filling()
    finally:
        recorder.close()
        hooks.remove()
        gc.collect()
    recorded: dict[str, list[bytes]] = {}
    for message in ring.take(1 << 30):
        if isinstance(message, messages.Piece):
            recorded.setdefault(message.artifact, []).append(message.data)
    packed = [b"".join(pieces) for pieces in recorded.values()]
    return scans, {"windows": packed, "looked_at": looked_at, "before_bytes": before_bytes}
