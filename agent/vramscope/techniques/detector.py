"""Detects how a run is trained: declared techniques, observed techniques, and known pitfalls.

Steps 2, 5, 20, 200, 2,000 ... are observed, and one more when something changes (another optimizer, another number of
backward passes). An observed step costs about 2 µs per module call and 1 µs per graph node, and the summary after it some
microseconds per parameter. The first summary is made at once; the later ones of a large model are divided over steps.
All other steps cost one comparison. The cost counts as agent time in the overhead measurement.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vramscope.guard import guarded
from vramscope.process.torch_compile import is_compiled
from vramscope.process.torch_functions import plainly
from vramscope.protocol import messages
from vramscope.protocol.series import UNKNOWN
from vramscope.steps.events import Order, StepListener
from vramscope.steps.records import StepRecord
from vramscope.techniques.detectors import (
    accumulation,
    allocator,
    attention,
    batch_size,
    checkpointing,
    compile,
    distributed,
    engine,
    kernels,
    mixed_precision,
    offload,
    optimizers,
    peft,
    projection,
    quantization,
)
from vramscope.techniques.graph_nodes import node_names
from vramscope.techniques.observation import StepObservation, TrainingState
from vramscope.techniques.observer import StepObserver
from vramscope.techniques.pitfalls import beyond_device, eval_mode, other_ranks_device, small_pitfalls
from vramscope.techniques.pitfalls.earlier_run import EarlierRun
from vramscope.techniques.pitfalls.notebook_results import NotebookResults

if TYPE_CHECKING:
    import torch

    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

OBSERVED_STEPS: Final = (2, 5, 20, 200, 2_000, 20_000, 200_000)
MAX_CHANGES: Final = 8
"""Maximum number of additional observed steps in a run, after changes."""
SETTLING_STEPS: Final = 2
"""Steps between the first change and the observed step after it."""
LATER_STEPS: Final = 3
"""Additional steps of delay per further change. It is odd, so that a change in every second step is not always observed."""
SLICE_NS: Final = 2_000_000
"""Processor time of a summary after one step; the next step goes on with it."""
RECENT_STEPS: Final = 8
"""Number of steps that decide on the usual number of backward passes. The last step of an epoch may have fewer."""

Found = TypeVar("Found")


def each_guarded(
    *finds: Callable[[TrainingState], Found | None],
) -> tuple[Callable[[TrainingState], Found | None], ...]:
    """The same functions, each contained for itself: an error in one must not hide what the others find."""
    return tuple(guarded(f"techniques: {find.__module__.rpartition('.')[2]}")(find) for find in finds)


DETECTORS: Final = each_guarded(
    checkpointing.find,
    accumulation.find,
    mixed_precision.find,
    optimizers.find,
    optimizers.find_8bit,
    batch_size.find,
    offload.find,
    distributed.find,
    compile.find,
    peft.find,
    attention.find,
    allocator.find,
    projection.find,
    kernels.find,
    quantization.find,
    engine.find,
)
PITFALLS: Final = each_guarded(
    small_pitfalls.closure,
    small_pitfalls.no_gradient,
    small_pitfalls.use_reentrant,
    eval_mode.find,
    small_pitfalls.empty_cache,
    small_pitfalls.grad_scaler,
    other_ranks_device.find,
    beyond_device.find,
)


class TechniqueDetector(StepListener):
    """Technique detection of one session. All calls are on the training thread. Between steps it keeps names and numbers.

    report   called with all techniques and findings each time they change
    """

    order = Order.TECHNIQUES

    def __init__(self, clock: StepClock, hooks: LoopHooks, report: Callable[[messages.Techniques], None]) -> None:
        self._clock = clock
        self._hooks = hooks
        self._report = report
        self._framework = "loop"
        self._config: Mapping[str, Any] = {}
        self.reads_graphs = True
        """True if graphs of backward passes are read: in an observed step, and in the first step."""
        self._observer: StepObserver | None = None
        self._observation: StepObservation | None = None
        self._forward_is_compiled = False
        self._observed = self._with_cache_clear = 0
        self._steps = 0
        self._next = OBSERVED_STEPS[0]
        self._changes = 0
        self._step_shape: tuple[int, int] = (0, 0)
        """Optimizers and backward passes of the observed step."""
        self._recent: deque[int] = deque(maxlen=RECENT_STEPS)
        self._earlier = EarlierRun()
        self._notebook = NotebookResults()
        self._findings: dict[str, messages.Pitfall] = {}
        self._training: TrainingState | None = None
        """State for the detectors, during one call; it refers to models."""
        self._rest: Iterator[None] | None = None
        """Rest of a summary that is divided over steps."""
        self._evaluation: messages.Pitfall | None = None
        self._reported: tuple[list[messages.Technique], list[messages.Pitfall]] | None = None

    @guarded("techniques")
    def begin(self, framework: str, config: Mapping[str, Any]) -> None:
        """Start, or replace the framework and its settings in a running session. Declared techniques are reported at once."""
        self._framework, self._config = framework, dict(config)
        if self._hooks.techniques is not self:
            self._clock.subscribe(self)
            self._hooks.techniques = self
            self._hooks.when_removed(self.close)
            self._earlier.begin()
        self._summarize()

    @property
    def findings(self) -> list[messages.Pitfall] | None:
        """Known pitfalls of the script; None before a step was observed."""
        return list(self._findings.values()) if self._observed or self._findings else None

    @property
    def known(self) -> list[messages.Technique]:
        """Techniques of the last report. Callable from any thread."""
        return self._reported[0] if self._reported is not None else []

    @guarded("techniques")
    def close(self) -> None:
        """Remove all hooks."""
        self._clock.unsubscribe(self)
        self._hooks.techniques = None
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.end(0)
        if self._rest is not None:
            self._summarize()

    @guarded("techniques")
    def leak(self, leak: messages.Leak) -> None:
        """Handle a finding of the leak detector. A forward pass without no_grad is a pitfall of this list too."""
        finding = small_pitfalls.evaluation_leak(leak)
        if finding is not None and self._evaluation is None:
            self._evaluation = finding
            self._summarize()

    # -- on the training thread --------------------------------------------------------------------------------------------

    @guarded("techniques")
    def before_walk(self, root: Any) -> None:
        """Handle a backward pass from this tensor."""
        if self._observer is not None:
            self._observer.before_walk(root)
        elif self._steps == 0 and not self._forward_is_compiled and is_compiled():
            self._forward_is_compiled = any(compile.NODE in name for name in node_names(root))

    @property
    def needs_detail(self) -> bool:
        """True while a step is being observed."""
        return self._observer is not None

    @guarded("techniques")
    def step_ended(self, step: StepRecord) -> None:
        """Handle the end of a step. Costs 1 µs if no step is observed."""
        backwards = step.micro_steps
        self._steps += step.steps
        if backwards != UNKNOWN:
            self._recent.append(backwards)
        observer, self._observer = self._observer, None
        self.reads_graphs = False
        observation = observer.end(backwards) if observer is not None else None
        if observation is not None and (self._observation is None or backwards == self._usual_backwards()):
            self._observation = observation
            self._forward_is_compiled |= any(compile.NODE in name for name in observation.nodes)
            self._observed += 1
            self._with_cache_clear += observation.cache_clears > 0
            if observation.cache_clears and self._observed == 1:
                self._next = self._steps + 1  # the next step shows whether every step does it
            self._step_shape = (len(self._hooks.optimizers), backwards)
            if self._observed == 1:
                self._summarize()
            else:
                self._rest = self._summary()
        elif self._observation is not None and backwards != UNKNOWN and self._has_changed():
            self._plan_observation()
        if self._rest is not None:
            self._go_on()
        if self._steps + 1 >= self._next and not self._clock.is_control_step:
            self._next = next((step for step in OBSERVED_STEPS if step > self._steps + 1), 1 << 62)
            self._observe()

    def _usual_backwards(self) -> int:
        """Most frequent number of backward passes of the recent steps; of two equally frequent ones the larger."""
        newest = self._recent[-1]
        if 2 * self._recent.count(newest) > len(self._recent):
            return newest  # the usual case needs no Counter, which takes 6 µs
        return max(Counter(self._recent).items(), key=lambda row: (row[1], row[0]))[0]

    def _has_changed(self) -> bool:
        return self._step_shape != (len(self._hooks.optimizers), self._usual_backwards())

    def _plan_observation(self) -> None:
        """Schedule an observed step. The delay grows with each change."""
        soon = self._steps + 1 + SETTLING_STEPS + LATER_STEPS * self._changes
        if self._changes < MAX_CHANGES and soon < self._next:
            self._changes += 1
            self._next = soon

    @plainly
    def _observe(self) -> None:
        with self._clock.reads as may_read:
            if not may_read:
                return
            optimizers = self._optimizers()
            parameters = _trained_parameters(optimizers)
            self.reads_graphs = True
            self._observer = StepObserver(self._clock, self._hooks.loader)
            around = compile.models_around(self._hooks.roots) if is_compiled() else []
            compiled = self._forward_is_compiled or (is_compiled() and compile.compiled_modules(self._hooks.roots) > 0)
            self._observer.begin(parameters, compiled=compiled, around=around, models=self._hooks.roots)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that have stepped; the one that ends the training steps comes first."""
        leader = self._hooks.leader
        rest = sorted(self._hooks.optimizers, key=lambda optimizer: type(optimizer).__name__)
        return ([leader] if leader is not None else []) + [optimizer for optimizer in rest if optimizer is not leader]

    @plainly
    def _summarize(self) -> None:
        """Run all detectors, and report what is new."""
        self._rest = None
        with self._clock.reads as may_read:
            try:
                for _ in self._summary() if may_read else ():
                    pass
            finally:
                self._training = None

    @plainly
    def _go_on(self) -> None:
        """Run the detectors that are left of a summary, for SLICE_NS or a little longer."""
        rest, self._rest = self._rest, None
        began = time.thread_time_ns()
        with self._clock.reads as may_read:
            try:
                for _ in (rest or ()) if may_read else ():
                    if time.thread_time_ns() - began > SLICE_NS:
                        self._rest = rest
                        break
            finally:
                self._training = None

    def _summary(self) -> Iterator[None]:
        """Yield after each detector; the end reports."""
        techniques: list[messages.Technique] = []
        findings: list[messages.Pitfall] = []
        for find in DETECTORS:
            if (found := find(self._state())) is not None:
                techniques.append(found.technique)
                if found.finding is not None:
                    findings.append(found.finding)
            yield
        for find_pitfall in (*PITFALLS, self._earlier.find, self._notebook.find):
            if (pitfall := find_pitfall(self._state())) is not None:
                findings.append(pitfall)
            yield
        if self._evaluation is not None:
            findings.append(self._evaluation)
        # A finding keeps the step in which it was found first.
        self._findings = {finding.kind: self._findings.get(finding.kind, finding) for finding in findings}
        news = techniques, list(self._findings.values())
        if news != self._reported:
            self._reported = news
            self._report(
                messages.Techniques(time_ns=time.time_ns(), step=self._clock.step, techniques=news[0], findings=news[1])
            )

    def _state(self) -> TrainingState:
        """Return the state for the detectors; the same one during a call."""
        if self._training is None:
            optimizers = self._optimizers() if self._clock.step else []
            self._training = TrainingState(
                framework=self._framework,
                config=self._config,
                roots=_trained_models(optimizers, list(self._hooks.roots)),
                known_roots=list(self._hooks.roots),
                optimizers=optimizers,
                observation=self._observation,
                observed=self._observed,
                with_cache_clear=self._with_cache_clear,
                step=self._clock.step,
            )
        return self._training


def _trained_models(optimizers: Iterable[torch.optim.Optimizer], roots: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Models with a parameter of an optimizer: no teachers, and no models of an earlier training.

    All models if that is unknown: before the first step, or if the optimizer steps its own copies.
    """
    # All parameters of the groups count: a GAN freezes one half while the other one steps.
    stepped = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [root for root in roots if any(id(parameter) in stepped for parameter in root.parameters())] or roots


def _trained_parameters(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
