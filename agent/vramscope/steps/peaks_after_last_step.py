"""Peaks after the last step that has ended."""

from __future__ import annotations

from vramscope.protocol import messages, series
from vramscope.steps.clock import StepClock
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER


def tails_of(clock: StepClock) -> list[messages.Tail]:
    """Peaks after the last step, by device. From any thread, at the end."""
    if not clock.counters and clock.find_devices is not None:
        clock.find_devices()
    intervals = list(clock.cuts())
    found = []
    for position, counter in enumerate(clock.counters):
        cuts = [(one.phase, one.cuts[position]) for one in intervals if position < len(one.cuts)]
        cuts.append((clock.phase, counter.so_far()))
        phase, _ = max(cuts, key=lambda one: one[1].peak_allocated_bytes)
        in_step = phase in (FORWARD, BACKWARD, OPTIMIZER) if clock.watched else clock.micro_steps > 0
        found.append(
            messages.Tail(
                device=counter.device,
                peak_allocated_bytes=max(cut.peak_allocated_bytes for _, cut in cuts),
                peak_reserved_bytes=max(cut.peak_reserved_bytes for _, cut in cuts),
                phase=series.PHASES[phase] if clock.watched else None,
                step=clock.step + 1 if in_step else None,
            )
        )
    return found
