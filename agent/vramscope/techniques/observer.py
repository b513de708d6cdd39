"""What one step shows of how it is trained: hooks for the time of that step, gone afterwards.

A global hook on modules hears each call, also those that a checkpoint makes again in backward; functions are wrapped, so that
a checkpoint without modules, a gradient scaler and an emptied cache are seen; and the autograd graph's nodes tell which attention
ran.
Where ``torch.compile`` has made the forward a hook would make it compile again: the sight is blind then, but for the calls of a
model around compiled parts.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.integrations import zero
from vramscope.memory.peak_counters import EMPTIERS
from vramscope.process import frames
from vramscope.process.module_calls import CallListener, module_calls
from vramscope.process.optimizer_calls import optimizer_calls
from vramscope.process.patching import Fronts
from vramscope.techniques.checkpoint_regions import Regions
from vramscope.techniques.graph_nodes import (
    PRODUCTS,
    REENTRANT,
    SOFTMAX,
    begins_with,
    checkpointed_functions,
    names_and_oldest,
    saves_on_host,
    softmaxes_between_products,
)

if TYPE_CHECKING:
    import torch

    from vramscope.steps.clock import StepClock
    from vramscope.steps.patches.dataloader import LoaderFront

WRAPPERS: Final = frozenset(
    ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel", "DeepSpeedEngine")
)
"""modules that go around a model, and that its framework may know alone"""
PROBES: Final = 8
"""parameters that tell whether gradients were dropped within the step"""


class Sight:
    """One observed step. ``begin`` at the end of the step before, ``end`` at its own; all that it holds are numbers and names.

    calls           module calls with gradients on, outside of backward
    called          the identities of all modules that were called
    in_eval_mode    of those with gradients on, the ones that were in eval mode
    autocast        dtype -> of these, how many ran under autocast to it
    learning        dtype -> of these under autocast, how many had a weight that is trained
    weights         (module's identity, dtype) -> of these, how many had a weight of it at that moment (FSDP casts them for a
                    forward)
    weights_on_gpu  some of these had weights there at that moment
    micro_steps     forward and backward of one module, one after the other, whose gradients were summed up; None where that
                    cannot be told
    forwards        (module's identity) -> how often it was called in these
    turns           optimizers stepped at different moments of the step, each after a backward of its own (a GAN's)
    batches         that the DataLoader gave
    loaded          samples in a batch of that loader, or of the one before the step; None where it does not tell
    input_shape     of the first tensor that a module was called with; of a whole number's, with ``tokens``
    wrappers        the first module of each class around the model that was called (DDP's, say)
    saved_to_host   what took saved tensors to the host; "" where nothing did
    scaled          losses that an enabled GradScaler scaled
    multiplied      a loss was a product: by whoever scales it, or a weight
    keeps_gradients those of the step before were there when the step's first backward began; None where that cannot be told
    oldest_node     autograd's number of the graph's oldest node
    nodes           names of the graph's nodes -> how many
    scores          of these, softmaxes over the scores of an attention
    """

    def __init__(self, clock: StepClock, loader: LoaderFront) -> None:
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
        self._transforming: Callable[[], int | None] = torch._C._functorch.maybe_current_level
        self._fronts = Fronts()
        self._removals: list[Callable[[], None]] = []
        self._probes: list[weakref.ref[torch.Tensor]] = []
        self._in_rounds: Counter[tuple[int, int]] = Counter()
        self._stepped_after: set[int] = set()
        self._packs = ""
        self._classes: set[type] = set()
        self._round = -1
        self._batches_before = 0
        self.blind = False
        self.calls = 0
        self.called: set[int] = set()
        self.calls_in_eval_mode = 0
        self.in_eval_mode: set[int] = set()
        self.autocast: Counter[str] = Counter()
        self.learning: Counter[str] = Counter()
        self.weights: Counter[tuple[int, torch.dtype]] = Counter()
        self.weights_on_gpu = False
        self.scaled = 0
        self.multiplied = False
        self.wrappers: list[weakref.ref[torch.nn.Module]] = []
        self.regions = Regions()
        self.saved_to_host = ""
        self.micro_steps: int | None = None
        self.forwards: Counter[int] = Counter()
        self.turns = False
        self.backwards = 0
        self.batches: int | None = None
        self.loaded: int | None = None
        self.input_shape: tuple[int, ...] = ()
        self.tokens = False
        self.keeps_gradients: bool | None = None
        self.oldest_node: int | None = None
        self.nodes: Counter[str] = Counter()
        self.scores = 0
        self.emptied = 0
        self.emptied_ns = 0
        self.emptied_at: tuple[str, int, str] | None = None
        self.lasted_ns = 0

    def begin(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        compiled: bool,
        around: Iterable[torch.nn.Module] = (),
        models: Iterable[torch.nn.Module] = (),
    ) -> None:
        """Hook what is to be heard.

        parameters   those that are trained, with the gradients of the step that ended
        compiled     torch.compile has made the forward, or parts of it
        around       the models around these parts, whose own calls are no compiler's
        models       those that train: what they are given by name no global hook hears
        """
        import torch

        parameters = list(parameters)
        if parameters and parameters[0].device.type == "cpu":  # it trains there, or they are offloaded
            on_gpu, on_host = self._autocast_dtype, _autocast_reader("cpu")
            self._autocast_dtype = lambda: on_gpu() or on_host()
        self._batches_before = self._loader.batches
        self.blind = compiled
        heard = [_listen(model, self._before_model) for model in around]
        if not compiled:
            hook = guarded("techniques' hook")(self._before_module)
            heard.append(module_calls.listen_to_all(CallListener(hook)))
            heard += [_listen(model, self._before_named) for model in models]
        if heard:
            for parameter in () if zero.takes_gradients() else parameters:
                if parameter.grad is not None:
                    self._probes.append(weakref.ref(parameter))
                    if len(self._probes) == PROBES:
                        break
            heard.append(optimizer_calls.before(guarded("techniques' hook")(self._before_optimizer)))
        self._removals += heard
        if not compiled:
            scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
            if scaler is not None:  # (a step ends within scaler.step)
                for kind in (scaler, *scaler.__subclasses__()):
                    if "scale" in vars(kind):
                        self._watch(kind, "scale", self._scaled)
            self._watch(torch.autograd.graph.saved_tensors_hooks, "__enter__", self._hooks_go_up)
            for name in EMPTIERS:
                if hasattr(torch._C, name):
                    self._front(torch._C, name, self._emptied)
        self._began_ns = time.perf_counter_ns()

    def end(self, backwards: int) -> None:
        """The step is over, with so many backward passes. Takes all hooks out again."""
        self.lasted_ns = time.perf_counter_ns() - self._began_ns
        self._fronts.remove()
        while self._removals:
            self._removals.pop()()
        self.backwards = backwards
        self.batches = self._loader.batches - self._batches_before
        self.loaded = self._loader.batch_size
        if self._round >= 0:
            walked = [(module, times) for (begun, module), times in self._in_rounds.items() if begun < backwards]
            self.micro_steps = max(Counter(module for module, _ in walked).values(), default=0)
            for module, times in walked:
                self.forwards[module] += times
        self.turns = len(self._stepped_after) > 1
        self._probes.clear()
        self._in_rounds.clear()

    # -- what is heard ---------------------------------------------------------------------------------------------------

    def before_walk(self, root: Any) -> None:
        """The step's backward begins from here; of several, the first tells the graph's nodes. Some 1 µs a node."""
        self.multiplied |= begins_with(root).startswith("MulBackward")
        if self.keeps_gradients is None and self._probes:
            parameters = [probe() for probe in self._probes]
            self.keeps_gradients = all(p is not None and p.grad is not None for p in parameters)
        if not self.nodes:
            began = time.perf_counter_ns()
            self.nodes, self.oldest_node = names_and_oldest(root)
            if all(any(name.startswith(kind) for name in self.nodes) for kind in (PRODUCTS, SOFTMAX)):
                self.scores = softmaxes_between_products(root)
            if REENTRANT in self.nodes:
                self.regions.in_graph(checkpointed_functions(root))
            if self._packs and not self.saved_to_host and saves_on_host(root):
                self.saved_to_host = self._packs
            self._clock.spent(time.perf_counter_ns() - began)

    def _before_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called.add(id(module))
        if self._graph_task() != -1:  # in backward, which on CUDA is a thread of autograd's
            self.regions.called_again(module, self._grad_enabled())
            return
        if not self._clock.is_training_thread():
            return
        began = time.perf_counter_ns()
        if self._grad_enabled():
            hooks = self._top_hooks(True)
            if hooks is not None:
                self._inside_hooks(hooks[0], module)
            self._called(module, args)
        elif self.regions.called_without_gradients(module):
            self._called(module, args)
        self._clock.spent(time.perf_counter_ns() - began)

    def _inside_hooks(self, pack: Any, module: torch.nn.Module) -> None:
        name = getattr(pack, "__qualname__", "")
        if name.startswith("_checkpoint_hook."):
            self.regions.called_in_checkpoint(module)
        elif _takes_to_host(getattr(pack, "__module__", ""), name):
            self.saved_to_host = name.partition(".")[0]
        else:
            self._packs = (
                name.rpartition(".")[2] or "saved_tensors_hooks"
            )  # of the user's own: the graph tells what it gives

    def _called(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self.calls += 1
        if not module.training:
            self.calls_in_eval_mode += 1
            self.in_eval_mode.add(id(module))
        if type(module) not in self._classes:
            self._classes.add(type(module))
            if not WRAPPERS.isdisjoint(kind.__name__ for kind in type(module).__mro__):
                self.wrappers.append(weakref.ref(module))
        dtype = self._autocast_dtype()
        if dtype:
            self.autocast[dtype] += 1
        weight = module._parameters.get("weight")
        if weight is None:
            weight = vars(module).get("weight")  # FSDP puts a view of its flat parameter here
        if isinstance(weight, self._tensor):
            self.weights[id(module), weight.dtype] += 1
            self.weights_on_gpu |= weight.is_cuda
            if dtype and weight.requires_grad:
                self.learning[dtype] += 1
        self._see_input(module, args[0] if args else None)
        self._in_round(module)

    def _before_named(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args and not self.input_shape:
            self._before_model(module, args, kwargs)

    def _before_model(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._graph_task() == -1 and self._clock.is_training_thread() and self._grad_enabled():
            given = args[0] if args else kwargs.get(getattr(type(module), "main_input_name", "input_ids"))
            self._see_input(module, given)
            if self.blind:
                self._in_round(module)

    def _in_round(self, module: torch.nn.Module) -> None:
        round_ = self._clock.micro_steps
        if round_ != self._round:
            if self._probes and all((p := probe()) is None or p.grad is None for probe in self._probes):
                self._in_rounds.clear()  # what was summed up so far was dropped: no accumulation
            self._round = round_
        self._in_rounds[round_, id(module)] += 1

    def _see_input(self, module: torch.nn.Module, given: Any) -> None:
        # (Under a transform of torch.func a tensor is one sample's, or another's shadow.)
        if self.input_shape or not isinstance(given, self._tensor) or self._transforming() is not None:
            return
        shape = tuple(given.shape)
        whole = not given.dtype.is_floating_point and len(shape) == 2
        if getattr(module, "batch_first", True) is False and len(shape) == 3:
            shape = (shape[1], shape[0], *shape[2:])  # a recurrent layer or transformer of its own order
        self.input_shape, self.tokens = shape, whole

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # What steps before the first backward belongs to the step before: the leader ended it.
        if self._clock.micro_steps and self._clock.is_training_thread():
            self._stepped_after.add(self._clock.micro_steps)

    # -- wrapped functions -------------------------------------------------------------------------------------------------

    def _hooks_go_up(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        kind = type(args[0])
        if kind.__name__ == "_recomputation_hook":
            self.regions.entered_again(args[0].pack_hook)
        elif self._graph_task() != -1 or not self._clock.is_training_thread():
            return
        elif kind.__name__ == "_checkpoint_hook":
            began = time.perf_counter_ns()
            self.regions.entered(args[0].pack_hook)
            self._clock.spent(time.perf_counter_ns() - began)
        elif _takes_to_host(kind.__module__, kind.__name__) and self._grad_enabled():
            self.saved_to_host = (
                kind.__name__
            )  # around a checkpoint, whose own hooks are all that the modules in it see

    def _scaled(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        self.scaled += bool(args and args[0].is_enabled())

    def _emptied(self, args: tuple[Any, ...], nanoseconds: int) -> None:
        self.emptied += 1
        self.emptied_ns += nanoseconds
        self.emptied_at = self.emptied_at or frames.user_line()

    def _watch(self, owner: Any, name: str, heard: Callable[[tuple[Any, ...], int], None]) -> None:
        @guarded("techniques' hook")
        def before(*args: Any) -> tuple[int, tuple[Any, ...]]:
            return time.perf_counter_ns(), args

        @guarded("techniques' hook")
        def after(call: tuple[int, tuple[Any, ...]], _: Any) -> None:
            began, args = call
            heard(args, time.perf_counter_ns() - began)

        self._fronts.watch(owner, name, before=before, after=after)

    def _front(self, owner: Any, name: str, heard: Callable[[tuple[Any, ...], int], None]) -> None:
        told = guarded("techniques' hook")(heard)

        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            answer = original(*args, **kwargs)
            told(args, time.perf_counter_ns() - began)
            return answer

        self._fronts.put(owner, name, timed)


def _listen(model: torch.nn.Module, heard: Callable[..., None]) -> Callable[[], None]:
    return module_calls.listen(model, CallListener(guarded("techniques' hook")(heard)))


def _takes_to_host(module: str, name: str) -> bool:
    """Of saved-tensor hooks: PyTorch's own by its name, those of others where that says it."""
    return name.partition(".")[0] == "save_on_cpu" or "offload" in f"{module}.{name}".lower()


def _autocast_reader(device_type: str) -> Callable[[], str]:
    """Gives the dtype that autocast casts to just now on this kind of device; "" where it is off."""
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
