"""How many samples an optimizer step sees: batch times accumulation times ranks, as far as each is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_BATCH: Final = ("per_device_train_batch_size", "micro_batch_size", "per_device_batch_size", "batch_size")
_ACCUMULATION: Final = (
    "gradient_accumulation_steps",
    "accumulate_grad_batches",
    "gradient_accumulation",
    "accumulation_steps",
)
_LENGTH: Final = ("sequence_length", "seq_length", "max_seq_length", "max_length", "block_size")


@dataclass(frozen=True)
class BatchSize:
    """None: not known."""

    samples: int | None
    """a forward pass, on one rank"""
    accumulation: int | None
    """backward passes an optimizer step"""
    ranks: int | None
    length: int | None
    """tokens a sample"""
    seen: int | None = None
    """samples an optimizer step, as the agent saw them: it knows which ranks share a batch"""

    @property
    def effective(self) -> int | None:
        """Samples an optimizer step."""
        if self.seen is not None:
            return self.seen
        if self.samples is None or self.accumulation is None or self.ranks is None:
            return None
        return self.samples * self.accumulation * self.ranks


def batch_of(run: Mapping[str, Any]) -> BatchSize:
    """From what was seen of the run (its techniques), else from its configuration. ``run``: as GET /runs/RUN tells it."""
    details: dict[str, Mapping[str, Any]] = {}
    for told in run["techniques"] or ():
        details.setdefault(str(told["kind"]), told.get("detail") or {})
    config = {str(name).rpartition(".")[2]: value for name, value in run["config"].items()}
    batch = details.get("batch", {})
    accumulation = _first(details.get("gradient_accumulation", {}), ("micro_steps",)) or _first(config, _ACCUMULATION)
    if accumulation is None and run["techniques"] is not None and "gradient_accumulation" not in details:
        accumulation = 1  # it was looked for, and is not there
    return BatchSize(
        samples=_first(batch, _BATCH) or _first(config, _BATCH),
        accumulation=accumulation,
        ranks=run["world_size"],
        length=_first(batch, _LENGTH) or _first(config, _LENGTH),
        seen=_first(batch, ("effective_batch_size",)),
    )


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these that is a whole number above zero."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
