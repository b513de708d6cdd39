"""Observes one training step. Its hooks exist only during this step.

A listener on the calls of all modules also sees the calls that a checkpoint repeats in backward. Watched functions show
checkpoints without modules, gradient scalers and an emptied cache. The nodes of the autograd graph show which attention ran.
Where ``torch.compile`` made the forward pass, module calls are not observed: the observation is blind, except for calls of
a model around compiled parts.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory import deepspeed_zero
from vramscope.memory.peak_counters import EMPTIERS
from vramscope.process.frames import user_line
from vramscope.process.module_calls import CallListener, module_calls
from vramscope.process.optimizer_calls import optimizer_calls
from vramscope.process.patching import Patches
from vramscope.process.torch_functions import plainly
from vramscope.techniques.checkpoint_regions import CheckpointRegions
from vramscope.techniques.graph_nodes import (
    PRODUCTS,
    REENTRANT,
    SOFTMAX,
    checkpointed_functions,
    first_node_name,
    names_and_oldest,
    saves_on_host,
    softmaxes_between_products,
)
from vramscope.techniques.micro_steps import MicroStepCounter
from vramscope.techniques.observation import StepObservation, weight_of

if TYPE_CHECKING:
    import torch

    from vramscope.steps.clock import StepClock
    from vramscope.steps.patches.dataloader import LoaderPatch

WRAPPERS: Final = frozenset(
    ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel", "DeepSpeedEngine")
)
"""Modules that wrap a model. Only the framework may have a reference to them."""


@dataclasses.dataclass
class _ModuleCalls:
    """Counts of module calls; the fields of StepObservation with the same names."""

    calls: int = 0
    calls_in_eval_mode: int = 0
    called: set[int] = dataclasses.field(default_factory=set)
    in_eval_mode: set[int] = dataclasses.field(default_factory=set)
    autocast: Counter[str] = dataclasses.field(default_factory=Counter)
    learning: Counter[str] = dataclasses.field(default_factory=Counter)
    weights: Counter[tuple[int, torch.dtype]] = dataclasses.field(default_factory=Counter)
    weights_on_gpu: bool = False
    wrappers: list[weakref.ref[torch.nn.Module]] = dataclasses.field(default_factory=list)
    input_shape: tuple[int, ...] = ()
    has_tokens: bool = False


@dataclasses.dataclass
class _CacheClears:
    """Calls of empty_cache; the fields of StepObservation with the same names."""

    cache_clears: int = 0
    cache_clear_ns: int = 0
    cache_cleared_at: tuple[str, int, str] | None = None


class StepObserver:
    """Observes one step: call ``begin`` at the end of the step before and ``end`` at the end of this step."""

    def __init__(self, clock: StepClock, loader: LoaderPatch) -> None:
        import torch

        self._clock = clock
        self._loader = loader
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._grad_enabled = torch.is_grad_enabled
        self._autocast_dtype = _autocast_reader("cuda")
        self._top_hooks: Callable[[bool], Any] = getattr(
            torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignored: None
        )
        self._tensor = torch.Tensor
        self._transform_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
        self._patches = Patches()
        self._removals: list[Callable[[], None]] = []
        self._batches_before = 0
        self._begin_ns = 0
        self._blind = False
        self._calls = _ModuleCalls()
        self._classes: set[type] = set()
        self._micro_steps = MicroStepCounter()
        self._regions = CheckpointRegions()
        self._optimizer_steps_after: set[int] = set()
        self._user_hooks = ""
        """Name of the user's saved-tensor hooks; "" if there are none."""
        self._saved_to_host = ""
        self._scaled_losses = 0
        self._loss_is_product = False
        self._oldest_node: int | None = None
        self._nodes: Counter[str] = Counter()
        self._score_softmaxes = 0
        self._cache = _CacheClears()

    def begin(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        compiled: bool,
        around: Iterable[torch.nn.Module] = (),
        models: Iterable[torch.nn.Module] = (),
    ) -> None:
        """Install the hooks.

        parameters   trained parameters, with the gradients of the step that ended
        compiled     torch.compile made the forward pass, or parts of it
        around       models around the compiled parts, which are not compiled themselves
        models       trained models; keyword arguments are read at their calls only
        """
        import torch

        parameters = list(parameters)
        if parameters and parameters[0].device.type == "cpu":  # training on the CPU, or offloaded parameters
            on_gpu, on_host = self._autocast_dtype, _autocast_reader("cpu")
            self._autocast_dtype = lambda: on_gpu() or on_host()
        self._batches_before = self._loader.batches
        self._blind = compiled
        removals = [_listen(model, self._before_model) for model in around]
        if not compiled:
            hook = guarded("techniques' hook")(self._before_module)
            removals.append(module_calls.listen_to_all(CallListener(hook)))
            removals += [_listen(model, self._before_keyword_call) for model in models]
        if removals:
            if not deepspeed_zero.takes_gradients():
                self._micro_steps.begin(parameters)
            removals.append(optimizer_calls.before(guarded("techniques' hook")(self._before_optimizer)))
        self._removals += removals
        if not compiled:
            scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
            if scaler is not None:  # the step ends within scaler.step
                for kind in (scaler, *scaler.__subclasses__()):
                    if "scale" in vars(kind):
                        self._watch(kind, "scale", self._after_scale)
            self._watch(torch.autograd.graph.saved_tensors_hooks, "__enter__", self._after_hooks_enter)
            for name in EMPTIERS:
                if hasattr(torch._C, name):
                    self._patch(torch._C, name, self._after_empty_cache)
        self._begin_ns = time.perf_counter_ns()

    def end(self, backwards: int) -> StepObservation:
        """Remove all hooks and return the results. ``backwards`` is the step's number of backward passes."""
        duration_ns = time.perf_counter_ns() - self._begin_ns
        self._patches.remove()
        while self._removals:
            self._removals.pop()()
        micro_steps, forwards = self._micro_steps.end(backwards)
        return StepObservation(
            **vars(self._calls),
            **vars(self._cache),
            blind=self._blind,
            micro_steps=micro_steps,
            forwards=forwards,
            backwards=backwards,
            takes_turns=len(self._optimizer_steps_after) > 1,
            batches=self._loader.batches - self._batches_before,
            loader_batch_size=self._loader.batch_size,
            regions=self._regions,
            saved_to_host=self._saved_to_host,
            scaled_losses=self._scaled_losses,
            loss_is_product=self._loss_is_product,
            keeps_gradients=self._micro_steps.keeps_gradients,
            oldest_node=self._oldest_node,
            nodes=self._nodes,
            score_softmaxes=self._score_softmaxes,
            duration_ns=duration_ns,
        )

    # -- module, optimizer and backward calls --------------------------------------------------------------------------------

    def before_walk(self, root: Any) -> None:
        """Handle a backward pass from this tensor. The graph of the first one is read, at about 1 µs per node."""
        self._loss_is_product |= first_node_name(root).startswith("MulBackward")
        self._micro_steps.before_backward()
        if not self._nodes:
            began = time.perf_counter_ns()
            self._nodes, self._oldest_node = names_and_oldest(root)
            if all(any(name.startswith(kind) for name in self._nodes) for kind in (PRODUCTS, SOFTMAX)):
                self._score_softmaxes = softmaxes_between_products(root)
            if REENTRANT in self._nodes:
                self._regions.found_in_graph(checkpointed_functions(root))
            if self._user_hooks and not self._saved_to_host and saves_on_host(root):
                self._saved_to_host = self._user_hooks
            self._clock.spent(time.perf_counter_ns() - began)

    def _before_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.called.add(id(module))
        if self._graph_task() != -1:  # in backward; on CUDA a thread of autograd runs it
            self._regions.called_again(module, self._grad_enabled())
            return
        if not self._clock.is_training_thread():
            return
        began = time.perf_counter_ns()
        if self._grad_enabled():
            hooks = self._top_hooks(True)
            if hooks is not None:
                self._read_hooks(hooks[0], module)
            self._count_call(module, args)
        elif self._regions.called_without_gradients(module):
            self._count_call(module, args)
        self._clock.spent(time.perf_counter_ns() - began)

    def _read_hooks(self, pack: Any, module: torch.nn.Module) -> None:
        name = getattr(pack, "__qualname__", "")
        if name.startswith("_checkpoint_hook."):
            self._regions.called_in_checkpoint(module)
        elif _offloads(getattr(pack, "__module__", ""), name):
            self._saved_to_host = name.partition(".")[0]
        else:
            # Hooks of the user. The graph shows later what they saved.
            self._user_hooks = name.rpartition(".")[2] or "saved_tensors_hooks"

    @plainly
    def _count_call(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        counts = self._calls
        counts.calls += 1
        if not module.training:
            counts.calls_in_eval_mode += 1
            counts.in_eval_mode.add(id(module))
        if type(module) not in self._classes:
            self._classes.add(type(module))
            if not WRAPPERS.isdisjoint(kind.__name__ for kind in type(module).__mro__):
                counts.wrappers.append(weakref.ref(module))
        dtype = self._autocast_dtype()
        if dtype:
            counts.autocast[dtype] += 1
        weight = weight_of(module)
        if weight is None:
            weight = vars(module).get("weight")  # FSDP stores a view of its flat parameter here
        if isinstance(weight, self._tensor):
            counts.weights[id(module), weight.dtype] += 1
            counts.weights_on_gpu |= weight.is_cuda
            if dtype and weight.requires_grad:
                counts.learning[dtype] += 1
        self._read_input(module, args[0] if args else None)
        self._micro_steps.called(module, self._clock.micro_steps)

    def _before_keyword_call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args and not self._calls.input_shape:
            self._before_model(module, args, kwargs)

    def _before_model(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._graph_task() == -1 and self._clock.is_training_thread() and self._grad_enabled():
            main_input = args[0] if args else kwargs.get(getattr(type(module), "main_input_name", "input_ids"))
            self._read_input(module, main_input)
            if self._blind:
                self._micro_steps.called(module, self._clock.micro_steps)

    def _read_input(self, module: torch.nn.Module, value: Any) -> None:
        # Within a transform of torch.func a tensor may be one sample, or stand for another tensor.
        if self._calls.input_shape or not isinstance(value, self._tensor) or self._transform_level() is not None:
            return
        shape = tuple(value.shape)
        has_tokens = not value.dtype.is_floating_point and len(shape) == 2
        if getattr(module, "batch_first", True) is False and len(shape) == 3:
            shape = (shape[1], shape[0], *shape[2:])  # recurrent layers and transformers that put the sequence first
        self._calls.input_shape, self._calls.has_tokens = shape, has_tokens

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # An optimizer step before the first backward belongs to the training step before, which the leader ended.
        if self._clock.micro_steps and self._clock.is_training_thread():
            self._optimizer_steps_after.add(self._clock.micro_steps)

    # -- watched functions ---------------------------------------------------------------------------------------------------

    def _after_hooks_enter(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        kind = type(args[0])
        if kind.__name__ == "_recomputation_hook":
            self._regions.entered_again(args[0].pack_hook)
        elif self._graph_task() != -1 or not self._clock.is_training_thread():
            return
        elif kind.__name__ == "_checkpoint_hook":
            began = time.perf_counter_ns()
            self._regions.entered(args[0].pack_hook)
            self._clock.spent(time.perf_counter_ns() - began)
        elif _offloads(kind.__module__, kind.__name__) and self._grad_enabled():
            # These hooks are around a checkpoint. Modules in it see the checkpoint's own hooks only.
            self._saved_to_host = kind.__name__

    def _after_scale(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        self._scaled_losses += bool(args and args[0].is_enabled())

    def _after_empty_cache(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        self._cache.cache_clears += 1
        self._cache.cache_clear_ns += nanoseconds
        self._cache.cache_cleared_at = self._cache.cache_cleared_at or user_line()

    def _watch(self, owner: Any, name: str, handler: Callable[[tuple[Any, ...], int], None]) -> None:
        @guarded("techniques' hook")
        def before(*args: Any) -> tuple[int, tuple[Any, ...]]:
            return time.perf_counter_ns(), args

        @guarded("techniques' hook")
        def after(call: tuple[int, tuple[Any, ...]], _: Any) -> None:
            began, args = call
            handler(args, time.perf_counter_ns() - began)

        self._patches.watch(owner, name, before=before, after=after)

    def _patch(self, owner: Any, name: str, handler: Callable[[tuple[Any, ...], int], None]) -> None:
        after = guarded("techniques' hook")(handler)

        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            answer = original(*args, **kwargs)
            after(args, time.perf_counter_ns() - began)
            return answer

        self._patches.wrap(owner, name, timed)


def _listen(model: torch.nn.Module, handler: Callable[..., None]) -> Callable[[], None]:
    return module_calls.listen(model, CallListener(guarded("techniques' hook")(handler)))


def _offloads(module: str, name: str) -> bool:
    """Whether saved-tensor hooks move tensors to the host: PyTorch's own, or others whose name says so."""
    return name.partition(".")[0] == "save_on_cpu" or "offload" in f"{module}.{name}".lower()


def _autocast_reader(device_type: str) -> Callable[[], str]:
    """Return a function that reads the current autocast dtype of a device type. It returns "" if autocast is off."""
    import torch

    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 and later

        def read() -> str:
            if not torch.is_autocast_enabled(device_type):
                return ""
            return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")

    else:

        def read() -> str:
            if not torch.is_autocast_enabled():
                return ""
            return str(torch.get_autocast_gpu_dtype()).removeprefix("torch.")

    return read
