"""The models of a process: which modules are the outermost, and what listens to their calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory.explained_memory import is_explained, tensors_of
from vramscope.process.first_parameter import first_parameter
from vramscope.process.inference_calls import count_calls, has_weights
from vramscope.process.live_objects import living
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hook_interface import StepHooks

MOST_ROOTS: Final = 16
OUTSIDE_OF_BACKWARD: Final = -1
MOST_NODES: Final = 4_000
"""Nodes of the first backward pass that are visited, at 1 µs each."""
LEAF: Final = "AccumulateGrad"
"""Class of the node that adds to a tensor's gradient."""
MOST_FRUITLESS: Final = 8
"""Steps without a forward pass of a known model, one after the other, after which no called module is searched for."""

MOST_OTHERS: Final = 10_000
"""Outermost calls of modules without weights, such as transforms, after which a model is waited for no longer.

Each costs 2 µs. For each two modules in such a module, which are all visited, a call counts once more.
"""


class RootHooks:
    """Listens to the calls of one session's root modules, given or found. It keeps none of them.

    listener   to the calls of each
    """

    def __init__(self, hooks: StepHooks, listener: CallListener) -> None:
        self._hooks = hooks
        self._listener = listener
        self._root_listener = CallListener(self._before_root, self._after_root, self._root_failed)
        self._part_listener = CallListener(self._before_part)
        self._running: int | None = None
        """Root, by id, whose call runs."""
        self._are_given = False
        self._found_once = False
        self._kinds: weakref.WeakSet[type] = weakref.WeakSet()
        """Classes of the models that were found."""
        self._parts: set[int] = set()
        """Known models and the modules in them, by id, when a search began."""
        self._called_parts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Parts of models that the loop calls by themselves."""
        self._fruitless = 0
        self._end_search: Callable[[], None] | None = None
        self._end_count: Callable[[], None] = lambda: None
        """Ends the counting of calls of models that are not known."""
        self._others = 0
        self._are_of_calls = False
        """Models were found by their calls, before any training."""

    def install(self) -> None:
        """``model.train()`` and ``.eval()`` (which calls it) show a model that was made after attach, before its first call."""
        import torch

        hooks = self._hooks

        @guarded("model hook")
        def shown(module: torch.nn.Module, mode: bool = True) -> None:
            # Called for each child too, from within; the outermost comes first. A teacher's eval() makes no root of it where the
            # model that trains is known.
            hooks.interrupt_plain_steps()
            if self._are_given or hooks.saw_training_forward:
                return
            if len(hooks.roots) < MOST_ROOTS and hooks.clock.is_training_thread():
                inner = {id(child) for root in list(hooks.roots) for child in root.modules()}
                if id(module) not in inner and first_parameter(module) is not None:
                    self._hook(module)

        hooks.patches.watch(torch.nn.Module, "train", before=shown, pausable=False)
        hooks.when_removed(self.end_search)
        self._end_count = count_calls(self._find_called, self._is_unknown)
        hooks.when_removed(lambda: self._end_count())

    def add(self, module: torch.nn.Module) -> None:
        """Add a module whose call is the forward pass of the training, as the user said."""
        self._are_given = True
        self._hook(module)

    def find_at_attach(self) -> None:
        """Listen to the outermost modules that exist.

        All objects are visited unless the models that variables lead to are all that is on a GPU.
        """
        for module in self._all_in_variables() or outermost_modules():
            self._hook(module)

    def find(self) -> None:
        """Listen to the outermost modules that have parameters. A sweep over all objects: some 50 ms, once or twice a run."""
        for module in outermost_modules():
            self._hook(module)

    def _find_called(self) -> None:
        """Models are called, and nothing trains. The one that trains later may not exist yet."""
        self._are_of_calls = True
        self.find()

    def _all_in_variables(self) -> list[torch.nn.Module]:
        """Return the models that variables lead to, if they and the tensors beside them are all that is on a GPU. Some ms."""
        import torch

        if torch.cuda.is_initialized():
            # No code of the user's tensor classes and modes.
            with guarded("the models in variables"), torch._C.DisableTorchFunction():
                contents = self._hooks.in_variables()
                models = outermost_modules(self._with_roots(contents.models))
                loose = [one for one in contents.tensors if type(one) is not torch.nn.Parameter]
                if any(one.is_cpu for model in models for one in model.parameters()):
                    return []  # the models are still to be moved, and so may others be
                if is_explained(lambda: tensors_of(models, contents.optimizers), lambda: loose):
                    return models
        return []

    def _with_roots(self, modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
        """Return each module once, with the known ones."""
        return list({id(one): one for one in (*modules, *self._hooks.roots)}.values())

    def find_if_unheard(self) -> None:
        """After the first step: a model that was made, wrapped or compiled after attach is found now."""
        if not self._hooks.saw_training_forward:
            self.find()

    def find_in_first_step(self, losses: Any = None) -> None:
        """Find models in the first backward pass, from these tensors, or at the second batch: a model made after attach exists
        by then.

        Beside a given model, those that variables refer to are enough, if the backward pass reaches no other parameters.
        """
        hooks = self._hooks
        self._end_count()
        if hooks.is_in_first_step and not self._found_once:
            self._found_once = True
            if hooks.saw_training_forward and not self._are_of_calls:
                return
            leaves = _leaves_below(losses) if self._are_given else None
            if leaves:
                models = outermost_modules(self._with_roots(hooks.in_variables().models))
                if leaves <= {id(parameter) for model in models for parameter in model.parameters()}:
                    for model in models:
                        self._hook(model)
                    return
            self.find()

    def _is_unknown(self, module: torch.nn.Module) -> bool:
        """A module is called outside of any other's call. Once a known model is, there is nothing to find.

        Without a training and without a loader, nothing else shows a model that was made after attach.
        """
        counts = has_weights(module)
        if not counts:
            self._others += 1 + _modules_in(module) // 2
        if module in self._hooks.roots or self._others > MOST_OTHERS:
            self._end_count()
            return False
        return counts

    def search_called(self) -> None:
        """Take the next module that is called for one that trains: a part of a known model, or a copy of one.

        A backward pass begins, and no known model had a forward pass in its step. Then the loop calls a model's parts, as
        ``agent.actor(x)`` does, or a copy trains, one for each fold, say. Outside of any call, the next one is an outermost one.
        """
        self.end_search()
        if self._fruitless < MOST_FRUITLESS and self._kinds:
            self._fruitless += 1
            self._parts = {id(module) for root in list(self._hooks.roots) for module in root.modules()}
            self._end_search = module_calls.listen_to_all(CallListener(guarded("model hook")(self._called)))

    def end_search(self) -> None:
        """End the search for the module that is called."""
        if self._end_search is not None:
            self._end_search()
            self._end_search = None

    def _called(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        hooks = self._hooks
        if not hooks.grad_enabled() or (type(module) not in self._kinds and id(module) not in self._parts):
            return
        if (
            len(hooks.roots) + len(self._called_parts) < MOST_ROOTS
            and hooks.graph_task() == OUTSIDE_OF_BACKWARD
            and hooks.clock.is_training_thread()
        ):
            self.end_search()
            if _continues_graph(args, kwargs):
                return
            self._fruitless = 0
            if id(module) not in self._parts:
                self._hook(module)
            elif module not in hooks.roots and module not in self._called_parts:
                self._called_parts.add(module)
                hooks.when_removed(module_calls.listen(module, self._part_listener))

    def _hook(self, module: torch.nn.Module) -> None:
        hooks = self._hooks
        if module in hooks.roots:
            return
        for extension in hooks.extensions:
            extension.found_root(module)
        hooks.roots.add(module)
        self._kinds.add(type(module))
        hooks.when_removed(module_calls.listen(module, self._root_listener))

    # -- calls of roots and parts: on the training thread ------------------------------------------------------------

    def _before_root(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if self._running is None:
            self._running = id(module)
        self._listener.before(module, args, kwargs)

    def _after_root(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._returned(module)
        if self._listener.after is not None:
            self._listener.after(module, args, output)

    def _root_failed(self, module: torch.nn.Module) -> None:
        self._returned(module)
        if self._listener.failed is not None:
            self._listener.failed(module)

    def _before_part(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if self._running is None:
            self._hooks.part_called(module, args, kwargs)

    def _returned(self, module: torch.nn.Module) -> None:
        if self._running == id(module):
            self._running = None


def _modules_in(module: torch.nn.Module) -> int:
    import torch

    return sum(1 for _ in torch.nn.Module.modules(module))


def _leaves_below(losses: Any) -> set[int] | None:
    """Return the ids of the tensors whose gradients a backward pass from these tensors computes; None if it is too large."""
    import torch

    tensors = losses if isinstance(losses, (list, tuple)) else (losses,)
    with torch._C.DisableTorchFunction():  # no code of the user's tensor classes
        nodes = [node for tensor in tensors if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen, leaves = set(nodes), set[int]()
    while nodes:
        node = nodes.pop()
        if len(seen) > MOST_NODES:
            return None
        if type(node).__name__ == LEAF:  # a node of the user's Function may have any attribute, ``name`` too
            leaves.add(id(node.variable))
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                nodes.append(child)
    return leaves


def _continues_graph(args: Any, kwargs: Any) -> bool:
    """True if the first argument was computed from weights: then the forward pass did not begin with this call."""
    import torch

    given: Any = args[0] if args else next(iter(kwargs.values()), None)
    return bool(type(given) is torch.Tensor and given.grad_fn is not None)  # a subclass may run the user's code


def _is_made(module: torch.nn.Module) -> bool:
    from torch import jit

    # A traced module has its parameters in C++.
    return "_parameters" in module.__dict__ or isinstance(module, jit.ScriptModule)


def _inside(modules: list[torch.nn.Module]) -> set[int]:
    """Return the ids of all modules in these, at any depth: a variable may lead to a layer and to the model around it alone."""
    inner = set[int]()
    waiting = list(modules)
    while waiting:
        for child in waiting.pop().__dict__.get("_modules", {}).values():
            if child is not None and id(child) not in inner:
                inner.add(id(child))
                waiting.append(child)
    return inner


def outermost_modules(modules: list[torch.nn.Module] | None = None) -> list[torch.nn.Module]:
    """Modules with parameters that no other module contains, largest first, at most MOST_ROOTS; of all that live, or of these.

    A module that is being copied or unpickled has no attributes yet, and is none of them.
    """
    import torch

    if modules is None:
        modules = living(torch.nn.Module)
    modules = [module for module in modules if _is_made(module)]
    inner = _inside(modules)
    sized = []
    with torch._C.DisableTorchFunction():  # no code of the user's tensor classes and modes
        for module in modules:
            if id(module) not in inner:
                size = sum(p.numel() for p in module.parameters())
                if size:
                    sized.append((size, module))
    sized.sort(key=lambda pair: -pair[0])
    return [module for _, module in sized[:MOST_ROOTS]]
