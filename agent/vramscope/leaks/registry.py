"""Registry of a session's findings: one per holder, updated from scan to scan, and sent as a whole each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope.leaks import leak_fields
from vramscope.leaks.autograd.dropped_graphs import DroppedGraph, GraphOrigin
from vramscope.leaks.autograd.evaluation_graph import UnusedGraph
from vramscope.leaks.autograd.graph_walk import NODE_BYTES
from vramscope.leaks.end_numbers import MemorySinceScan, at_end, has_gone_on
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import MOST_WORDS, HeldMemory
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.peak_effects import IN_HOST_MEMORY, PeakEffects
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.verdict import advice
from vramscope.leaks.verdict.holder_verdict import GROWS, OF_EVALUATIONS, FindingKey, HolderVerdict
from vramscope.leaks.verdict.states import ENDS, HolderState, Reason, Transition
from vramscope.memory.scanned_leak import ScannedLeak
from vramscope.process import frames
from vramscope.protocol import messages
from vramscope.protocol.leak_notes import is_cut, is_on_host, slows_down
from vramscope.protocol.series import OVERLAPS

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval

MOST_LEAKS: Final = 64
MOST_FILLING: Final = 8
DROPPED: Final = "no variable: each batch builds and drops the graph of the output of "
"""Holder of graphs that no variable retains, before the module's name."""


class FindingRegistry:
    """All findings of a session, by kind and holder.

    report      called with a Scan of all findings each time one has changed
    on_new      called with each new finding
    """

    def __init__(
        self,
        clock: StepClock,
        report: Callable[[messages.Scan], None],
        on_new: Callable[[messages.Leak], None] | None = None,
    ) -> None:
        self.retain_graph_at: tuple[str, int, str] | None = None
        """File, line and function of the last backward(retain_graph=True)."""
        self._clock = clock
        self._report = report
        self._on_new = on_new
        self._leaks: dict[FindingKey, messages.Leak] = {}
        self._fullest: dict[FindingKey, messages.Leak] = {}
        """Findings on containers that may be emptied, as of the scan that saw the most."""
        self._filling: dict[FindingKey, messages.Leak] = {}
        """Containers that grew at the newest scan and may fill up. They are reported if they grow until the end."""
        self._filling_before: dict[FindingKey, messages.Leak] = {}
        self._at_once: dict[FindingKey, float] = {}
        """Tensors that each of those gets together."""
        self._recurring: set[FindingKey] = set()
        """Those whose keys come again: the end of the run does not show that they would have grown on."""
        self._closed: dict[FindingKey, messages.ClosedLeak] = {}
        self._reported: set[FindingKey] = set()
        self._frees_graphs_alone: dict[FindingKey, bool] = {}
        """Of each finding with a holder: whether its fix frees the saved tensors of graphs and keeps the tensors themselves."""
        self._effects = PeakEffects(clock)
        self._unwalked_are_kept = False
        self._seconds, self._tensors, self._not_scanned, self._scan_step, self._reason = 0.0, 0, "", 0, ""

    @property
    def names_an_evaluation(self) -> bool:
        """True where a finding already explains graphs that no backward walks."""
        return any(
            leak.kind in ("growing-eval", "no_grad-missing") and key.holder.kind is not HolderKind.STEP_GRAPH
            for key, leak in self._leaks.items()
        )

    def scanned(self, seconds: float, tensors: int, not_scanned: str) -> None:
        """Note the cost and the gaps of the newest scan. They are sent with every message until the next one."""
        self._seconds, self._tensors, self._not_scanned = seconds, tensors, not_scanned[:4096]

    def send(self, reason: str) -> None:
        self._scan_step, self._reason = self._clock.step, reason
        self._send()

    def end(self, memory: MemorySinceScan) -> None:
        """Send the findings with the figures of the end, if memory tells other ones."""
        leaks = at_end(list(self._leaks.values()), memory, self._clock.step)
        if leaks != list(self._leaks.values()):
            self._leaks = dict(zip(self._leaks, leaks, strict=True))
            self._reason += f"; bytes extrapolated to step {self._clock.step} from the memory after each step"
            self._send()

    def report_filling(self, memory: MemorySinceScan) -> None:
        """Report what might have filled up and grew until now, but no data of a training and no results of inference on a host."""
        data = {k for k, leak in self._filling.items() if leak.per != "step" and (self._clock.step or is_on_host(leak))}
        filling = {key: leak for key, leak in self._filling.items() if key not in self._recurring | data}
        if not filling:
            return
        self._filling = {key: leak for key, leak in self._filling.items() if key not in filling}
        growing = {**filling, **self._leaks}
        if has_gone_on([*growing.values()], memory, [self._at_once.get(key, 0) for key in growing]):
            for key, leak in filling.items():
                self._put(key, leak)
            self._reason += "; it had not filled up when the run ended"
        self._send()

    def _send(self) -> None:
        self._report(
            messages.Scan(
                time_ns=time.time_ns(),
                step=self._scan_step,
                reason=self._reason,
                seconds=self._seconds,
                tensors=self._tensors,
                not_scanned=self._not_scanned,
                leaks=sorted(self._leaks.values(), key=lambda leak: -leak.held_bytes)[:MOST_LEAKS],
                closed=list(self._closed.values())[-MOST_LEAKS:],
                filling=sorted(self._filling.values(), key=lambda leak: -leak.held_bytes)[:MOST_FILLING],
            )
        )

    def begin_scan(self) -> None:
        """All holders are about to be judged again."""
        self._filling_before, self._filling = self._filling, {}

    def add(self, verdict: HolderVerdict) -> None:
        """Add a finding, or update it."""
        group, holder, kind = verdict.group, verdict.group.holder, verdict.kind
        key = FindingKey(kind, holder.key)
        if verdict.waits is None and not self._says_more(verdict):
            return
        for part in verdict.speaks_for:
            self._close(part, Reason.REPLACED)
        known = self._leaks.get(key) or self._fullest.get(key) or self._filling_before.get(key)
        effect = self._effects.of(verdict, key, known)
        step = self._clock.step
        words = verdict.advice.text
        if effect.words == IN_HOST_MEMORY:
            words = f"it is in host memory and does not affect the GPU; if host memory runs short: {words}"
        leak = group.as_leak(
            kind,
            count=verdict.count,
            first_step=known.first_step if known else step,
            last_step=step,
            age_steps=verdict.age,
            exclusive_bytes=min(verdict.exclusive_bytes, group.held_bytes),
            growth_bytes_per_step=leak_fields.growth_of(verdict),
            per=verdict.per,
            emptied_at=leak_fields.place_in_words(holder.emptied_at if kind in GROWS else None),
            peak_effect_bytes=effect.peak_bytes,
            peak_effect=effect.words,
            advice=words[:MOST_WORDS],
            fix=verdict.advice.fix,
            why=[leak_fields.sent(one) for one in verdict.why],
        )
        is_unknown = kind == "no_grad-missing" and holder.key.kind is HolderKind.UNKNOWN
        if is_unknown and (place := frames.user_line()) is not None:
            file, line, function = place  # where the evaluation runs
            leak = msgspec.structs.replace(leak, file=file, line=line, function=function)
        if verdict.waits in (Reason.MAY_FILL_UP, Reason.SLOWS_DOWN, Reason.IS_CUT):
            (self._recurring.add if verdict.keys_recur else self._recurring.discard)(key)
            self._filling[key], self._at_once[key] = leak, verdict.at_once
            return
        if verdict.waits is not None or verdict.emptied_after is not None:
            if known is not None and known.held_bytes + known.node_bytes > leak.held_bytes + leak.node_bytes:
                leak = msgspec.structs.replace(known, last_step=step, why=leak.why)
            self._fullest[key] = leak
        if verdict.waits is None:
            self._frees_graphs_alone[key] = verdict.advice.freed_bytes < group.held_bytes
            self._put(key, leak_fields.emptied_periodically(leak, verdict.emptied_after))

    @property
    def has_findings(self) -> bool:
        """True while at least one leak is reported."""
        return bool(self._leaks)

    @property
    def has_open_growth(self) -> bool:
        """True while a container grows that may reach a bound later."""
        return not all(slows_down(one) or is_cut(one) for one in self._filling.values()) or any(
            leak.kind == "tensor-growth" and leak.emptied_after is None for leak in self._leaks.values()
        )

    @property
    def names_holders(self) -> bool:
        """True where another scan can measure the bytes of a known finding."""
        return bool(self._frees_graphs_alone)

    def retained_by(self, groups: Sequence[HeldMemory], *, complete: bool) -> list[ScannedLeak]:
        """What each finding retains now, as far as its fix frees it.

        complete   the scan left nothing out: a holder that it did not see retains nothing
        """
        found = []
        for key, graphs_alone in self._frees_graphs_alone.items():
            leak = self._leaks.get(key)
            if leak is None:
                continue
            sizes: Storages = {}
            held = 0
            its = [group for group in groups if group.holder.key == key.holder]
            if not its and not complete:
                continue
            for group in its:
                keeps = group.own if graphs_alone else {}
                sizes |= {
                    storage: size for storage, size in {**group.saved, **group.own}.items() if storage not in keeps
                }
                held += group.saved_bytes if graphs_alone else group.held_bytes
            counted = max(0, held - sum(sizes.values()))
            found.append(ScannedLeak(leak.kind, leak.name, leak.file, leak.line, sorted(sizes), counted))
        return found

    def withdraw(self, reasons: Mapping[HolderKey, Reason]) -> None:
        """Withdraw findings of growing tensors on these holders, which are full, freed, or have a name by now."""
        for holder, reason in reasons.items():
            self._close(FindingKey("tensor-growth", holder), reason)

    def withdraw_used(self, holders: Iterable[HolderKey]) -> None:
        """Withdraw findings of an evaluation on results that a backward pass uses: they are a training's."""
        keys = [FindingKey(kind, holder) for holder in holders for kind in OF_EVALUATIONS]
        closed = [key for key in keys if self._close(key, Reason.BACKWARD_FOLLOWED)]
        if closed:
            self.send("a backward pass uses what was found")

    def withdraw_inference(self) -> set[HolderKey]:
        """A training begins: withdraw the tensors that grew with calls or batches before, its data. Returns their holders."""
        data = {key.holder for key, leak in self._leaks.items() if key.kind == "tensor-growth" and leak.per != "step"}
        self.withdraw(dict.fromkeys(data, Reason.GROWTH_STOPPED))
        return data

    def keep_idle(self, is_idle: Callable[[HolderKey], bool]) -> None:
        """Withdraw findings on optimizers that step again, or are gone."""
        for key in [one for one in self._leaks if one.kind == "idle-optimizer" and not is_idle(one.holder)]:
            self._close(key, Reason.IN_USE_AGAIN)

    def note_emptied(self, cycles: Mapping[HolderKey, int]) -> None:
        """Note the iterations after which these holders are emptied: they do not grow without end."""
        for holder, after in cycles.items():
            for kind in GROWS:
                leak = self._leaks.get(FindingKey(kind, holder))
                if leak is not None and leak.emptied_after != after:
                    self._leaks[FindingKey(kind, holder)] = leak_fields.emptied_periodically(leak, after)

    def add_dropped_graphs(self, graph: UnusedGraph) -> None:
        """Add graphs that no variable retains: each batch builds and drops the graph of this module's output."""
        (module, place, saved_bytes, nodes), step = graph, self._clock.step
        leak = messages.Leak(
            kind="no_grad-missing",
            name=module,
            holder=f"{DROPPED}{module}",
            file=place[0] if place else None,
            line=place[1] if place else None,
            function=place[2] if place else None,
            count=1,
            first_step=step,
            last_step=step,
            held_bytes=saved_bytes,
            exclusive_bytes=saved_bytes,
            node_bytes=nodes * NODE_BYTES,
            peak_effect=leak_fields.NO_STEPS,
            advice=advice.NO_GRAD,
            why=[leak_fields.sent(Transition(HolderState.REPORTED, Reason.GRAPHS_WITHOUT_BACKWARD, step))],
        )
        self._put(FindingKey("no_grad-missing", HolderKey(HolderKind.DROPPED_GRAPH, name=module)), leak)
        self.send("a graph without a backward was measured")

    def add_step_graph(self, found: DroppedGraph) -> None:
        """Add a graph that each step builds and no backward walks. No variable retains it when a scan runs."""
        origin, step = found.origin, self._clock.step
        key = leak_fields.step_graph_key(origin)
        known = self._leaks.get(key)
        words = f"output of {origin.module}" + (
            f", assigned to '{origin.variable}' in {origin.function}()" if origin.variable else ""
        )
        leak = messages.Leak(
            kind="no_grad-missing",
            name=origin.variable or origin.module,
            holder=words,
            chain=[words],
            file=origin.file,
            line=origin.line,
            function=origin.function,
            count=found.graphs,
            first_step=known.first_step if known else step,
            last_step=step,
            held_bytes=found.saved_bytes,
            exclusive_bytes=found.saved_bytes,
            node_bytes=found.nodes * NODE_BYTES,
            peak_effect_bytes=found.effect.peak_bytes,
            peak_effect=found.effect.words,
            advice=advice.unwalked(origin.module),
            why=[leak_fields.sent(Transition(HolderState.REPORTED, Reason.GRAPHS_WITHOUT_BACKWARD, step))],
        )
        self._put(key, leak)
        self.send("a graph without a backward was measured")

    def withdraw_step_graph(self, origin: GraphOrigin) -> None:
        """Withdraw the finding on a graph that a backward has walked after all."""
        if self._close(leak_fields.step_graph_key(origin), Reason.BACKWARD_FOLLOWED):
            self.send("a backward walked a graph that had none before")

    def measure_effects(self, intervals: Sequence[PhaseInterval]) -> None:
        """Note the effect on the peak of the step that has ended."""
        if not self._effects.are_followed:
            return
        for key, effect in self._effects.measured(intervals):
            leak = self._leaks.get(key)
            if leak is not None:
                self._leaks[key] = msgspec.structs.replace(
                    leak, peak_effect_bytes=effect.peak_bytes, peak_effect=effect.words
                )
        self.send("the effect on the peak was measured")

    def _says_more(self, verdict: HolderVerdict) -> bool:
        """False where a known finding covers this one; findings that this one covers are closed."""
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
            # The same evaluation: who keeps its graphs says more than that they are built, and a name more than none.
            for key, leak in list(self._leaks.items()):
                is_step_graph = key.holder.kind is HolderKind.STEP_GRAPH
                if leak.kind == "no_grad-missing" and not is_step_graph and (unwalked or not leak.chain):
                    self._close(key, Reason.REPLACED)
        if kind in ("growing", "growing-eval"):
            for lesser in (*OVERLAPS, "no_grad-missing"):
                self._close(FindingKey(lesser, holder.key), Reason.REPLACED)
        if kind in ("growing", "growing-eval", "tensor-growth"):
            self._close_parts(kind, holder)
        return True

    def _close_parts(self, kind: str, holder: Holder) -> None:
        """Close findings on parts of this holder: in the first epoch `log.epochs[*].losses` grew, later `log.epochs` does."""
        within, step = (f"{holder.name}.", f"{holder.name}["), self._clock.step
        for key, leak in list(self._leaks.items()):
            if leak.kind == kind and leak.name.startswith(within) and leak.last_step < step:
                self._close(key, Reason.REPLACED)

    def _put(self, key: FindingKey, leak: messages.Leak) -> None:
        self._leaks[key] = leak
        self._closed.pop(key, None)
        if key not in self._reported and self._on_new is not None:
            self._reported.add(key)
            self._on_new(leak)

    def _close(self, key: FindingKey, reason: Reason) -> bool:
        """Remove a finding and store why. False where there is none."""
        leak = self._leaks.pop(key, None)
        if leak is None:
            return False
        end = leak_fields.sent(Transition(ENDS[reason], reason, self._clock.step))
        self._closed[key] = messages.ClosedLeak(
            kind=leak.kind, name=leak.name, file=leak.file, line=leak.line, why=[*leak.why, end]
        )
        return True
