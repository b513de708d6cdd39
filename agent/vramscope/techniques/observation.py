"""Input of the technique detectors: the declared settings, the models and optimizers, and one observed step."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.protocol import messages
from vramscope.techniques.checkpoint_regions import CheckpointRegions

if TYPE_CHECKING:
    import weakref

    import torch

NARROW_BITS: Final = 8
"""Maximum bits per number of an optimizer state or weight that counts as quantized."""


class Detection(NamedTuple):
    """A detected technique, and a finding if something is wrong with it: declared but not observed, for example."""

    technique: messages.Technique
    finding: messages.Pitfall | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepObservation:
    """Results of one observed step: numbers, names and identities of modules.

    blind               torch.compile made the forward pass: calls of its modules were not observed
    calls               module calls with gradients enabled, outside of backward
    calls_in_eval_mode  of these, calls of modules in eval mode
    called              identities of all modules that were called
    in_eval_mode        identities of the modules that were called with gradients enabled in eval mode
    autocast            dtype -> number of these calls that ran under autocast to it
    learning            dtype -> number of these calls under autocast whose weight is trained
    weights             (module's identity, dtype) -> number of these calls with a weight of this dtype (FSDP casts weights
                        for a forward pass)
    weights_on_gpu      some of these calls had their weight on the GPU
    micro_steps         forward and backward passes of one module whose gradients were added up; None if unknown
    forwards            module's identity -> number of its calls in these micro-steps
    backwards           backward passes
    takes_turns         optimizers stepped at different times of the step, each after its own backward (a GAN)
    batches             batches that the DataLoader yielded
    loader_batch_size   samples per batch of that loader, or of the loader before; None if unknown
    input_shape         shape of the first tensor that a module was called with
    has_tokens          this tensor has integers in two dimensions
    wrappers            first module of each wrapper class that was called (DDP, for example)
    saved_to_host       name of what moved saved tensors to the host; "" if nothing did
    scaled_losses       number of losses that an enabled GradScaler scaled
    loss_is_product     a loss was a product: scaled by hand, or weighted
    keeps_gradients     gradients of the step before existed when the first backward began; None if unknown
    oldest_node         autograd's number of the oldest node of the graph
    nodes               name of a graph node -> count
    score_softmaxes     softmaxes over whole score matrices of attention
    cache_clears        calls of empty_cache
    cache_clear_ns      time spent in them
    cache_cleared_at    file, line and function of the first of them
    duration_ns         duration of the step
    """

    blind: bool
    calls: int
    calls_in_eval_mode: int
    called: set[int]
    in_eval_mode: set[int]
    autocast: Counter[str]
    learning: Counter[str]
    weights: Counter[tuple[int, torch.dtype]]
    weights_on_gpu: bool
    micro_steps: int | None
    forwards: Counter[int]
    backwards: int
    takes_turns: bool
    batches: int
    loader_batch_size: int | None
    input_shape: tuple[int, ...]
    has_tokens: bool
    wrappers: list[weakref.ref[torch.nn.Module]]
    regions: CheckpointRegions
    saved_to_host: str
    scaled_losses: int
    loss_is_product: bool
    keeps_gradients: bool | None
    oldest_node: int | None
    nodes: Counter[str]
    score_softmaxes: int
    cache_clears: int
    cache_clear_ns: int
    cache_cleared_at: tuple[str, int, str] | None
    duration_ns: int


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """State of the training when the detectors run. It exists only during one summary.

    framework         loop | huggingface | lightning | accelerate
    config            the framework's settings, as the user set them
    roots             trained models, outermost modules
    known_roots       all known models: also teachers, and models of an earlier training
    optimizers        optimizers that have stepped; the one that ends the training steps comes first
    observation       the newest observed step; None before the first
    observed          number of observed steps
    with_cache_clear  observed steps in which the cache was emptied
    """

    framework: str
    config: Mapping[str, Any]
    roots: Sequence[torch.nn.Module]
    known_roots: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    observation: StepObservation | None
    observed: int
    with_cache_clear: int
    step: int

    @property
    def module_calls(self) -> StepObservation | None:
        """The observed step, if calls of modules were observed in it."""
        step = self.observation
        return step if step is not None and not step.blind and step.calls else None

    @property
    def model_calls(self) -> StepObservation | None:
        """The observed step, if at least calls of whole models were observed: their inputs and the number of calls."""
        step = self.observation
        return step if step is not None and step.micro_steps is not None else None

    @property
    def is_sure(self) -> bool:
        """True if a declared technique that was not observed is a finding. The first observed step may be a warm-up."""
        return self.observed >= 2

    @functools.cached_property
    def modules(self) -> list[torch.nn.Module]:
        """All modules of the trained models, without duplicates."""
        return list({id(module): module for root in self.roots for module in root.modules()}.values())

    @functools.cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All parameters of the trained models, without duplicates."""
        own = (
            parameter for module in self.modules for parameter in module._parameters.values() if parameter is not None
        )
        return list({id(parameter): parameter for parameter in own}.values())

    @functools.cached_property
    def optimizer_states(self) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Each parameter with optimizer state, and the tensors of this state."""
        import torch

        return [
            (parameter, [value for value in state.values() if isinstance(value, torch.Tensor)])
            for optimizer in self.optimizers
            for parameter, state in list(optimizer.state.items())
            if isinstance(state, dict) and isinstance(parameter, torch.Tensor)
        ]

    def setting(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first of these settings that is set and not False, "no" or 0; ("", None) if none is."""
        for name in names:
            value = self.config.get(name)
            if value not in (None, False, "", "no", 0, {}, []):
                return name, value
        return "", None

    def finding(
        self, kind: str, text: str, advice: str, source: tuple[str, int] | tuple[str, int, str] | None = None
    ) -> messages.Pitfall:
        """Build a finding of this step. ``source`` is file and line."""
        file, line = (source[0], source[1]) if source is not None else (None, None)
        return messages.Pitfall(
            kind=kind, text=text[:4096], advice=advice, file=file, line=line or None, first_step=self.step
        )


def world_size() -> int:
    """Number of processes of this training."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def technique(
    kind: str, chip: str, declared: str | None, observed: str | None, **detail: messages.Scalar
) -> messages.Technique:
    """Build the message of a technique. Details that are None are left out."""
    return messages.Technique(
        kind=kind,
        chip=chip[:200],
        declared=declared,
        observed=observed,
        detail={name: value for name, value in detail.items() if value is not None},
    )


def setting_text(name: str, value: Any) -> str:
    """A setting as its user wrote it: ``bf16=True``."""
    return f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}"


def plural(count: int, noun: str) -> str:
    """``1 call``, ``12 calls``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def weight_of(module: torch.nn.Module) -> torch.Tensor | None:
    """Return a module's parameter named weight. The parameters of a TorchScript module are no dict."""
    parameters = module._parameters
    return parameters["weight"] if "weight" in parameters else None  # noqa: SIM401
