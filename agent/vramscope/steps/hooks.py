"""Finds steps and phases in any PyTorch loop, by watching a handful of PyTorch's functions.

==========  =====================================================================================
data        the DataLoader is asked for a batch (its iterator's ``__next__``, watched; private)
forward     ``torch.nn.Module.__call__``, watched for the root modules only
backward    ``torch.autograd.backward`` and ``grad``, watched (``loss.backward()`` calls the first)
other       that ``backward`` has returned, and nothing of the above has begun yet
optimizer   ``torch.optim.optimizer.register_optimizer_step_pre_hook``
step's end  ``torch.optim.optimizer.register_optimizer_step_post_hook``
==========  =====================================================================================

Nothing here keeps a module, an optimizer or a tensor alive.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.memory.variable_contents import NOTHING, VariableContents
from vramscope.process.hide_from_dynamo import skip_own_frames
from vramscope.process.module_calls import CallListener
from vramscope.process.optimizer_calls import optimizer_calls
from vramscope.process.patching import Patches
from vramscope.steps.calls_without_graphs import CallsWithoutGraphs
from vramscope.steps.clock import StepClock
from vramscope.steps.events import GraphListener, LoopExtension, LossListener, WalkListener
from vramscope.steps.hand_steps import HandSteps
from vramscope.steps.leading_optimizer import Effect, LeadingOptimizer
from vramscope.steps.nested_optimizer_step import steps_within_its_own_step
from vramscope.steps.patches.backward import OUTSIDE, BackwardPatch
from vramscope.steps.patches.caught_errors import OF_MEMORY, CaughtErrors
from vramscope.steps.patches.dataloader import LoaderPatch
from vramscope.steps.patches.grad_scaler import ScalerPatch
from vramscope.steps.phase import DATA, EVAL, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.plain_steps import PlainSteps
from vramscope.steps.resumed_steps import steps_made
from vramscope.steps.root_modules import RootHooks

if TYPE_CHECKING:
    import torch


class LoopHooks:
    """The hooks of one session. ``install`` once, ``remove`` at detach; both are safe to call again."""

    def __init__(self, clock: StepClock, in_variables: Callable[[], VariableContents] = lambda: NOTHING) -> None:
        """``in_variables`` returns what variables of the program lead to."""
        self.in_variables = in_variables
        self.clock = clock
        self.timed = clock.timed
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.graphs: GraphListener | None = None
        self.techniques: WalkListener | None = None
        self.loss: LossListener | None = None
        self.tell: Callable[[int, Mapping[str, Any]], None] | None = None
        """Takes numbers that a framework logs for a step."""
        self.checkpoint: Callable[[int], None] | None = None
        """Takes the step after which a framework makes a checkpoint."""
        self.loaded_checkpoint: Callable[[int], None] | None = None
        """Takes the step after which a framework loads one."""
        self.saw_training_forward = False
        self._forward_of: int | None = None  # whose forward it was: an id, compared and never used
        self.models = RootHooks(self, CallListener(self._before_forward, self._after_forward, self._forward_failed))
        self.loader = LoaderPatch(self)
        self.hand_steps = HandSteps(self.roots, clock.reads)
        self.extensions: list[LoopExtension] = []
        """Frameworks whose steps differ from PyTorch's."""
        self.on_first_step: Callable[[], None] | None = None
        self.on_first_backward: Callable[[], None] | None = None
        self.on_error: Callable[[BaseException, bool], None] | None = None
        """Receives an error that may be about memory. False: it ends a root's forward pass, a backward pass or the wait
        for a batch. True: an ``except`` block handles it."""
        self.caught = CaughtErrors(self.error_passes)
        self.patches = Patches()
        self.plain = PlainSteps(
            clock,
            self.patches,
            listen=self._listen,
            end_step=self._end_step,
            known=self.optimizers,
            other_stepped=self._other_stepped,
        )
        self._removals: list[Callable[[], None]] = []
        self.graph_task: Callable[[], int] = lambda: OUTSIDE
        """Returns autograd's running backward pass on this thread. PyTorch's own function, so that the call makes no
        frame."""
        self.grad_enabled: Callable[[], bool] = lambda: True
        self._transforming: Callable[[], int | None] = lambda: None
        """Returns the level of torch.func's transformations; None outside of them."""
        self._graphless = CallsWithoutGraphs()
        self._leader = LeadingOptimizer()
        self._in_step: set[int] = set()
        """Optimizers whose step has begun and not ended, by id."""
        self._nests = False
        """True once a step began within one of the same optimizer, or one was left by an exception."""
        self._stepped_in_backward = False
        self._runs_closure = False
        """True while an optimizer's step runs its closure: forward, backward and the rest of it."""

    def install(self, roots: Iterable[torch.nn.Module] = ()) -> None:
        """Hook optimizers, backward and the DataLoader; and the given root modules."""
        import torch

        skip_own_frames()
        self.plain.install()
        self.clock.batch.install()
        self.graph_task = torch._C._current_graph_task_id
        self.grad_enabled = torch.is_grad_enabled
        self._transforming = torch._C._functorch.maybe_current_level
        BackwardPatch(self).install()
        ScalerPatch(self).install()
        self.caught.install(self.patches)
        self.loader.install()
        for extension in self.extensions:
            extension.listen()
        self.models.install()
        for root in roots:
            self.models.add(root)

    def _other_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Another optimizer than the leader has stepped among plain steps. The begin of its step was not seen."""
        self.optimizers.add(optimizer)
        self._after_optimizer(optimizer, args, kwargs)

    def _listen(self) -> list[Callable[[], None]]:
        return [optimizer_calls.before(self._before_optimizer), optimizer_calls.after(self._after_optimizer)]

    def remove(self) -> None:
        self.plain.remove()
        self.patches.remove()
        if self.graphs is not None:
            self.graphs.close()
        while self._removals:
            self._removals.pop()()

    def when_removed(self, call: Callable[[], None]) -> None:
        """Have this called with the hooks' removal."""
        self._removals.append(call)

    @property
    def leader(self) -> torch.optim.Optimizer | None:
        """The optimizer whose steps are the training's."""
        return self._leader()

    @property
    def in_training_mode(self) -> bool:
        """True if a root module is in training mode, or none has run a forward pass in training mode yet."""
        return not self.saw_training_forward or any(root.training for root in list(self.roots))

    @property
    def is_in_first_step(self) -> bool:
        """True until the first step has ended, where a model may still appear."""
        return self.on_first_step is not None

    def search_called_model(self) -> None:
        """A backward pass begins, with no forward pass of a known model in its step."""
        self.models.search_called()

    def find_models_in_first_step(self) -> None:
        """Find the models that were made after attach, once."""
        self.models.find_in_first_step()

    def in_first_step_backward(self, losses: Any) -> None:
        """A backward of the first step begins from these tensors."""
        first, self.on_first_backward = self.on_first_backward, None
        if first is not None:
            first()
        self.models.find_in_first_step(losses)

    def before_backward(self) -> None:
        """A backward pass is about to begin, which may be a framework's own. Costs 0.2 µs where none is imported."""
        for extension in self.extensions:
            if extension.package in sys.modules:
                extension.listen()

    def lead(self, optimizer: torch.optim.Optimizer) -> None:
        """Steps are this optimizer's steps."""
        self.optimizers.add(optimizer)
        self.hand_steps.is_off = True
        self._leader.set(optimizer)

    # -- the hooks: on the training thread, many times a second ------------------------------------------------------

    @guarded("forward hook")
    def part_called(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A part of a model is called outside of any call of the model. The leak detector finds such calls itself."""
        self._forward_begins_in(module, args, kwargs, None)

    @guarded("forward hook")
    def _before_forward(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self._forward_begins_in(module, args, kwargs, self.graphs)

    def _forward_begins_in(self, module: torch.nn.Module, args: Any, kwargs: Any, graphs: GraphListener | None) -> None:
        clock, batch = self.clock, self.clock.batch
        self.end_step_by_hand()
        if sys.exc_info()[1] is not None:
            self.caught.scan()
        if self.loss is not None:
            self._forward_begins()
        batch.forward_begins(module, args, kwargs)
        if not clock.watched and clock.breakdown is not None and not clock.micro_steps:
            # The phases are not read here: a forward pass before any graph was built is an evaluation.
            builds = self.grad_enabled()
            trains = builds and (module.training or not self.saw_training_forward)
            if not trains and len(clock.batch.largest) <= builds:
                clock.breakdown.evaluated()
        if (clock.is_control_step and (graphs is None or not graphs.is_due)) or self.graph_task() != OUTSIDE:
            return  # a root inside backward is being recomputed: activation checkpointing
        if get_ident() != clock.thread and not clock.is_training_thread():
            return
        before = clock.phase
        if self.grad_enabled():
            # another module trains beside a reference model in evaluation mode
            self.saw_training_forward |= module.training
            goes_on = before == FORWARD and self._forward_of == id(module)
            if before != FORWARD or module.training:
                # Within a step it is part of the step, for example a loss by features of another model.
                batch.evaluates = not module.training and self.saw_training_forward and not clock.micro_steps
            # An evaluation has no backward pass, and the backward pass of torch.func cannot be seen.
            waits = (module.training or batch.evaluates) and self._transforming() is None
            batch.forwards = 0 if not waits else batch.forwards + 1 if goes_on else 1
            self._forward_of = id(module)
            if graphs is not None:
                if not self.optimizers and self._graphless.infers():
                    self.timed(graphs.before_inference, args, kwargs, module.training)
                else:
                    self.timed(graphs.before_forward, module.training)
            clock.enter(FORWARD)
        elif clock.phase in (DATA, EVAL) or (clock.phase == OTHER and not clock.micro_steps):
            if graphs is not None:
                self.timed(graphs.before_inference, args, kwargs, module.training)
            clock.enter(EVAL)  # but a teacher or critic without gradients in the midst of a step is part of the step
        if clock.phase != before:
            clock.inputs(args, kwargs)

    def before_training_step(self, module: torch.nn.Module) -> None:
        """Begin the forward pass of a framework whose training step is no call of a module."""
        self._forward_begins()
        if self.graphs is not None and not self.clock.is_control_step and self.clock.is_training_thread():
            self.timed(self.graphs.before_forward, module.training)

    def end_epoch(self) -> None:
        """End an epoch. Called by frameworks that report it."""
        if self.graphs is not None and self.clock.is_training_thread():
            self.timed(self.graphs.end_epoch)

    def _forward_begins(self) -> None:
        loss, clock = self.loss, self.clock
        if loss is not None and self.grad_enabled() and (get_ident() == clock.thread or clock.is_training_thread()):
            loss.forward()

    @guarded("forward hook")
    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self.clock.is_control_step or self.graphs is None or not self.grad_enabled():
            return
        if self.graph_task() == OUTSIDE:
            self.timed(self.graphs.after_forward, module, args, output)

    @guarded("forward hook")
    def _forward_failed(self, module: torch.nn.Module) -> None:
        if self._forward_of == id(module):
            self.clock.batch.forward_failed()
        error = sys.exc_info()[1]
        if error is not None:
            self.error_passes(error)

    @guarded("optimizer hook")
    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if sys.exc_info()[1] is not None:
            self.caught.scan()
        if self._leader() is not optimizer:
            self.optimizers.add(optimizer)
            self.hand_steps.is_off = True
        if not self.clock.step and self.clock.is_training_thread():
            self.clock.begin_again(steps_made(optimizer))
        self._nests = self._nests or id(optimizer) in self._in_step
        self._in_step.add(id(optimizer))
        self._runs_closure = kwargs.get("closure") is not None or (len(args) > 1 and callable(args[1]))
        if self._runs_closure:
            return  # the closure runs forward and backward inside step(); they mark themselves
        if self.graph_task() == OUTSIDE:
            self.clock.enter(OPTIMIZER)

    @guarded("optimizer hook")
    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._nests and steps_within_its_own_step(optimizer):
            return
        self._in_step.discard(id(optimizer))
        self._runs_closure = False
        self.clock.optimizer_steps[id(optimizer)] = self.clock.step
        if self.graphs is not None:
            self.graphs.stepped(optimizer)
        if self.graph_task() != OUTSIDE:
            # Each parameter's as soon as its gradient is there, on a thread of autograd's: the step ends with the backward.
            self._stepped_in_backward = True
            return
        if not any(extension.takes_step(optimizer) for extension in self.extensions):
            self.stepped(optimizer)

    def end_step_by_hand(self) -> None:
        """End the step if its weights were updated without an optimizer. The training is about to begin something else."""
        if not self.clock.micro_steps or self._leader.is_known or self.graph_task() != OUTSIDE:
            return  # a backward pass writes gradients
        if self.clock.is_training_thread() and self.hand_steps.is_over():
            self._end_step()

    def end_last_step_by_hand(self) -> None:
        """The same at the end of the session. PyTorch does not show an update of ``weight.data``: then the step is over if it has
        as many backward passes as the one before."""
        self.end_step_by_hand()
        clock, before = self.clock, self.clock.finished.newest
        is_by_hand = not self._leader.is_known and not self.hand_steps.is_off
        if is_by_hand and before is not None and clock.micro_steps == before.micro_steps:
            self._end_step()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step is over: the training's, if it is the one that leads."""
        is_other = self._leader() is not optimizer
        effect = self._leader.stepped(optimizer, self.clock.micro_steps)
        if is_other and self.loss is not None and self.clock.is_training_thread():
            self.loss.other_stepped()
        if effect is Effect.MAY_END:
            self.clock.may_end_step()
        elif effect is not Effect.NONE:
            self._end_step(divided=effect is Effect.ENDS_TWO)

    def steps_in_this_backward(self, optimizer: torch.optim.Optimizer) -> None:
        """The backward that runs is this optimizer's step."""
        self.optimizers.add(optimizer)
        self._stepped_in_backward = True

    @guarded("the end of a backward")
    def after_backward(self) -> None:
        """One that was called by itself, and not by another's walk."""
        if self._stepped_in_backward:
            self._end_step()
            return
        self.clock.enter(OPTIMIZER if self._runs_closure else OTHER)
        if not self._leader.is_known and self.clock.is_training_thread():
            self.hand_steps.after_backward()

    def _end_step(self, *, divided: bool = False) -> None:
        self._leader.step_ended()
        self._stepped_in_backward = False
        self.clock.end_step(divided=divided)
        leader = self._leader() if self.clock.plain_steps_wanted else None
        if leader is not None and self._may_be_plain():
            self.plain.begin(self.clock.plain_steps_wanted, leader, self._leader.most_others)
        else:
            self.plain.end()
        if self.on_first_step is not None:
            first, self.on_first_step = self.on_first_step, None
            first()

    def _may_be_plain(self) -> bool:
        """True if the end of the next step can be seen by the leader's own hook, and nobody needs more."""
        if not self._leader.is_steady or self._nests:
            return False
        if any(extension.package in sys.modules for extension in self.extensions):
            return False
        return not self.clock.stays_detailed() and (self.graphs is None or self.graphs.is_calm)

    def interrupt_plain_steps(self, *_: Any) -> None:
        """The training does something else than its steps: an evaluation or a new epoch begins. 0.2 µs in detailed steps."""
        self.plain.interrupt()

    @guarded("an error that passes")
    def error_passes(self, error: BaseException, in_except: bool = False) -> None:
        """A forward, a backward or the wait for a batch ends with an error, which the training may catch; ``in_except``: it has."""
        if not isinstance(error, OF_MEMORY) or not self.clock.is_training_thread():
            return
        self.clock.batch.has_failed = True
        if self.on_error is not None:
            self.on_error(error, in_except)
