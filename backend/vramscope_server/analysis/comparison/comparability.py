"""Reasons why a run is not quite comparable with the baseline: a kind and a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramscope_server.analysis.comparison.batch_size import batch_of
from vramscope_server.analysis.number_format import MIB, amount, count

Run = Mapping[str, Any]
"""A run in the form of GET /runs/RUN."""
Reason = dict[str, str]

FEW_STEPS: Final = 10
STEPS_DIFFER: Final = 0.01
"""Relative difference in steps that does not count: a last partial epoch."""
OTHERS_BYTES: Final = 256 * MIB
"""Memory of other processes on the device from which on it is reported. Less belongs to the driver."""


def reasons(run: Run, baseline: Run) -> list[Reason]:
    """Reasons against comparing a run with the baseline. For the baseline itself: reasons why its values are weak."""
    found = list(_of_itself(run))
    if run is not baseline:
        found += _against(run, baseline)
    return [{"kind": kind, "text": text} for kind, text in found]


def _of_itself(run: Run) -> Iterator[tuple[str, str]]:
    steps = run["steps"] or 0
    if run["state"] == "running":
        yield "running", "still running: the peak may rise"
    elif run["state"] == "failed":
        why = f" ({run['error_type']})" if run["error_type"] else ""
        yield "failed", f"ended with an error{why}: a complete run may need more"
    elif run["state"] == "lost":
        yield "lost", "lost: its end is unknown"
    if not steps:
        yield "steps", "no steps: the required memory is unknown"
    elif steps < FEW_STEPS:
        yield "steps", f"only {count(steps)} {'step' if steps == 1 else 'steps'}: its step time is not reliable"
    bounds = run["lower_bound_steps"]
    if bounds:
        steps_ = f"{count(bounds)} {'step' if bounds == 1 else 'steps'}"
        yield "foreign_reset", f"the peak is a lower bound: other code reset the peak counters in {steps_}"
    if steps and run["peak_allocated_bytes"] is not None and run["sampled_allocated_bytes"] is not None:
        yield "sampled", "the peak is a lower bound: a rank has samples alone"
    odd = (run["loss"] or {}).get("not_finite")
    if odd is not None and odd["ended"]:
        yield "loss", f"the loss is not finite from step {count(odd['step'])} on: the model does not learn"
    others = _highest(run, "peak_other_processes_bytes")
    if others is not None and others >= OTHERS_BYTES:
        yield "tenants", f"other processes used up to {amount(others)} of the device"


def _against(run: Run, baseline: Run) -> Iterator[tuple[str, str]]:
    if _differ(run["device"], baseline["device"]):
        yield "card", f"another device: {run['device']}, the baseline has {baseline['device']}"
    elif _differ(run["capacity_bytes"], baseline["capacity_bytes"]):
        own, other = amount(run["capacity_bytes"]), amount(baseline["capacity_bytes"])
        yield "card", f"a device with {own}, the baseline has {other}"
    if _differ(run["world_size"], baseline["world_size"]):
        yield "ranks", f"{count(run['world_size'])} ranks, the baseline has {count(baseline['world_size'])}"
    if _differ(_torch(run), _torch(baseline)):
        yield "torch", f"PyTorch {_torch(run)}, the baseline has {_torch(baseline)}"
    yield from _batch(run, baseline)
    steps, wanted = run["steps"] or 0, baseline["steps"] or 0
    if steps and wanted and abs(steps - wanted) > STEPS_DIFFER * max(steps, wanted):
        yield "steps", f"{count(steps)} steps, the baseline has {count(wanted)}: wall times are not compared"


def _batch(run: Run, baseline: Run) -> Iterator[tuple[str, str]]:
    own, other = batch_of(run), batch_of(baseline)
    if own.effective is not None and other.effective is not None:
        if own.effective != other.effective:
            yield "batch", f"effective batch {count(own.effective)}, the baseline has {count(other.effective)}"
    else:  # settings whose name contains "batch", whatever they mean
        config, base = run["config"], baseline["config"]
        for name in sorted(name for name in {*config, *base} if "batch" in name.lower()):
            if config.get(name) != base.get(name):
                yield "batch", f"{name} is {config.get(name, 'not set')}, in the baseline {base.get(name, 'not set')}"
    if _differ(own.length, other.length):
        yield "length", f"sequence length {count(own.length)}, the baseline has {count(other.length)}"


def same_steps(run: Run, baseline: Run) -> bool:
    """Whether the wall times of two runs can be compared."""
    ended = run["state"] == baseline["state"] == "finished"
    steps, wanted = run["steps"] or 0, baseline["steps"] or 0
    return bool(ended and steps and abs(steps - wanted) <= STEPS_DIFFER * max(steps, wanted))


def _differ(own: object, other: object) -> bool:
    """Whether two known values differ."""
    return own is not None and other is not None and own != other


def _torch(run: Run) -> str | None:
    return run["ranks"][0]["torch"] if run["ranks"] else None


def _highest(run: Run, name: str) -> int | None:
    known = [rank[name] for rank in run["ranks"] if rank[name] is not None]
    return max(known) if known else None
