"""What a session has found so far: one leak a holder, kept up to date from look to look, and sent whole each time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope.leaks.autograd.dropped_graphs import Found, Place
from vramscope.leaks.autograd.graph_walk import NODE_BYTES
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import MOST_WORDS, Group
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.verdict import advice
from vramscope.leaks.verdict.peak_effect import NOT_ON_CPU, Effect, Follower, avoidable_bytes
from vramscope.leaks.verdict.verdict import GROWS, OVERLAPS, FindingKey, Verdict
from vramscope.process import frames
from vramscope.protocol import messages
from vramscope.recording.leaked_addresses import ScannedLeak

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval

MOST_LEAKS: Final = 64
NO_STEPS: Final = "an evaluation makes no steps, so no peak was measured; what its graphs hold would not be there"
AT_ITS_END: Final = "an evaluation makes no steps, so no peak was measured; at its end there would be as much less"
OUTLIVES: Final = "it outlives its {per}, so it is alive at every later peak"
UNTIL_EMPTIED: Final = (
    "it outlives its {per}, so it is alive at every peak until it is emptied, and then as large as this"
)
TO_COME: Final = "measured in the next step"
IN_HOST_MEMORY: Final = "it lies in the host's memory, which grows; no peak of the GPU falls without it"
ON_THE_HOST: Final = "PyTorch counts no peaks on the CPU; what it holds would be free in every later step"
AS_SEEN: Final = (
    "as much as lay there when it was looked at: how much lies there at the peak depends on when the collector comes by"
)


class Findings:
    """All leaks of a session, by kind and holder.

    report   called with a Look that holds all of them, each time something changed
    tell     called with each leak that is new
    """

    def __init__(
        self,
        clock: StepClock,
        report: Callable[[messages.Scan], None],
        tell: Callable[[messages.Leak], None] | None = None,
    ) -> None:
        self.retained: tuple[str, int, str] | None = None
        """file, line and function of the last backward(retain_graph=True)"""
        self._clock = clock
        self._report = report
        self._tell = tell
        self._leaks: dict[FindingKey, messages.Leak] = {}
        self._full: dict[FindingKey, messages.Leak] = {}
        """of what may be emptied yet, as it was seen with the most"""
        self._told: set[FindingKey] = set()
        self._graphs_alone: dict[FindingKey, bool] = {}
        """of each that a holder has: whether its fix lets go what the graphs saved, and keeps the tensors themselves"""
        self._followers: list[tuple[FindingKey, Follower, dict[int, int]]] = []
        self._unwalked_are_kept = False
        self._seconds, self._tensors, self._left_out = 0.0, 0, ""

    @property
    def tell_of_an_evaluation(self) -> bool:
        """Somebody is named already for graphs that nothing walks."""
        return any(
            leak.kind in ("growing-eval", "no_grad-missing") and key.holder.kind is not HolderKind.STEP_GRAPH
            for key, leak in self._leaks.items()
        )

    def looked(self, seconds: float, tensors: int, left_out: str) -> None:
        """What the newest look took, saw, and left out; told with all that is sent until the next."""
        self._seconds, self._tensors, self._left_out = seconds, tensors, left_out[:4096]

    def send(self, reason: str) -> None:
        self._report(
            messages.Scan(
                time_ns=time.time_ns(),
                step=self._clock.step,
                reason=reason,
                seconds=self._seconds,
                tensors=self._tensors,
                not_scanned=self._left_out,
                leaks=sorted(self._leaks.values(), key=lambda leak: -leak.held_bytes)[:MOST_LEAKS],
            )
        )

    def add(self, verdict: Verdict) -> None:
        """Add what was found, or bring up to date what is known."""
        group, holder, kind = verdict.group, verdict.group.holder, verdict.kind
        key = FindingKey(kind, holder.key)
        if not verdict.waits and not self._says_more(verdict):
            return
        for part in verdict.speaks_for:
            self._leaks.pop(part, None)
        known = self._leaks.get(key) or self._full.get(key)
        effect = self._effect(verdict, key, known)
        # (Batches of changing sizes leave more at one look than at the one before.)
        growth = 0.0 if kind in OVERLAPS else verdict.growth
        if growth is None and kind in ("growing", "growing-eval"):
            growth = group.held_bytes / (verdict.age or 1)
        if growth is not None and growth < 0 and kind in ("growing", "growing-eval"):
            growth = None  # a look saw less of a long graph than the one before: how fast it grows is not known
        step = self._clock.step
        words = verdict.advice
        if effect.words == IN_HOST_MEMORY:
            words = f"it is kept on the host, and the card is not affected; where the host's memory would run short: {words}"
        leak = group.as_leak(
            kind,
            count=verdict.count,
            first_step=known.first_step if known else step,
            last_step=step,
            age_steps=verdict.age,
            exclusive_bytes=min(verdict.exclusive_bytes, group.held_bytes),
            growth_bytes_per_step=growth,
            per=verdict.per,
            emptied_at=_in_words(holder.emptied_at if kind in GROWS else None),
            peak_effect_bytes=effect.peak_bytes,
            peak_effect=effect.words,
            advice=words[:MOST_WORDS],
        )
        if (
            kind == "no_grad-missing"
            and holder.key.kind is HolderKind.UNKNOWN
            and (place := frames.user_line()) is not None
        ):
            file, line, function = place  # where the evaluation is at work
            leak = msgspec.structs.replace(leak, file=file, line=line, function=function)
        if verdict.waits or verdict.emptied_after is not None:
            if known is not None and known.held_bytes + known.node_bytes > leak.held_bytes + leak.node_bytes:
                leak = msgspec.structs.replace(known, last_step=step)
            self._full[key] = leak
        if not verdict.waits:
            self._graphs_alone[key] = verdict.freed_bytes < group.held_bytes
            self._put(key, _emptied(leak, verdict.emptied_after))

    @property
    def growth_stands(self) -> bool:
        """Somebody is named for taking more and more, which a bound that is reached later would refute."""
        return any(leak.kind == "tensor-growth" and leak.emptied_after is None for leak in self._leaks.values())

    @property
    def names_holders(self) -> bool:
        """A leak is known whose holdings another look can see."""
        return bool(self._graphs_alone)

    def held_by(self, groups: Sequence[Group], *, whole: bool) -> list[ScannedLeak]:
        """What each leak holds now, as far as its fix lets it go.

        whole   the look left nothing out: a holder that it did not see has let go by itself; else nothing is said of that one
        """
        found = []
        for key, graphs_alone in self._graphs_alone.items():
            leak = self._leaks.get(key)
            if leak is None:
                continue
            sizes: Storages = {}
            held = 0
            its = [group for group in groups if group.holder.key == key.holder]
            if not its and not whole:
                continue
            for group in its:
                keeps = group.own if graphs_alone else {}
                sizes |= {place: size for place, size in {**group.saved, **group.own}.items() if place not in keeps}
                held += group.saved_bytes if graphs_alone else group.held_bytes
            counted = max(0, held - sum(sizes.values()))
            found.append(ScannedLeak(leak.kind, leak.name, leak.file, leak.line, sorted(sizes), counted))
        return found

    def withdraw(self, settled: Iterable[HolderKey]) -> None:
        """Of these holders it was said that they take more and more; they do not any more: a buffer was filling up, or gathered
        what has been let go since, or whom nobody had found has a name by now."""
        for holder in settled:
            self._leaks.pop(FindingKey("tensor-growth", holder), None)

    def note_emptied(self, rounds: Mapping[HolderKey, int]) -> None:
        """These are emptied after so many rounds: they do not grow for ever. (Graphs that were kept once were kept.)"""
        for holder, after in rounds.items():
            for kind in GROWS:
                leak = self._leaks.get(FindingKey(kind, holder))
                if leak is not None and leak.emptied_after != after:
                    self._leaks[FindingKey(kind, holder)] = _emptied(leak, after)

    def add_nobodys(self, module: str, saved_bytes: int, nodes: int) -> None:
        """A graph that no variable holds: what ``module`` gives is built and dropped with each batch."""
        place, step = frames.user_line(), self._clock.step
        leak = messages.Leak(
            kind="no_grad-missing",
            name=module,
            holder=f"nobody: the graph of what {module} gives is built and dropped with each batch",
            file=place[0] if place else None,
            line=place[1] if place else None,
            function=place[2] if place else None,
            count=1,
            first_step=step,
            last_step=step,
            held_bytes=saved_bytes,
            exclusive_bytes=saved_bytes,
            node_bytes=nodes * NODE_BYTES,
            peak_effect=NO_STEPS,
            advice=advice.NO_GRAD,
        )
        self._put(FindingKey("no_grad-missing", HolderKey(HolderKind.DROPPED_GRAPH, name=module)), leak)

    def add_unwalked(self, found: Found) -> None:
        """A graph that each step builds and no backward walks; no variable holds it when a look comes by."""
        place, step = found.place, self._clock.step
        key = _of_place(place)
        known = self._leaks.get(key)
        words = f"what {place.module} gives" + (
            f" for '{place.variable}' in {place.function}()" if place.variable else ""
        )
        leak = messages.Leak(
            kind="no_grad-missing",
            name=place.variable or place.module,
            holder=words,
            chain=[words],
            file=place.file,
            line=place.line,
            function=place.function,
            count=found.graphs,
            first_step=known.first_step if known else step,
            last_step=step,
            held_bytes=found.saved_bytes,
            exclusive_bytes=found.saved_bytes,
            node_bytes=found.nodes * NODE_BYTES,
            peak_effect_bytes=found.effect.peak_bytes,
            peak_effect=found.effect.words,
            advice=advice.unwalked(place.module),
        )
        self._put(key, leak)
        self.send("a graph that nobody walks was measured")

    def withdraw_unwalked(self, place: Place) -> None:
        """What is built there was walked after all."""
        if self._leaks.pop(_of_place(place), None) is not None:
            self.send("a graph that nobody walked before was walked")

    def settle(self, stretches: Sequence[PhaseInterval]) -> None:
        """A step is over: what was followed through it has its effect on the peak."""
        if not self._followers:
            return
        followers, self._followers = self._followers, []
        for key, follower, avoidable in followers:
            leak = self._leaks.get(key)
            if leak is not None:
                effect = follower.effect(stretches, 0, avoidable)
                self._leaks[key] = msgspec.structs.replace(
                    leak, peak_effect_bytes=effect.peak_bytes, peak_effect=effect.words
                )
        self.send("the effect on the peak was measured")

    def _says_more(self, verdict: Verdict) -> bool:
        """False where a leak that is known speaks for this one too; those that it speaks for are forgotten."""
        group, holder, kind = verdict.group, verdict.group.holder, verdict.kind
        unwalked = kind == "growing-eval" or (kind == "growing" and group.saved_bytes > group.own_bytes)
        self._unwalked_are_kept |= unwalked
        if kind == "no_grad-missing" and self._unwalked_are_kept:
            return False
        if kind in OVERLAPS and any(
            FindingKey(more, holder.key) in self._leaks for more in ("growing", "growing-eval")
        ):
            return False
        if unwalked or kind == "no_grad-missing":
            # The same evaluation: what keeps its graphs says more than that they are built, and a name more than none.
            self._leaks = {
                key: leak
                for key, leak in self._leaks.items()
                if leak.kind != "no_grad-missing"
                or key.holder.kind is HolderKind.STEP_GRAPH
                or (not unwalked and leak.chain)
            }
        if kind in ("growing", "growing-eval"):
            for lesser in (*OVERLAPS, "no_grad-missing"):
                self._leaks.pop(FindingKey(lesser, holder.key), None)
        if kind in ("growing", "growing-eval", "tensor-growth"):
            self._forget_part_of(kind, holder)
        return True

    def _forget_part_of(self, kind: str, holder: Holder) -> None:
        """While there was one epoch, `log.epochs[*].losses` took more and more; since there are more of them, `log.epochs` does."""
        within, step = (f"{holder.name}.", f"{holder.name}["), self._clock.step
        for key, leak in list(self._leaks.items()):
            if leak.kind == kind and leak.name.startswith(within) and leak.last_step < step:
                del self._leaks[key]

    def _put(self, key: FindingKey, leak: messages.Leak) -> None:
        self._leaks[key] = leak
        if key not in self._told and self._tell is not None:
            self._told.add(key)
            self._tell(leak)

    def _effect(self, verdict: Verdict, key: FindingKey, known: messages.Leak | None) -> Effect:
        if verdict.kind == "tensor-growth" and verdict.emptied_after is not None and verdict.per == "batch":
            return Effect(None, AT_ITS_END)
        if verdict.kind in ("growing", "growing-eval", "tensor-growth", "cycle") and not self._clock.counters:
            return Effect(None, ON_THE_HOST)
        if verdict.kind in ("tensor-growth", "cycle") and verdict.group.on_cpu and not verdict.group.graphs:
            return Effect(0, IN_HOST_MEMORY)
        if verdict.kind == "cycle":
            outlives = verdict.group.holder.key.kind is HolderKind.CREATE_GRAPH
            return Effect(verdict.freed_bytes, OUTLIVES.format(per=verdict.per) if outlives else AS_SEEN)
        if verdict.kind in ("growing", "growing-eval", "tensor-growth"):
            return Effect(verdict.freed_bytes, OUTLIVES.format(per=verdict.per))
        if verdict.kind == "no_grad-missing":
            return Effect(None, NO_STEPS)
        if not self._clock.counters:
            return NOT_ON_CPU
        if len(self._clock.counters) == 1:
            things = [thing for reference in verdict.group.references if (thing := reference()) is not None]
            if things:
                follower = Follower(things, verdict.group.held_bytes, self._clock.mark)
                group = verdict.group
                avoidable = avoidable_bytes(
                    things,
                    group.held_bytes,
                    read_late=group.holder.read_late,
                    before_backward=verdict.kind == "overlap" and not group.scalars,
                )
                self._followers.append((key, follower, avoidable))
        if known is not None:
            return Effect(known.peak_effect_bytes, known.peak_effect)
        return Effect(None, TO_COME)


def _emptied(leak: messages.Leak, after: int | None) -> messages.Leak:
    """The same, where it is known that it is emptied after so many rounds."""
    if after is None:
        return leak
    effect = Effect(leak.peak_effect_bytes, leak.peak_effect)
    if leak.peak_effect == OUTLIVES.format(per=leak.per):
        in_steps = leak.kind != "growing-eval"
        effect = effect._replace(words=UNTIL_EMPTIED.format(per=leak.per)) if in_steps else Effect(None, NO_STEPS)
    return msgspec.structs.replace(
        leak,
        emptied_after=after,
        growth_bytes_per_step=0.0,
        peak_effect_bytes=effect.peak_bytes,
        peak_effect=effect.words,
    )


def _in_words(place: tuple[str, int, str] | None) -> str:
    if place is None:
        return ""
    file, line, function = place
    at = f"{file.replace(os.sep, '/').rpartition('/')[2]}:{line}"
    return at if function.startswith("<") else f"{function}() ({at})"


def _of_place(place: Place) -> FindingKey:
    return FindingKey(
        "no_grad-missing", HolderKey(HolderKind.STEP_GRAPH, place.module, place.file, path=(str(place.line),))
    )
