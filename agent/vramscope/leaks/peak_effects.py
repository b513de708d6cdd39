"""Effects of the fixes on the peak: at once where the kind of the finding says it, otherwise measured in the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.leaks import leak_fields
from vramscope.leaks.holders.key import HolderKind
from vramscope.leaks.verdict.holder_verdict import FindingKey, HolderVerdict
from vramscope.leaks.verdict.peak_effect import NOT_ON_CPU, Effect, PeakFollower, avoidable_bytes
from vramscope.protocol import messages

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval

OUTLIVE_STEPS: Final = ("growing", "growing-eval", "tensor-growth", "idle-optimizer")
AT_ITS_END: Final = "Not measured: an evaluation has no steps. This memory would be free at its end."
TO_COME: Final = "Measured in the next step."
IN_HOST_MEMORY: Final = "It is in host memory, which grows. No GPU peak falls without it."
ON_THE_HOST: Final = "PyTorch counts no peaks on the CPU. This memory would be free in every later step."
AS_SEEN: Final = "Bytes at the last scan. How much exists at the peak depends on when the garbage collector runs."


class PeakEffects:
    """Follows the tensors of new findings through the next step."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._followers: list[tuple[FindingKey, PeakFollower, dict[int, int]]] = []

    @property
    def are_followed(self) -> bool:
        """True if an effect is measured in the step that runs."""
        return bool(self._followers)

    def measured(self, intervals: Sequence[PhaseInterval]) -> Iterator[tuple[FindingKey, Effect]]:
        """Yield the effects that were followed through the step that has ended. ``intervals``: of that step."""
        followers, self._followers = self._followers, []
        for key, follower, avoidable in followers:
            yield key, follower.effect(intervals, 0, avoidable)

    def of(self, verdict: HolderVerdict, key: FindingKey, known: messages.Leak | None) -> Effect:
        """Return the effect of a finding's fix, as far as it is known. Others are followed through the next step."""
        kind, freed_bytes = verdict.kind, verdict.advice.freed_bytes
        outlives = leak_fields.OUTLIVES.format(per=verdict.per)
        if kind == "tensor-growth" and verdict.emptied_after is not None and verdict.per == "batch":
            return Effect(None, AT_ITS_END)
        if kind in ("cycle", *OUTLIVE_STEPS) and not self._clock.counters:
            return Effect(None, ON_THE_HOST)
        if kind in ("tensor-growth", "cycle", "idle-optimizer") and verdict.group.on_cpu and not verdict.group.graphs:
            return Effect(0, IN_HOST_MEMORY)
        if kind == "cycle":
            stays = verdict.group.holder.key.kind is HolderKind.CREATE_GRAPH
            return Effect(freed_bytes, outlives if stays else AS_SEEN)
        if kind in OUTLIVE_STEPS:
            return Effect(freed_bytes, outlives)
        if verdict.kind == "no_grad-missing":
            return Effect(None, leak_fields.NO_STEPS)
        if not self._clock.counters:
            return NOT_ON_CPU
        if len(self._clock.counters) == 1:
            tensors = [tensor for reference in verdict.group.references if (tensor := reference()) is not None]
            if tensors:
                follower = PeakFollower(tensors, verdict.group.held_bytes, self._clock.mark)
                group = verdict.group
                avoidable = avoidable_bytes(
                    tensors,
                    group.held_bytes,
                    read_late=group.holder.read_late,
                    before_backward=verdict.kind == "overlap" and not group.scalars,
                )
                self._followers.append((key, follower, avoidable))
        if known is not None:
            return Effect(known.peak_effect_bytes, known.peak_effect)
        return Effect(None, TO_COME)
