"""Leak detector: follows the loop's calls, decides when to scan, and reports what a scan found.

``steps/hooks.py`` calls it at some µs each. A scan costs up to 0.25 s, so there are few: early ones, then on suspicion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vramscope.leaks.apply_scan import conclude, scan_context
from vramscope.leaks.autograd.dropped_graphs import StepGraphs
from vramscope.leaks.autograd.evaluation_graph import EvaluationGraph
from vramscope.leaks.autograd.live_graphs import OutputGraphs
from vramscope.leaks.autograd.saved_tensors import saved
from vramscope.leaks.autograd.unused_results import UnusedResults
from vramscope.leaks.graph_ages import GraphAges
from vramscope.leaks.loop_shape import LoopKind, LoopShape
from vramscope.leaks.memory_after_step import MemoryAfterStep
from vramscope.leaks.policy import POLICY, material_bytes
from vramscope.leaks.registry import FindingRegistry
from vramscope.leaks.retained_for_recording import RetainedForRecording
from vramscope.leaks.scan.any_module_call import AnyModuleCall
from vramscope.leaks.scan.call_arguments import argument_storages, is_argument
from vramscope.leaks.scan.scanner import SCAN_SECONDS, Scanner
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.schedule import RESCAN_SECONDS, EvaluationSchedule, ScanSchedule
from vramscope.leaks.unchanged_since_scan import LiveBlocks
from vramscope.leaks.verdict.judge import Judge
from vramscope.leaks.verdict.states import Reason
from vramscope.process import frames
from vramscope.protocol import messages
from vramscope.steps.phase import EVAL, FORWARD
from vramscope.steps.records import AfterStep

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval


class LeakDetector:
    """One per session. All calls come on the training thread, and none of them keeps a tensor or a module.

    report is called with a Scan after each scan, tell with each new finding. optimizer_exists: whether a variable refers to one."""

    def __init__(
        self,
        clock: StepClock,
        report: Callable[[messages.Scan], None],
        *,
        seconds: float = SCAN_SECONDS,
        tell: Callable[[messages.Leak], None] | None = None,
        optimizer_exists: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        self._clock = clock
        self._sequence: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
        self._cuda = torch.cuda
        self._plainly = torch._C.DisableTorchFunction
        self._loop = LoopShape(optimizer_exists)
        self._schedule = ScanSchedule()
        self._evaluation = EvaluationSchedule()
        self._ages = GraphAges()
        self.after_step = MemoryAfterStep()
        self._live_blocks = LiveBlocks(clock, self._loop)
        self._outputs = OutputGraphs()
        self._kinds = TensorKinds()
        self._scanner = Scanner(self._kinds, seconds, clock.reads)
        self._registry = FindingRegistry(clock, report, tell)
        self._judge = Judge(self._iteration)
        self._step_graphs = StepGraphs(
            clock,
            self._kinds,
            self._scanner.chains,
            self._registry.add_step_graph,
            self._registry.withdraw_step_graph,
        )
        self._first_call = AnyModuleCall(self._part_called)
        self._unused_results = UnusedResults()
        self._evaluation_graph = EvaluationGraph(self._outputs, self._scanner, self._registry.add_dropped_graphs)
        self._create_graph_at: tuple[str, int, str] | None = None
        """File, line and function of the last backward(create_graph=True)."""
        self.questions = RetainedForRecording(self._registry)
        self._context = partial(scan_context, clock, self._loop, self._schedule, self._evaluation, self._ages)
        saved.listen()
        clock.retention = self

    # -- calls of the hooks ----------------------------------------------------------------------------------------------

    def before_walk(self, roots: Any, retain_graph: bool = False, create_graph: bool = False) -> None:
        """A backward, or ``torch.autograd.grad``, begins from these tensors. About 10 µs: the descent to the oldest node."""
        loop, schedule = self._loop, self._schedule
        self._outputs.walked(roots)
        self._registry.withdraw_used(self._unused_results.walked(roots))
        if self._step_graphs.follows:
            self._step_graphs.before_walk()
        schedule.count("step")
        self._evaluation.clear()
        if loop.begins_step():
            # No forward was seen since the step: the whole model is checkpointed, say.
            loop.has_hidden_forward = True
            self._first_call.stop()
            self._scan_if_due(fresh=False)
        loop.pass_ended = False
        loop.last_backward = self._sequence()
        if loop.kind(self._outputs.walks) is LoopKind.MANUAL_UPDATE:
            self._end_iteration()
        root = roots if not isinstance(roots, (list, tuple)) else roots[0] if roots else None
        if create_graph:
            self._create_graph_at = frames.user_line()
        if retain_graph:
            self._registry.retain_graph_at = frames.user_line()
        if root is not None and self._kinds.owns_memory(type(root)):
            with self._plainly():
                if create_graph and root.device.type != "cpu":
                    loop.ages_are_sure = False
                self._ages.backward_begins(root, schedule.number)
                if self.questions.are_open:
                    self.questions.needed(root, self._scanner.chains)

    def plain_steps_ended(self, sequence_numbers: Sequence[int]) -> None:
        """Steps have ended for which nothing was read. ``sequence_numbers``: of autograd's next operation at each end."""
        self._schedule.end_unseen(len(sequence_numbers))
        self._ages.boundaries.extend(sequence_numbers)
        self.after_step.since_scan.steps += len(sequence_numbers)

    def stepped(self, optimizer: object) -> None:
        """An optimizer has stepped; several step in turn."""
        self._schedule.count("step")
        if not self._loop.has_steps:
            self._start_steps()
        self._loop.optimizer_stepped(optimizer)

    def end_step(self, intervals: Sequence[PhaseInterval]) -> AfterStep:
        """A step has ended, with these phases. About 5 µs; on the CPU the C allocator is asked now and then."""
        self._registry.measure_effects(intervals)
        if self._step_graphs.follows:
            self._step_graphs.end_step(intervals)
        if not self._loop.has_steps:
            self._start_steps()
        if self._judge.evaluations.calls or self._judge.evaluations.batches:
            self._judge.evaluations.end_step(self._clock, intervals)
        cuts = intervals[-1].cuts
        self._live_blocks.end_step()
        self._outputs.unwalked.end_iteration(compares=self._live_blocks.is_unscanned and self._schedule.is_due_soon)
        self._end_iteration(may_skip=True)
        after_step_bytes = self.after_step.add(sum(cut.allocated_bytes for cut in cuts) if cuts else None, intervals)
        if self.after_step.rises and not self._schedule.rescan_at:  # a planned scan already has a reason
            self._schedule.suspect("memory after each step rises")
        if self._loop.has_hidden_forward and self.is_due:
            self._first_call.listen()
        return AfterStep(self._ages.older_than(self._schedule.number), after_step_bytes)

    def before_forward(self, training: bool) -> None:
        """A root module is about to be called with gradients on: the best time for a scan, before anything new is built."""
        self._loop.training_mode = training
        if self._step_graphs.waits:
            self._step_graphs.settle(self._outputs.walks)
        if self._loop.begins_step():
            self._loop.has_hidden_forward = False
            self._scan_if_due(fresh=True)
            return
        if self._outputs.dropped or self._outputs.pending:
            self._evaluation.add(self._sequence())
            self._scan_graphs_of_evaluation()

    def before_inference(self, args: Any, kwargs: Any, training: bool) -> None:
        """A root module is about to be called with gradients off. Where nothing trains, each call is an iteration.

        A call's arguments grow by design where they carry a cache. In training mode it is no evaluation, but a move of a policy.
        """
        if self._loop.optimizers:
            evaluations = self._judge.evaluations
            evaluations.calls += not training
            if not training and evaluations.may_scan and evaluations.wants_scan:
                self._scan_in_evaluation(arguments=argument_storages(args, kwargs, self._kinds))
            return
        if self._outputs.walks or self._schedule.per == "batch" or self._loop.will_train:
            return
        if self._loop.has_steps:  # the user marks their ends, and no optimizer steps
            if self._loop.begins_step():
                self._scan_if_due(fresh=True)
            return
        self._schedule.count("call")
        self._end_iteration(between_steps=False)
        if (self._schedule.suspicion or self._schedule.due) and not self._loop.expects_steps():
            self._scan_if_due(fresh=False, arguments=argument_storages(args, kwargs, self._kinds))

    def after_forward(self, module: Any, args: Any, output: Any) -> None:
        """A root module has returned. About 2 µs."""
        with self._plainly():
            self._outputs.add(output)
            if self._step_graphs.follows and self._clock.is_training_thread():
                self._step_graphs.follow(module, args, output, self._outputs.walks)
            if self._evaluation_graph.waits and self._clock.is_training_thread():
                self._evaluation_graph.built(module, output)

    def before_batch(self) -> None:
        """A batch is about to be fetched from a loader."""
        loop = self._loop
        if self._clock.phase == EVAL and loop.optimizers:
            evaluations = self._judge.evaluations
            evaluations.batches += 1
            if evaluations.may_scan and evaluations.wants_scan:
                self._scan_in_evaluation()
        if not (loop.optimizers or loop.has_steps or self._outputs.walks):
            # Nothing trains: each batch is an iteration.
            self._schedule.count("batch")
            self._end_iteration(between_steps=False)
            if not self._outputs.alive:
                self._scan_if_due(fresh=False)
        now = self._sequence()
        if loop.batch_begins(now) and not loop.is_between_steps and not self._outputs.has_roots:
            # The model is no module: graphs were built since the last batch, and their fate is unknown.
            self._evaluation.add(now)
            self._scan_graphs_of_evaluation()
        if loop.is_between_steps and not self._outputs.alive:
            # No root module was ever called: an iteration ends here.
            self._scan_if_due(fresh=True)
        elif loop.pass_ended:
            self._scan_graphs_of_evaluation()

    def after_batches(self, number: int = 0, may_be_epoch: bool = True) -> None:
        """A pass over a loader has ended. ``number``: its batches; ``may_be_epoch``: False for a known evaluation."""
        if may_be_epoch and self._loop.trained_since_batch and not self._clock.is_control_step:
            self.end_epoch()
        elif self._loop.optimizers and self._clock.phase == EVAL and self._judge.evaluations.has_ended():
            self._scan_in_evaluation(number)
        if min(len(self._evaluation) + 1, self._outputs.pending) >= POLICY.dropped_graphs:
            self._loop.pass_ended = True
            if self._judge.waits_for_an_end(evaluating=True):
                self._evaluation.scan_soon()
            self._scan_graphs_of_evaluation()

    def end_epoch(self) -> None:
        """An epoch of the training has ended: containers that are emptied at its end are full."""
        schedule = self._schedule
        self._loop.epoch_ended = schedule.number
        if self._judge.waits_for_an_end() and not self._clock.is_control_step and schedule.may_spend(RESCAN_SECONDS):
            self._scan("an epoch has ended", fresh=False, evaluating=False)
            schedule.rescan_at = schedule.number + POLICY.iterations_after_epoch

    def end(self) -> None:
        """The training has ended: report the figures of now."""
        self._evaluation_graph.settle()
        self.report_filling()
        self._registry.end(self.after_step.since_scan)

    def report_filling(self) -> None:
        """No more iterations follow: what might have filled up and has grown until now is reported."""
        self._registry.report_filling(self.after_step.since_scan)

    def close(self) -> None:
        """The session ends."""
        self._first_call.stop()
        self._scanner.close()
        saved.close()

    # -- state that others read ------------------------------------------------------------------------------------------

    @property
    def boundary(self) -> int:
        """Autograd's sequence number when the last iteration ended; 0 before that."""
        return self._ages.last_boundary

    @property
    def retained(self) -> tuple[str, int, str] | None:
        """File, line and function of the last backward(retain_graph=True)."""
        return self._registry.retain_graph_at

    @property
    def is_due(self) -> bool:
        """True where a scan, or the decision about the first one, waits for the next forward."""
        waits = self._live_blocks.waits_for_forward or self._step_graphs.waits or self.questions.are_open
        return bool(waits or self._schedule.suspicion or self._schedule.due)

    @property
    def is_calm(self) -> bool:
        """True while no scan is due, nothing is followed and no holder is suspected: the next steps need not be seen."""
        if self.is_due or self._step_graphs.follows or self._ages.kept_iterations or self.after_step.rises:
            return False
        return not (self._registry.has_open_growth or self._judge.suspects or self._judge.waits_for_an_end())

    def _start_steps(self) -> None:
        """Steps end iterations from now on: backwards before the first one were its micro-steps."""
        self._loop.has_steps = True
        self._judge.training_begins(self._registry.withdraw_inference())
        self._live_blocks.training_begins()
        self._ages.forget(self._schedule.start_steps())

    def _end_iteration(self, *, between_steps: bool = True, may_skip: bool = False) -> None:
        """``may_skip``: the allocator was read, so that a scan without a reason can be left out."""
        is_due = self._schedule.end()
        self._ages.end_iteration(self._schedule.number, self._sequence())
        self._loop.is_between_steps = between_steps
        if is_due and (not may_skip or self._live_blocks.need_scan(self._ages, self._registry, self._outputs)):
            self._schedule.due = self._loop.next_optimizers()
        if self._ages.kept_iterations >= POLICY.old_graphs:
            self._schedule.suspect("more and more graphs of earlier steps are alive")

    def _iteration(self) -> int:
        """Iteration of a scan that runs now. In an evaluation with graphs each batch is one."""
        return self._schedule.number + (len(self._evaluation) + 1 if len(self._evaluation) else 0)

    def _part_called(self, module: Any) -> None:
        """A part of a model was called whose own forward is never called."""
        if self._clock.is_training_thread():
            self._first_call.stop()
            if self._loop.is_between_steps:
                self._loop.is_between_steps, self._loop.training_mode = False, module.training
                self._clock.timed(partial(self._scan_if_due, fresh=True))
                self._clock.enter(FORWARD)

    # -- when to scan ----------------------------------------------------------------------------------------------------

    def _scan_if_due(self, *, fresh: bool, arguments: Storages | None = None) -> None:
        schedule, optimizer = self._schedule, self._loop.optimizer
        if self._live_blocks.graph_is_retained(self._ages.older_than(schedule.number), self._registry):
            schedule.due |= self._loop.next_optimizers()
        if schedule.suspicion:
            why, rescan_at = schedule.suspicion, schedule.rescan_at
            schedule.followed()
            if schedule.may_spend(RESCAN_SECONDS if rescan_at else 0.0):
                schedule.due.discard(optimizer)
                self._scan(why, fresh=fresh, evaluating=False, arguments=arguments)
            self._plan_rescan()
        elif optimizer in schedule.due:
            schedule.due.discard(optimizer)
            why = f"scheduled after {schedule.per} {self._clock.step or schedule.number}"
            self._scan(why, fresh=fresh, evaluating=False, arguments=arguments)
        elif fresh and self.questions.are_open and schedule.may_spend():
            self._scan("a window is recorded", fresh=True, evaluating=False, judging=False)

    def _scan_graphs_of_evaluation(self) -> None:
        """Scan where graphs were built without a backward. Dropped ones prove an evaluation; live ones may yet be summed up."""
        if not self._evaluation.is_due:
            return
        dropped = self._outputs.dropped >= POLICY.dropped_graphs
        if (dropped or self._loop.may_evaluate) and self._schedule.may_spend():
            self._evaluation.scanned()
            self._scan("graphs are built without a backward", fresh=False, evaluating=True)

    def _scan_in_evaluation(self, batches: int = 0, arguments: Storages | None = None) -> None:
        """Scan in an evaluation without gradients. ``batches``: of one that has ended."""
        if self._schedule.may_spend():
            why, batches = ("has ended", batches) if batches else ("is under way", self._judge.evaluations.done)
            reason = f"an evaluation {why}"
            self._scan(reason, fresh=False, evaluating=False, evaluated_batches=batches, arguments=arguments)

    def _plan_rescan(self) -> None:
        may_stop = self._registry.has_open_growth or self._judge.waits_for_an_end()
        self._schedule.plan(may_stop, self._judge.next_full(self._schedule.number))

    def _scan(
        self,
        reason: str,
        *,
        fresh: bool,
        evaluating: bool,
        judging: bool = True,
        evaluated_batches: int = 0,
        arguments: Storages | None = None,
    ) -> None:
        """Scan once. ``judging``: False where other scans are too near to show growth; ``arguments``: of the next call."""
        if self._cuda.is_initialized() and self._cuda.is_current_stream_capturing():
            return
        operations = self._ages.most_operations(POLICY.recent_steps)
        result = self._scanner.scan(operations, self._loop.is_retired, self._create_graph_at, self._schedule.number)
        if result is None:  # another thread trains
            return
        self._schedule.spend(result.seconds)
        if evaluating and self._loop.may_be_summed_up(result.optimizers, self._outputs.dropped):
            return
        waits = self._loop.waits_for_a_step(result.optimizers, self._outputs.walks)
        if waits and self._schedule.per != "batch" and not evaluating:
            self._loop.will_train = True  # what fills now may be a replay buffer, or accumulated by micro-steps
            return
        complete = not result.not_scanned
        if judging:
            self.after_step.since_scan.scanned(self._clock.step)
            groups = [group for group in result.groups if not (arguments and is_argument(group, arguments))]
            at, kinds = self._registry.retain_graph_at, {"fresh": fresh, "evaluating": evaluating, "complete": complete}
            context = self._context(**kinds, evaluated_batches=evaluated_batches, retain_graph_at=at)
            ahead = len(self._evaluation) if evaluating and self._schedule.per != "batch" else 0
            iteration = self._schedule.number + ahead
            live_bytes = self._scanner.live_bytes
            self._unused_results.found(conclude(self._judge, self._registry, groups, live_bytes, context, iteration))
            self._registry.withdraw(dict.fromkeys(result.named_since, Reason.NAMED_SINCE))
            found = evaluating or self._registry.has_findings or self._judge.suspects
            self._live_blocks.scanned(iteration, found_nothing=complete and not found)
            self._plan_rescan()
            if fresh and self._loop.optimizers:
                self._step_graphs.begin(result.known, material_bytes(live_bytes), self.boundary)
        if (fresh or evaluating) and self.questions.are_open:
            self.questions.held(self._registry.retained_by(result.groups, complete=complete))
        if evaluating and self._outputs.dropped >= POLICY.dropped_graphs and not self._registry.names_an_evaluation:
            self._evaluation_graph.expect(result.known)
        self._registry.scanned(result.seconds, result.tensors, "; ".join(result.not_scanned))
        self._registry.send(reason)
