"""Effective batch size: batch times accumulation times ranks, as far as each is known."""

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
    """Parts of the effective batch size; None if unknown."""

    samples: int | None
    """Samples per forward pass on one rank."""
    accumulation: int | None
    """Backward passes per optimizer step."""
    ranks: int | None
    length: int | None
    """Tokens per sample."""
    observed: int | None = None
    """Samples per optimizer step as the agent observed them. It knows which ranks share a batch."""

    @property
    def effective(self) -> int | None:
        """Samples per optimizer step."""
        if self.observed is not None:
            return self.observed
        if self.samples is None or self.accumulation is None or self.ranks is None:
            return None
        return self.samples * self.accumulation * self.ranks


def batch_of(run: Mapping[str, Any]) -> BatchSize:
    """Batch size of a run in the form of GET /runs/RUN: from its observed techniques, else from its configuration."""
    details: dict[str, Mapping[str, Any]] = {}
    for technique in run["techniques"] or ():
        details.setdefault(str(technique["kind"]), technique.get("detail") or {})
    config = {str(name).rpartition(".")[2]: value for name, value in run["config"].items()}
    batch = details.get("batch", {})
    accumulation = _first(details.get("gradient_accumulation", {}), ("micro_steps",)) or _first(config, _ACCUMULATION)
    if accumulation is None and run["techniques"] is not None and "gradient_accumulation" not in details:
        accumulation = 1  # the agent looked for it and did not find it
    return BatchSize(
        samples=_first(batch, _BATCH) or _first(config, _BATCH),
        accumulation=accumulation,
        ranks=run["world_size"],
        length=_first(batch, _LENGTH) or _first(config, _LENGTH),
        observed=_first(batch, ("effective_batch_size",)),
    )


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """First of these values that is a positive integer."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
