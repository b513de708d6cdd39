"""Finds steps and phases in any PyTorch loop: a handful of hooks, all but one of them public.

==========  =====================================================================================
data        the DataLoader is asked for a batch (its iterator's ``__next__``, wrapped; private)
forward     forward hooks on the root modules only: per-module hooks would cost 2 µs each
backward    ``torch.autograd.backward`` and ``grad``, wrapped (``loss.backward()`` calls it by name)
optimizer   ``torch.optim.optimizer.register_optimizer_step_pre_hook``
step's end  ``torch.optim.optimizer.register_optimizer_step_post_hook``
==========  =====================================================================================

Nothing here keeps a module, an optimizer or a tensor alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.steps.clock import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, StepClock

if TYPE_CHECKING:
    import torch

    from vramscope.graphs.watch import GraphWatch


@dataclasses.dataclass
class Connection:
    """What a framework says of a target that it knows."""

    framework: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """the framework's own settings, as the user gave them"""
    listeners: list[Callable[[str, str], None]] = dataclasses.field(default_factory=list)

    def on_failure(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(type, first line)`` when the framework reports an exception that ends the training."""
        self.listeners.append(listener)


def connect(target: object, hooks: LoopHooks) -> Connection | None:
    """A module, an optimizer, or None: a loop of the user's own. None for anything else."""
    import torch

    if isinstance(target, torch.nn.Module):
        hooks.add_root(target)
    elif target is None or isinstance(target, torch.optim.Optimizer):
        if target is not None:
            hooks.lead(target)
        hooks.find_roots()
    else:
        return None
    hooks.on_first_step = hooks.find_roots_if_unheard
    return Connection("loop")


MOST_ROOTS = 16
LEADER_SILENT_STEPS = 8
"""optimizer steps of others after which the leader is taken to be gone"""


class LoopHooks:
    """The hooks of one session. ``install`` once, ``remove`` at detach; both are safe to call again."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.graphs: GraphWatch | None = None
        self.heard_forward = False
        self._roots_are_given = False
        self._found_once = False
        self._batches = 0
        self.on_first_step: Callable[[], None] | None = None
        self._removals: list[Callable[[], None]] = []
        self._inside_backward: Callable[[], bool] = lambda: False
        self._grad_enabled: Callable[[], bool] = lambda: True
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._others_steps = 0

    def install(self, roots: Iterable[torch.nn.Module] = ()) -> None:
        """Hook optimizers, backward and the DataLoader; and the given root modules, or those found (see find_roots)."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        pre = register_optimizer_step_pre_hook(self._before_optimizer)
        post = register_optimizer_step_post_hook(self._after_optimizer)
        self._removals += [pre.remove, post.remove]
        self._grad_enabled = torch.is_grad_enabled
        self._wrap_backward()
        self._wrap_train()
        self._wrap_data_loader()
        for root in roots:
            self.add_root(root)

    def remove(self) -> None:
        while self._removals:
            self._removals.pop()()

    def add_root(self, module: torch.nn.Module) -> None:
        """A module whose call is the forward of the training (or its evaluation, without gradients), as the user told us."""
        self._roots_are_given = True
        self._hook_root(module)

    def _hook_root(self, module: torch.nn.Module) -> None:
        if module in self.roots:
            return
        if getattr(module, "_compiled_call_impl", None) is not None:
            return  # module.compile(): a hook would be traced into the graph and break it; backward still tells
        self.roots.add(module)
        self._removals.append(module.register_forward_pre_hook(ModuleHook(self._before_forward)).remove)
        self._removals.append(module.register_forward_hook(ModuleHook(self._after_forward)).remove)

    def find_roots(self) -> None:
        """Hook the outermost modules that have parameters. A sweep over all objects: some 30 ms, once or twice a run."""
        for module in outermost_modules():
            self._hook_root(module)

    def find_roots_if_unheard(self) -> None:
        """After the first step: a model that was made, wrapped or compiled after attach is found now."""
        if not self.heard_forward:
            self.find_roots()

    def _find_once(self) -> None:
        """In the first backward, or at the second batch: a model that was made after attach stands by then."""
        if not self._found_once:
            self._found_once = True
            self.find_roots_if_unheard()

    def lead(self, optimizer: torch.optim.Optimizer) -> None:
        """Steps are this optimizer's steps."""
        self.optimizers.add(optimizer)
        self._leader = weakref.ref(optimizer)

    # -- the hooks: on the training thread, many times a second ------------------------------------------------------

    @guarded("forward hook")
    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        clock, graphs = self.clock, self.graphs
        if (clock.calm and (graphs is None or not graphs.is_due)) or self._inside_backward():
            return  # (a root inside backward is being recomputed: activation checkpointing)
        if not clock.is_training_thread():
            return
        if self._grad_enabled():
            self.heard_forward = True
            if graphs is not None:
                self._tell(graphs.before_forward, module.training)
            clock.enter(FORWARD)
        elif clock.phase not in (FORWARD, BACKWARD, OPTIMIZER):
            clock.enter(EVAL)  # but a teacher or critic without gradients in the midst of a step is part of the step

    def before_training_step(self, module: torch.nn.Module) -> None:
        """For a framework whose training step is no call of a module: its forward is about to begin."""
        if self.graphs is not None and not self.clock.calm and self.clock.is_training_thread():
            self._tell(self.graphs.before_forward, module.training)

    @guarded("forward hook")
    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self.graphs is not None and self._grad_enabled() and not self.clock.calm and not self._inside_backward():
            self._tell(self.graphs.after_forward, module, output)

    @guarded("optimizer hook")
    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._leader is None or self._leader() is not optimizer:
            self.optimizers.add(optimizer)
        if kwargs.get("closure") is not None or (len(args) > 1 and callable(args[1])):
            return  # the closure runs forward and backward inside step(); they mark themselves
        self.clock.enter(OPTIMIZER)

    @guarded("optimizer hook")
    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.graphs is not None:
            self.graphs.stepped(optimizer)
        # With several optimizers (a GAN's two) one of them leads: a step lasts from one of its steps to the next.
        leader = None if self._leader is None else self._leader()
        if leader is not optimizer:
            self._others_steps += 1
            if leader is not None and self._others_steps < LEADER_SILENT_STEPS:
                return
            self._leader = weakref.ref(optimizer)
        self._others_steps = 0
        self.clock.end_step()
        if self.on_first_step is not None:
            first, self.on_first_step = self.on_first_step, None
            first()

    # -- wrapped functions -----------------------------------------------------------------------------------------------

    def _wrap_backward(self) -> None:
        import torch

        graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._inside_backward = lambda: graph_task() != -1
        original, original_grad = torch.autograd.backward, torch.autograd.grad
        enter, inside = guarded("backward hook")(self.clock.enter), self._inside_backward
        walk = guarded("graph watch")(self._before_walk)

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not inside():  # reentrant checkpointing calls backward within backward
                enter(BACKWARD)
                walk(args, kwargs, "tensors", 2)
            return original(*args, **kwargs)

        def grad(*args: Any, **kwargs: Any) -> Any:
            if not inside():
                walk(args, kwargs, "outputs", 3)
            return original_grad(*args, **kwargs)

        self._replace(torch.autograd, "backward", backward)
        self._replace(torch.autograd, "grad", grad)

    def _before_walk(self, args: tuple[Any, ...], kwargs: dict[str, Any], roots: str, retain_graph_at: int) -> None:
        """``roots``: what the first argument is called; retain_graph and create_graph stand at a place and the next."""
        if self.clock.step == 0 and self.on_first_step is not None:
            self._find_once()
        if self.graphs is not None and self.clock.is_training_thread():
            retain, create = (
                args[place] if len(args) > place else kwargs.get(name)
                for place, name in ((retain_graph_at, "retain_graph"), (retain_graph_at + 1, "create_graph"))
            )
            self._tell(self.graphs.before_walk, args[0] if args else kwargs.get(roots), bool(retain), bool(create))

    def _tell(self, listener: Callable[..., None], *args: Any) -> None:
        """Tell the graph watch something; what it takes is the agent's time."""
        began = time.perf_counter_ns()
        listener(*args)
        self.clock.spent(time.perf_counter_ns() - began)

    def _wrap_train(self) -> None:
        """``model.train()`` and ``.eval()`` (which calls it) show a model that was made after attach, before its first call."""
        import torch

        original = torch.nn.Module.train
        shown = guarded("model hook")(self._shown)

        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            shown(module)
            return original(module, mode)

        self._replace(torch.nn.Module, "train", train)

    def _shown(self, module: torch.nn.Module) -> None:
        # Called for each child too, from within; the outermost comes first. A teacher's eval() makes no root of it where the
        # model that trains is known.
        if self._roots_are_given or self.heard_forward:
            return
        if len(self.roots) < MOST_ROOTS and self.clock.is_training_thread():
            inner = {id(child) for root in list(self.roots) for child in root.modules()}
            if id(module) not in inner and next(module.parameters(), None) is not None:
                self._hook_root(module)

    def _wrap_data_loader(self) -> None:
        from torch.utils.data import dataloader

        iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
        if iterator is None:
            return
        original = iterator.__next__
        clock, enter = self.clock, guarded("data hook")(self.clock.enter)
        asked, ended = guarded("data hook")(self._batch_asked), guarded("data hook")(self._batches_ended)

        def next_batch(self: Any) -> Any:
            if clock.phase != EVAL:
                enter(DATA)
            asked()
            try:
                return original(self)
            except StopIteration:
                ended()
                raise

        self._replace(iterator, "__next__", next_batch)

    def _batch_asked(self) -> None:
        self._batches += 1
        if self._batches == 2 and self.on_first_step is not None:
            self._find_once()
        if self.graphs is not None and not self.clock.calm and self.clock.is_training_thread():
            self._tell(self.graphs.before_batch)

    def _batches_ended(self) -> None:
        if self.graphs is not None and self.clock.is_training_thread():
            self._tell(self.graphs.after_batches)

    def _replace(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put a wrapper in place; on removal take it out again unless somebody has wrapped it meanwhile."""
        original = getattr(owner, name)
        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        wrapper.__name__, wrapper.__doc__ = name, original.__doc__
        setattr(owner, name, wrapper)

        def put_back() -> None:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._removals.append(put_back)


class ModuleHook:
    """A hook that lives in the user's module, and so goes where the module goes: into copies, files and compilers."""

    __slots__ = ("_call", "_is_compiling")

    def __init__(self, call: Callable[..., None]) -> None:
        import torch

        self._call = call
        self._is_compiling = torch.compiler.is_compiling

    def __call__(self, *args: Any) -> None:
        # torch.compile traces hooks into its graph: this test is constant there, and nothing of ours is left in it.
        if not self._is_compiling():
            self._call(*args)

    def __deepcopy__(self, memo: Any) -> ModuleHook:
        return self  # an EMA copy of the model must not copy the session (its locks cannot be copied)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled model must load where vramscope is not installed: there the hook is a function that does nothing.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


def outermost_modules() -> list[torch.nn.Module]:
    """Modules with parameters that no other module contains, largest first, at most MOST_ROOTS."""
    from torch import nn

    # type(), not isinstance: lazy proxies run code when they are asked for their class.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    sized = []
    for module in modules:
        if id(module) not in inner:
            size = sum(p.numel() for p in module.parameters())
            if size:
                sized.append((size, module))
    sized.sort(key=lambda pair: -pair[0])
    return [module for _, module in sized[:MOST_ROOTS]]
