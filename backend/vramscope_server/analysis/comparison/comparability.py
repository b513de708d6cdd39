"""What of a run is not quite comparable with the baseline: each a kind and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramscope_server.analysis.comparison.batch_size import batch_of
from vramscope_server.analysis.units import MIB, amount, count

Run = Mapping[str, Any]
"""as GET /runs/RUN tells it"""
Reason = dict[str, str]

FEW_STEPS: Final = 10
STEPS_DIFFER: Final = 0.01
"""a difference in steps that is none: a last partial epoch"""
OTHERS_BYTES: Final = 256 * MIB
"""of other processes on the card, from which on they are told: less is the driver's own bookkeeping"""


def reasons(run: Run, baseline: Run) -> list[Reason]:
    """Why figures of ``run`` may not be held against those of ``baseline``; of the baseline itself: why they are weak."""
    found = list(_of_itself(run))
    if run is not baseline:
        found += _against(run, baseline)
    return [{"kind": kind, "text": text} for kind, text in found]


def _of_itself(run: Run) -> Iterator[tuple[str, str]]:
    steps = run["steps"] or 0
    if run["state"] == "running":
        yield "running", "it still runs: its peak may rise"
    elif run["state"] == "failed":
        why = f" ({run['error_type']})" if run["error_type"] else ""
        yield "failed", f"it ended by an error{why}: a whole run may need more"
    elif run["state"] == "lost":
        yield "lost", "it was lost: its end is not known"
    if not steps:
        yield "steps", "it has no steps: what it would need is not known"
    elif steps < FEW_STEPS:
        yield "steps", f"it has only {count(steps)} {'step' if steps == 1 else 'steps'}: its step time says little"
    bounds = run["lower_bound_steps"]
    if bounds:
        steps_ = f"{count(bounds)} {'step' if bounds == 1 else 'steps'}"
        yield "foreign_reset", f"its peak is a lower bound: somebody else reset the peak counters in {steps_}"
    odd = (run["loss"] or {}).get("not_finite")
    if odd is not None and odd["ended"]:
        yield "loss", f"its loss is no finite number from step {count(odd['step'])}: it does not learn"
    others = _most(run, "peak_other_processes_bytes")
    if others is not None and others >= OTHERS_BYTES:
        yield "tenants", f"other processes had up to {amount(others)} of its card"


def _against(run: Run, baseline: Run) -> Iterator[tuple[str, str]]:
    if _differ(run["device"], baseline["device"]):
        yield "card", f"another card: {run['device']}, the baseline's {baseline['device']}"
    elif _differ(run["capacity_bytes"], baseline["capacity_bytes"]):
        own, other = amount(run["capacity_bytes"]), amount(baseline["capacity_bytes"])
        yield "card", f"a card of {own}, the baseline's has {other}"
    if _differ(run["world_size"], baseline["world_size"]):
        yield "ranks", f"{count(run['world_size'])} ranks, the baseline {count(baseline['world_size'])}"
    if _differ(_torch(run), _torch(baseline)):
        yield "torch", f"PyTorch {_torch(run)}, the baseline {_torch(baseline)}"
    yield from _batch(run, baseline)
    steps, wanted = run["steps"] or 0, baseline["steps"] or 0
    if steps and wanted and abs(steps - wanted) > STEPS_DIFFER * max(steps, wanted):
        yield "steps", f"{count(steps)} steps, the baseline {count(wanted)}: wall times are not held against each other"


def _batch(run: Run, baseline: Run) -> Iterator[tuple[str, str]]:
    own, other = batch_of(run), batch_of(baseline)
    if own.effective is not None and other.effective is not None:
        if own.effective != other.effective:
            yield "batch", f"effective batch {count(own.effective)}, the baseline {count(other.effective)}"
    else:  # what is called a batch in the configuration, whatever it means there
        config, base = run["config"], baseline["config"]
        for name in sorted(name for name in {*config, *base} if "batch" in name.lower()):
            if config.get(name) != base.get(name):
                yield "batch", f"{name} is {config.get(name, 'not set')}, the baseline's {base.get(name, 'not set')}"
    if _differ(own.length, other.length):
        yield "length", f"sequences of {count(own.length)}, the baseline's {count(other.length)}"


def same_steps(run: Run, baseline: Run) -> bool:
    """Whether their wall times can be held against each other."""
    ended = run["state"] == baseline["state"] == "finished"
    steps, wanted = run["steps"] or 0, baseline["steps"] or 0
    return bool(ended and steps and abs(steps - wanted) <= STEPS_DIFFER * max(steps, wanted))


def _differ(own: object, other: object) -> bool:
    """Only what is known on both sides differs."""
    return own is not None and other is not None and own != other


def _torch(run: Run) -> str | None:
    return run["ranks"][0]["torch"] if run["ranks"] else None


def _most(run: Run, name: str) -> int | None:
    known = [rank[name] for rank in run["ranks"] if rank[name] is not None]
    return max(known) if known else None
