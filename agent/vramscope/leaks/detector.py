"""Watches for graphs and tensors that outlive their step, decides when to look closer, and reports what a look found.

The hooks of ``steps/hooks.py`` tell it of backwards, forwards, batches and steps; that costs some µs each. A look costs up to
a quarter of a second, so there are few: three early ones (what overlaps shows in any step), then on suspicion, ever rarer.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vramscope.leaks import baseline
from vramscope.leaks.autograd.dropped_graphs import UnwalkedInSteps
from vramscope.leaks.autograd.graph_walk import Budget, walk
from vramscope.leaks.autograd.saved_tensors import saved
from vramscope.leaks.autograd.sentinels import NewestNode, Outputs, Sentinels
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.policy import POLICY
from vramscope.leaks.registry import Findings
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.call_arguments import given_storages, is_given
from vramscope.leaks.scan.first_call import FirstCall
from vramscope.leaks.scan.scanner import AGAIN_SECONDS, LOOK_SECONDS, Scanner
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.schedule import Rounds
from vramscope.leaks.verdict.judge import Judge, material_bytes
from vramscope.leaks.verdict.scan_context import Moment
from vramscope.process import frames, type_info
from vramscope.protocol import messages
from vramscope.steps.events import RetentionRecording
from vramscope.steps.phase import EVAL, FORWARD
from vramscope.steps.records import AfterStep

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval


_allocated_bytes = attrgetter("allocated_bytes")


class LeakDetector:
    """One a session. All calls come on the training thread, and none of them keeps a tensor or a module.

    report   called with a Look each time something was looked at
    """

    def __init__(
        self,
        clock: StepClock,
        report: Callable[[messages.Scan], None],
        *,
        seconds: float = LOOK_SECONDS,
        tell: Callable[[messages.Leak], None] | None = None,
    ) -> None:
        import torch

        self._clock = clock
        self._findings = Findings(clock, report, tell)
        self._kinds = TensorKinds()
        self._looker = Scanner(self._kinds, seconds)
        self._sequence: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
        self._cuda = torch.cuda
        self._plainly = torch._C.DisableTorchFunctionSubclass
        self._sentinels = Sentinels()
        self._outputs = Outputs()
        self._unwalked = UnwalkedInSteps(
            clock, self._kinds, self._looker.chains, self._findings.add_unwalked, self._findings.withdraw_unwalked
        )
        self._first_call = FirstCall(self._part_called)
        self._unheard = False
        """the last graph was built with no call of a root module"""
        self._floor = baseline.Floor()
        self._rounds = Rounds()
        self._judge = Judge(self._round)
        self._boundaries: deque[int] = deque(maxlen=512)
        self._forwards: deque[int] = deque(maxlen=512)
        self._batch_sequence = 0
        self._look_when_built = POLICY.dropped_graphs
        self._will_train = False
        """nothing trains yet, and an optimizer waits"""
        self._last_walk = -1
        self._stepped = False
        self._steps_are_told = False
        """an optimizer has stepped, or somebody has told that a step was over"""
        self._after = 0
        self._optimizers: dict[int, int] = {}
        self._stepped_once: dict[int, weakref.ref[Any]] = {}
        """optimizers, by id"""
        self._stepping = 0
        self._training_mode = True
        self._pass_ended = False
        self._walk_at_batch = -1
        self._trained = False
        """a backward ran between the last two batches that were asked for"""
        self._epoch_ended = 0
        """round in which the last epoch of the training did, as far as is known"""
        self._kept_rounds = 0
        self._old = 0
        self._measured: Storages | None = None
        self._given: Storages = {}
        """what the call is given before which a look is made"""
        self._ages_are_sure = True
        self._differentiable: tuple[str, int, str] | None = None
        """file, line and function of the last backward(create_graph=True)"""
        saved.listen()
        clock.retention = self
        self.recording: RetentionRecording | None = None
        """Recording of allocator history that may ask what the findings retain."""

    # -- what the hooks tell ---------------------------------------------------------------------------------------------

    def before_walk(self, roots_: Any, retain_graph: bool = False, create_graph: bool = False) -> None:
        """A backward (or ``torch.autograd.grad``) begins from these tensors. Some 10 µs: the descent to the oldest node."""
        self._outputs.walked()
        if self._unwalked.follows:
            self._unwalked.before_walk()
        if self._rounds.per != "step":
            self._rounds.count("step")
        self._forwards.clear()
        self._look_when_built = POLICY.dropped_graphs
        if self._stepped:
            # No forward was heard since the step (the whole model is checkpointed, say).
            self._stepped = False
            self._unheard = True
            self._first_call.stop()
            self._look_if_due(fresh=False)
        self._pass_ended = False
        self._last_walk = self._sequence()
        if not self._steps_are_told and not (self._will_train and self._outputs.walks <= POLICY.unstepped_backwards):
            # A loop that updates its weights by hand: each backward ends a round, as far as can be known.
            self._end_round()
        root = roots_ if not isinstance(roots_, (list, tuple)) else roots_[0] if roots_ else None
        if create_graph:
            self._differentiable = frames.user_line()
        if retain_graph:
            self._findings.retained = frames.user_line()
        if root is not None and self._kinds.owns_memory(type(root)):
            with self._plainly():
                if create_graph and root.device.type != "cpu":
                    self._ages_are_sure = False
                self._sentinels.place(root, self._rounds.number)
                recorder = self.recording
                if recorder is not None and recorder.is_open and self._window_asks and root.grad_fn is not None:
                    needed = walk(root.grad_fn, Budget(self._looker.chains)).saved
                    storages.add(needed, root)  # whoever calls backward has it
                    recorder.needed(needed)

    def stepped(self, optimizer: object) -> None:
        """An optimizer has stepped; of several, each in turn."""
        key = id(optimizer)
        self._stepping += 1
        if self._rounds.per != "step":
            self._rounds.count("step")
        if not self._steps_are_told:
            self._begin_steps()
        known = self._stepped_once.get(key)
        if known is None or known() is not optimizer:
            self._stepped_once = {one: ref for one, ref in self._stepped_once.items() if ref() is not None}
            self._stepped_once[key] = weakref.ref(optimizer)
        self._optimizers[key] = self._stepping
        if len(self._optimizers) > 1:  # those of an earlier fold or phase no longer step
            recent = self._stepping - POLICY.recent_steps
            self._optimizers = {known: last for known, last in self._optimizers.items() if last > recent}
        self._after = key
        self._stepped = True

    def end_step(self, stretches: Sequence[PhaseInterval]) -> AfterStep:
        """A step is over, and these were its stretches. Some 5 µs; on the CPU the C allocator is asked, now and then."""
        self._findings.settle(stretches)
        if self._unwalked.follows:
            self._unwalked.end_step(stretches)
        if not self._steps_are_told:
            self._begin_steps()
        if self._judge.gathered.calls:
            self._judge.gathered.end_step(self._clock, stretches)
        cuts = stretches[-1].cuts
        self._end_round()
        after_step_bytes = self._floor.add(sum(map(_allocated_bytes, cuts)) if cuts else None)
        if self._floor.rises and not self._rounds.look_again_at:  # (else it is known why)
            self._rounds.suspect("what is in use at the end of a step rises")
        if self._unheard and self.is_due:
            self._first_call.listen()
        return AfterStep(self._sentinels.older_than(self._rounds.number), after_step_bytes)

    def _begin_steps(self) -> None:
        """From now on steps end rounds: backwards before the first were its micro-steps, as far as can be known."""
        self._steps_are_told = True
        for _ in range(min(self._rounds.begin_steps(), len(self._boundaries))):
            self._boundaries.pop()

    def _end_round(self, *, stepped: bool = True) -> None:
        is_looked_at = self._rounds.end()
        self._boundaries.append(self._sequence())
        old = self._sentinels.end_round(self._rounds.number - 1)
        self._kept_rounds = self._kept_rounds + 1 if old > self._old or self._sentinels.reach_steps > 1 else 0
        self._old = old
        self._stepped = stepped
        if is_looked_at:
            self._rounds.due = set(self._optimizers) or {self._after}
        if self._kept_rounds >= POLICY.old_graphs:
            self._rounds.suspect("graphs of earlier steps are alive, more from step to step")

    def before_forward(self, training: bool) -> None:
        """A root module is about to be called with gradients on: the best moment for a look, before anything new is built."""
        self._training_mode = training
        if self._unwalked.waits:
            self._unwalked.settle(self._outputs.walks)
        if self._stepped:
            self._stepped = self._unheard = False
            self._look_if_due(fresh=True)
            return
        if self._outputs.dropped or self._outputs.pending:
            self._forwards.append(self._sequence())
            self._judge_evaluation()

    def before_inference(self, args: Any, kwargs: Any) -> None:
        """A root module is about to be called with gradients off. Where nothing trains each call is a round, as far as is known.

        What a call is given for the next one, a cache of keys and values say, grows by design: it is no finding.
        """
        if self._optimizers:
            gathered = self._judge.gathered
            gathered.calls += 1
            if gathered.may_look and gathered.wants_look:
                self._look_given(args, kwargs, self._look_in_evaluation)
            return
        if self._outputs.walks or self._rounds.per == "batch" or self._will_train:
            return
        self._rounds.count("call")
        self._end_round(stepped=False)
        if self._rounds.suspicion or self._rounds.due:
            self._look_given(args, kwargs, lambda: self._look_if_due(fresh=False))

    def _look_given(self, args: Any, kwargs: Any, scan: Callable[[], None]) -> None:
        with self._plainly():
            self._given = given_storages(args, kwargs, self._kinds)
        scan()
        self._given = {}

    def _part_called(self, module: Any) -> None:
        """A part of a model whose own forward is never called."""
        if self._clock.is_training_thread():
            self._first_call.stop()
            if self._stepped:
                self._stepped = False
                self._clock.timed(self._look_first, module.training)
                self._clock.enter(FORWARD)

    def _look_first(self, training: bool) -> None:
        self._training_mode = training
        self._look_if_due(fresh=True)

    def close(self) -> None:
        """The session ends."""
        self._first_call.stop()
        saved.close()

    def after_forward(self, module: Any, args: Any, output: Any) -> None:
        """A root module has answered. Some 2 µs."""
        with self._plainly():
            self._outputs.add(output)
            if self._unwalked.follows and self._clock.is_training_thread():
                self._unwalked.follow(module, args, output, self._outputs.walks)
            if self._measured is not None:
                known, self._measured = self._measured, None
                self._measure(module, output, known)

    def before_batch(self) -> None:
        """The loader is asked for a batch."""
        if self._clock.phase == EVAL and self._optimizers:
            gathered = self._judge.gathered
            gathered.batches += 1
            if gathered.may_look and gathered.wants_look:
                self._look_in_evaluation()
        if not self._optimizers and not self._outputs.walks:
            # Nothing trains here: each batch is a round, as far as can be known.
            self._rounds.count("batch")
            self._end_round(stepped=False)
            if not self._outputs.alive:
                self._look_if_due(fresh=False)
        self._trained, self._walk_at_batch = self._last_walk != self._walk_at_batch, self._last_walk
        now = self._sequence()
        built = now - self._batch_sequence > POLICY.operations_of_a_graph and self._batch_sequence
        if built and not self._stepped and not self._outputs.heard:
            # A model that is no module: graphs were built since the last batch, and what became of them is not known.
            self._forwards.append(now)
            self._judge_evaluation()
        self._batch_sequence = now
        if self._stepped and not self._outputs.alive:
            # No root module was ever heard: this is the boundary then.
            self._look_if_due(fresh=True)
        elif self._pass_ended:
            self._judge_evaluation()

    def after_batches(self, number: int = 0, may_be_epoch: bool = True) -> None:
        """A pass over a loader has ended, of so many batches; ``may_be_epoch``: not if it is known to be an evaluation's."""
        if may_be_epoch and self._trained and not self._clock.is_control_step:
            self.end_epoch()
        elif self._optimizers and self._clock.phase == EVAL and self._judge.gathered.has_ended():
            self._look_in_evaluation(number)
        if len(self._forwards) + 1 >= POLICY.dropped_graphs and self._outputs.pending >= POLICY.dropped_graphs:
            self._pass_ended = True
            if self._judge.waits_for_an_end(evaluating=True):
                self._look_when_built = POLICY.dropped_graphs
            self._judge_evaluation()

    def _look_in_evaluation(self, batches: int = 0) -> None:
        """Of one without gradients. ``batches``: that it had, where it has ended."""
        if self._looker.may_spend():
            why = "an evaluation has ended" if batches else "an evaluation is under way"
            self._look(why, fresh=False, evaluating=False, evaluated=batches or self._judge.gathered.done)

    def _round(self) -> int:
        """The round that a look would be made in: of an evaluation with graphs each batch is one."""
        return self._rounds.number + (len(self._forwards) + 1 if self._forwards else 0)

    def end_epoch(self) -> None:
        """An epoch of the training is over: what is emptied at its end is as full as it gets."""
        self._epoch_ended = self._rounds.number
        if self._judge.waits_for_an_end() and not self._clock.is_control_step and self._looker.may_spend(AGAIN_SECONDS):
            self._look("an epoch has ended", fresh=False, evaluating=False)
            self._rounds.look_again_at = self._rounds.number + POLICY.iterations_after_epoch

    @property
    def boundary(self) -> int:
        """Autograd's sequence number when the last round ended; 0: none has."""
        return self._boundaries[-1] if self._boundaries else 0

    @property
    def retained(self) -> tuple[str, int, str] | None:
        """File, line and function of the last backward(retain_graph=True)."""
        return self._findings.retained

    @property
    def is_due(self) -> bool:
        """A look waits for the next forward."""
        recorder = self.recording  # (asked some times a step, so the rest is left to where a window is open)
        open_ = recorder is not None and recorder.is_open
        rounds = self._rounds
        return bool(rounds.suspicion or rounds.due or self._unwalked.waits or (open_ and self._window_asks))

    @property
    def _window_asks(self) -> bool:
        """A window is being recorded, of which one wants to know what the known leaks hold."""
        recorder = self.recording
        if recorder is None or not recorder.is_open:
            return False
        return self._findings.names_holders and recorder.asks_who_holds

    # -- when to look ----------------------------------------------------------------------------------------------------

    def _judge_evaluation(self) -> None:
        """Graphs were built and not walked. Dropped ones prove it; kept ones may still be summed up and walked together."""
        built = len(self._forwards)
        if built < self._look_when_built:
            return
        dropped = self._outputs.dropped >= POLICY.dropped_graphs
        if (
            dropped or not self._training_mode or self._pass_ended or not self._optimizers
        ) and self._looker.may_spend():
            # Again after six, twelve, twenty-four ...: growth shows from look to look.
            self._look_when_built = built + max(POLICY.evaluation_rescan, int(POLICY.evaluation_rescan_share * built))
            self._look("graphs are built and nothing walks them backward", fresh=False, evaluating=True)

    def _look_if_due(self, *, fresh: bool) -> None:
        rounds = self._rounds
        if rounds.suspicion:
            why, again_at = rounds.suspicion, rounds.look_again_at
            rounds.followed()
            if self._looker.may_spend(AGAIN_SECONDS if again_at else 0.0):
                rounds.due.discard(self._after)
                self._look(why, fresh=fresh, evaluating=False)
            self._look_again()
        elif self._after in rounds.due:
            rounds.due.discard(self._after)
            number = self._clock.step or rounds.number
            self._look(f"the look after {rounds.per} {number}", fresh=fresh, evaluating=False)
        elif fresh and self._window_asks and self._looker.may_spend():
            self._look("a window is recorded", fresh=True, evaluating=False, judging=False)

    def _look_again(self) -> None:
        stands = self._findings.growth_stands or self._judge.waits_for_an_end()
        self._rounds.plan(stands, self._judge.next_whole(self._rounds.number))

    def _may_look(self) -> bool:
        return not (self._cuda.is_initialized() and self._cuda.is_current_stream_capturing())

    # -- a look ----------------------------------------------------------------------------------------------------------

    def _look(self, reason: str, *, fresh: bool, evaluating: bool, judging: bool = True, evaluated: int = 0) -> None:
        """``judging``: False where it is too near to others to tell growth. ``evaluated``: batches that are done of an evaluation
        without gradients."""
        if not self._may_look():
            return
        newest = list(self._boundaries)[-POLICY.recent_steps :]
        step_numbers = max((after - before for before, after in pairwise(newest)), default=0)
        looked = self._looker.scan(step_numbers, self._steps_no_more, self._differentiable)
        if evaluating and self._may_be_summed_up(looked.optimizers):
            return
        if self._waits_for_a_step(looked.optimizers) and not evaluating:
            self._will_train = True  # what fills now may be a replay buffer, or what micro-steps gather
            return
        whole = not looked.left_out
        if judging:
            self._conclude(looked.groups, fresh=fresh, evaluating=evaluating, whole=whole, evaluated=evaluated)
            self._findings.withdraw(looked.named_since)
            self._look_again()
            if fresh and self._optimizers:
                self._unwalked.begin(looked.known, material_bytes(self._looker.live_bytes), self.boundary)
        if (fresh or evaluating) and self._window_asks:
            seen = self._findings.held_by(looked.groups, whole=whole)
            self.recording.held(seen)  # type: ignore[union-attr]
        dropped = evaluating and self._outputs.dropped >= POLICY.dropped_graphs
        if dropped and not self._findings.tell_of_an_evaluation:
            self._measured = looked.known
        self._findings.looked(looked.seconds, looked.tensors, "; ".join(looked.left_out))
        self._findings.send(reason)

    def _measure(self, module: Any, output: Any, known: Storages) -> None:
        """A graph that is dropped at once, again and again, and that no variable holds: what it saves for nobody."""
        node = NewestNode().of(output)
        if node is None:
            return
        graph = walk(node, Budget(self._looker.chains))
        saved = sum(size for storage, size in graph.saved.items() if storage not in known)
        if saved >= material_bytes(self._looker.live_bytes):
            self._findings.add_nobodys(type_info.name_of(type(module)), saved, graph.nodes)
            self._findings.send("a graph that nobody walks was measured")

    def _may_be_summed_up(self, optimizers: int) -> bool:
        """Graphs that wait for the first step of an optimizer: gradient accumulation may sum up their losses."""
        summed = self._outputs.dropped < POLICY.dropped_graphs and self._training_mode and not self._pass_ended
        return summed and optimizers > 0 and not self._optimizers

    def _waits_for_a_step(self, optimizers: int) -> bool:
        """Optimizers live, and none has stepped yet; a loader's batches are counted as rounds all the same."""
        waits = optimizers > 0 and not self._steps_are_told and self._outputs.walks <= POLICY.unstepped_backwards
        return waits and self._rounds.per != "batch"

    def _steps_no_more(self, optimizer: Any) -> bool:
        reference = self._stepped_once.get(id(optimizer))
        return reference is not None and reference() is optimizer and id(optimizer) not in self._optimizers

    def _conclude(self, groups: Sequence[Group], *, fresh: bool, evaluating: bool, whole: bool, evaluated: int) -> None:
        moment = Moment(
            step=self._clock.step,
            boundaries=list(self._forwards if evaluating else self._boundaries),
            fresh=fresh,
            after=self._after,
            optimizers=frozenset(self._optimizers),
            evaluating=evaluating,
            last_walk=self._last_walk,
            kept_rounds=self._kept_rounds,
            old_graphs=self._old,
            ages_are_sure=self._ages_are_sure,
            retained=self._findings.retained,
            evaluated=evaluated,
            whole=whole,
            per="batch" if evaluating else self._rounds.per,
            given_elements=math.prod(self._clock.batch.latest[1]) if self._clock.batch.latest is not None else 0,
            epoch_ended=self._epoch_ended,
            ends_epoch=self._pass_ended if evaluating else self._epoch_ended == self._rounds.number,
        )
        rounds = self._rounds.number + (len(self._forwards) if evaluating and self._rounds.per != "batch" else 0)
        if self._given:
            groups = [group for group in groups if not is_given(group, self._given)]
        for verdict in self._judge.judge(groups, self._looker.live_bytes, moment, rounds):
            self._findings.add(verdict)
        self._findings.withdraw(self._judge.settled)
        self._findings.note_emptied(self._judge.emptied)
