"""Watches how a run is trained: which techniques are declared, which are seen, and which known traps it steps into.

Steps 2, 5, 20, 200, 2,000 .. are observed, and one more when something changes (another optimizer, another number of backward
passes). An observed step costs about 2 µs a module call and 1 µs a node of its graph, and a summary after it some µs a
parameter; between them there is one comparison a step. What it costs is counted as the agent's time in the run's own measurement.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.torch_compile import is_compiled
from vramscope.protocol import messages
from vramscope.techniques.detectors import (
    accumulation,
    allocator,
    attention,
    batch,
    checkpointing,
    compile,
    distributed,
    kernels,
    mixed_precision,
    offload,
    optimizers,
    peft,
    projection,
    quantization,
)
from vramscope.techniques.graph_nodes import names_of_nodes
from vramscope.techniques.observation import Facts
from vramscope.techniques.observer import Sight
from vramscope.techniques.pitfalls import closure, empty_cache, eval_mode, evaluation, reentrant, scaler
from vramscope.techniques.pitfalls.earlier_run import EarlierRun

if TYPE_CHECKING:
    import torch

    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

OBSERVED_STEPS: Final = (2, 5, 20, 200, 2_000, 20_000, 200_000)
MOST_CHANGES: Final = 8
"""observed steps that changes may bring beside these, in a whole run"""
SETTLING_STEPS: Final = 2
"""from the first change until a step is observed"""
LATER_STEPS: Final = 3
"""so many more with each further change: odd, so that what comes every second step is not met each time"""
RECENT_STEPS: Final = 8
"""that tell how many backward passes a step usually has: an epoch's last one may have fewer"""

KINDS: Final = (
    checkpointing.find,
    accumulation.find,
    mixed_precision.find,
    optimizers.find,
    optimizers.find_8bit,
    batch.find,
    offload.find,
    distributed.find,
    compile.find,
    peft.find,
    attention.find,
    allocator.find,
    projection.find,
    kernels.find,
    quantization.find,
)
TRAPS: Final = (closure.find, reentrant.find, eval_mode.find, empty_cache.find, scaler.find)


class TechniqueWatch:
    """One a session. All calls come on the training thread; between steps it holds names and numbers alone.

    report   called with what is known, each time that it has changed
    """

    def __init__(self, clock: StepClock, hooks: LoopHooks, report: Callable[[messages.Techniques], None]) -> None:
        self._clock = clock
        self._hooks = hooks
        self._report = report
        self._framework = "loop"
        self._config: Mapping[str, Any] = {}
        self.hears_walks = True
        """what a backward walks is of use now: in an observed step, and in the first"""
        self._sight: Sight | None = None
        self._open: Sight | None = None
        self._forward_is_compiled = False
        self._observed = self._emptied = 0
        self._steps = 0
        self._next = OBSERVED_STEPS[0]
        self._changes = 0
        self._shape: tuple[int, int] = (0, 0)
        self._recent: deque[int] = deque(maxlen=RECENT_STEPS)
        self._earlier = EarlierRun()
        self._findings: dict[str, messages.Finding] = {}
        self._evaluation: messages.Finding | None = None
        self._told: tuple[list[messages.Technique], list[messages.Finding]] | None = None

    @guarded("techniques")
    def begin(self, framework: str, config: Mapping[str, Any]) -> None:
        """Begin, or learn what trains in a session that has begun: what is declared is told at once."""
        self._framework, self._config = framework, dict(config)
        if self._clock.techniques is None:
            self._clock.techniques = self
            self._hooks.techniques = self
            self._hooks.when_removed(self.close)
            self._earlier.begin()
        self._summarize()

    @property
    def known(self) -> list[messages.Technique]:
        """What was told last. From any thread."""
        return self._told[0] if self._told is not None else []

    @guarded("techniques")
    def close(self) -> None:
        """Nothing is hooked afterwards."""
        self._clock.techniques = self._hooks.techniques = None
        sight, self._open = self._open, None
        if sight is not None:
            sight.end(0)

    @guarded("techniques")
    def leak(self, leak: messages.Leak) -> None:
        """The leak detector has found something: an evaluation without no_grad is a trap of this list too."""
        finding = evaluation.of_leak(leak)
        if finding is not None and self._evaluation is None:
            self._evaluation = finding
            self._summarize()

    # -- on the training thread --------------------------------------------------------------------------------------------

    @guarded("techniques")
    def before_walk(self, root: Any) -> None:
        """A backward begins from this tensor."""
        if self._open is not None:
            self._open.before_walk(root)
        elif self._steps == 0 and not self._forward_is_compiled and is_compiled():
            self._forward_is_compiled = any(compile.NODE in name for name in names_of_nodes(root))

    @guarded("techniques")
    def end_step(self, backwards: int) -> None:
        """A step is over, with so many backward passes; 1 µs where it was not observed and the next is not."""
        self._steps += 1
        self._recent.append(backwards)
        sight, self._open = self._open, None
        self.hears_walks = False
        if sight is not None:
            sight.end(backwards)
        if sight is not None and (self._sight is None or backwards == self._usual()):
            self._sight = sight
            self._forward_is_compiled |= any(compile.NODE in name for name in sight.nodes)
            self._observed += 1
            self._emptied += sight.emptied > 0
            if sight.emptied and self._observed == 1:
                self._next = self._steps + 1  # in each step, or only now and then: the very next one tells
            self._shape = (len(self._hooks.optimizers), backwards)
            self._summarize()
        elif self._sight is not None and self._shape != (len(self._hooks.optimizers), self._usual()):
            self._changed()
        if self._steps + 1 >= self._next and not self._clock.calm:
            self._next = next((step for step in OBSERVED_STEPS if step > self._steps + 1), 1 << 62)
            self._observe()

    def _usual(self) -> int:
        """How many backward passes most of the last steps had; of two numbers that are as frequent the larger."""
        newest = self._recent[-1]
        if 2 * self._recent.count(newest) > len(self._recent):
            return newest  # (as it nearly always is; a Counter takes 6 µs)
        return max(Counter(self._recent).items(), key=lambda row: (row[1], row[0]))[0]

    def _changed(self) -> None:
        """Observe a step soon, ever later with each change."""
        soon = self._steps + 1 + SETTLING_STEPS + LATER_STEPS * self._changes
        if self._changes < MOST_CHANGES and soon < self._next:
            self._changes += 1
            self._next = soon

    def _observe(self) -> None:
        optimizers = self._optimizers()
        parameters = _trained(optimizers)
        self.hears_walks = True
        self._open = Sight(self._clock, self._hooks.loader)
        around = compile.models_around(self._hooks.roots) if is_compiled() else []
        compiled = self._forward_is_compiled or (is_compiled() and compile.compiled_modules(self._hooks.roots) > 0)
        self._open.begin(parameters, compiled=compiled, around=around, models=self._hooks.roots)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that have stepped, the leader first."""
        leader = self._hooks.leader
        rest = sorted(self._hooks.optimizers, key=lambda optimizer: type(optimizer).__name__)
        return ([leader] if leader is not None else []) + [optimizer for optimizer in rest if optimizer is not leader]

    def _summarize(self) -> None:
        optimizers = self._optimizers() if self._clock.step else []
        facts = Facts(
            framework=self._framework,
            config=self._config,
            roots=_trained_by(optimizers, list(self._hooks.roots)),
            alive=list(self._hooks.roots),
            optimizers=optimizers,
            sight=self._sight,
            observed=self._observed,
            emptied=self._emptied,
            step=self._clock.step,
        )
        found = [told for find in KINDS if (told := find(facts)) is not None]
        findings = [told.finding for told in found if told.finding is not None]
        findings += [trap for scan in (*TRAPS, self._earlier.find) if (trap := scan(facts)) is not None]
        if self._evaluation is not None:
            findings.append(self._evaluation)
        # A finding keeps the step of its first sight: what is found again is the same finding.
        self._findings = {finding.kind: self._findings.get(finding.kind, finding) for finding in findings}
        news = [told.technique for told in found], list(self._findings.values())
        if news != self._told:
            self._told = news
            self._report(
                messages.Techniques(time_ns=time.time_ns(), step=self._clock.step, techniques=news[0], findings=news[1])
            )


def _trained_by(optimizers: Iterable[torch.optim.Optimizer], roots: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those of the models that are trained, and no teacher, nor what an earlier training left behind; all of them where that
    cannot be told: before the first step, or of an optimizer that steps copies of its own."""
    # All that they were given: a GAN's one half is frozen while the other steps.
    stepped = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [root for root in roots if any(id(parameter) in stepped for parameter in root.parameters())] or roots


def _trained(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
