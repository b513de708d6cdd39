"""What to try first against an out-of-memory error."""

from __future__ import annotations

from typing import Final

from vramscope.oom_diagnosis import other_errors
from vramscope.oom_diagnosis.cause import (
    Cause,
    CauseKind,
    FrozenGradients,
    HostMemoryFull,
    LibraryRequest,
    Limiting,
    MemoryParts,
    Missing,
    NotKnown,
    OtherSoftware,
    SupersededState,
    WeightCopy,
)
from vramscope.oom_diagnosis.demand import waits_for_backward
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import is_longer_input

SMALLER_WEIGHTS: Final = "Use smaller weights (bf16), a smaller model, or FSDP."
FIRST_AID: Final = {
    CauseKind.WEIGHTS: f"The model does not fit with this precision. {SMALLER_WEIGHTS}",
    CauseKind.OPTIMIZER: "Use an optimizer with less state (8-bit AdamW, SGD), or foreach=False if its temporaries are too large.",
    CauseKind.ACTIVATIONS: "Use a smaller batch with gradient accumulation, or gradient checkpointing.",
    CauseKind.DATA: "Keep the data on the host. Move to the device what a step needs.",
    CauseKind.FRAGMENTATION: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    CauseKind.LEAK: "Free what is retained: detach() or item() what you keep, del the rest.",
    CauseKind.OTHER_PROCESS: "End the other process, or use another device.",
    CauseKind.LIMIT: "Raise or remove set_per_process_memory_fraction (per_process_memory_fraction in the allocator's settings).",
    CauseKind.OUTSIDE_PYTORCH: "Leave memory for the library, for example with set_per_process_memory_fraction(0.9).",
    CauseKind.UNKNOWN: "",
}
SHORTER_INPUTS: Final = (
    "Use shorter inputs (cut the long ones, or group them by length), a smaller batch with gradient accumulation, or gradient "
    "checkpointing."
)
NO_TRAINING: Final = "Compute {name} under torch.no_grad(). No optimizer updates weights through its graph."
ONE_ROW: Final = "Use {what}{or_else}. The batch size is 1 already."
INFERENCE: Final = "Use a smaller batch, or a shorter sequence."
NO_GRAD: Final = "Run the evaluation under torch.no_grad(). Its forwards then keep no graphs."
EARLIER_BACKWARD: Final = (
    "If the loss is a sum over {forwards} forwards, call backward after each: the graph of each is then freed."
)
OTHER_MODELS: Final = (
    "Move models that do not train to the host or to 16 bits. Keep no second copy of weights on the device."
)
OUTSIDE_STEP: Final = (
    "Make fewer or smaller tensors there, one part after the other, or keep them on the host (.cpu())."
)
EARLIER_OPTIMIZERS: Final = "Keep no earlier optimizer: not in a list, and not through its scheduler."
FROZEN_GRADIENTS: Final = "Set the gradients of weights to None when you freeze them: model.zero_grad()."
MAP_LOCATION: Final = 'Use torch.load(..., map_location="cpu"). The device then has the weights once, not twice.'
PINNED: Final = (
    "Pin less memory at a time (pin_memory, prefetch_factor), or raise the limit of locked memory (ulimit -l)."
)
METAL: Final = "Use a smaller batch, or make the tensor on the line that failed smaller. End other programs."
NO_SIZE: Final = "Check the shapes on the line that failed."
LARGER_THAN_DEVICE: Final = (
    "Check the shapes on the line that failed. If they are right, use a smaller batch or shorter inputs."
)
FREE_WAS_ENOUGH: Final = (
    "Look for other processes on the device{by}, and for a quota of the container, virtual GPU or WSL."
)
PROCESS_LISTS: Final = {"CUDA": "nvidia-smi", "HIP": "amd-smi process", "NPU": "npu-smi info", "XPU": "xpu-smi ps"}
"""Commands that list the processes on a device, by backend."""
LESS_MEMORY: Final = "Use a smaller batch or shorter inputs, gradient checkpointing, or weights of fewer bits."
HOST: Final = "Use fewer DataLoader workers, a smaller prefetch_factor, or keep less in the process."


def first_aid_of(cause: Cause, facts: Facts) -> str:
    """What to try first; empty where nothing is known."""
    kind, details = cause.kind, cause.details
    if isinstance(details, LibraryRequest) and details.pinned:
        return PINNED
    if isinstance(details, OtherSoftware) and facts.kind == "mps":
        return METAL
    if (known := other_errors.FIRST_AID.get(facts.kind)) is not None:
        return known
    if isinstance(details, NotKnown) and details.missing is Missing.LARGER_THAN_DEVICE:
        return NO_SIZE if facts.no_size else LARGER_THAN_DEVICE
    if isinstance(details, NotKnown) and details.missing is Missing.FREE_WAS_ENOUGH:
        command = PROCESS_LISTS.get(facts.software)
        return FREE_WAS_ENOUGH.format(by=f" ({command})" if command else "")
    if isinstance(details, NotKnown) and details.missing is Missing.PARTS:
        return LESS_MEMORY if facts.from_text else ""
    if isinstance(details, HostMemoryFull):
        return HOST
    if isinstance(details, MemoryParts) and details.reason in (Limiting.OUTSIDE, Limiting.BEFORE):
        return OUTSIDE_STEP
    if isinstance(details, SupersededState):
        return EARLIER_OPTIMIZERS
    if isinstance(details, FrozenGradients):
        return FROZEN_GRADIENTS
    if isinstance(details, WeightCopy):
        return f"Keep {facts.copy_name} on the host, or free it where it is not used any more."
    if kind is CauseKind.FRAGMENTATION:
        return facts.fragmentation_setting
    if kind is CauseKind.WEIGHTS and facts.is_reading:
        return MAP_LOCATION
    if kind is CauseKind.WEIGHTS and facts.other_models_bytes >= (facts.shortfall_bytes or 0) > 0:
        return OTHER_MODELS
    if kind is CauseKind.WEIGHTS and isinstance(details, MemoryParts) and details.reason is Limiting.STEP:
        return SMALLER_WEIGHTS  # with gradients and state it fits: it is the largest part of what the step needs
    if kind is CauseKind.ACTIVATIONS and facts.evaluates:
        return NO_GRAD
    if kind is CauseKind.ACTIVATIONS and facts.unused_graph_bytes >= (facts.shortfall_bytes or 0) > 0:
        return NO_TRAINING.format(name=facts.unused_graph_name)
    if kind is CauseKind.ACTIVATIONS and waits_for_backward(facts):
        return EARLIER_BACKWARD.format(forwards=facts.forwards)
    if kind is CauseKind.ACTIVATIONS and facts.batch_size == 1:
        shorter = "shorter inputs (cut the long ones, or group them by length)"
        what = shorter if is_longer_input(facts) else "a shorter sequence or a smaller input"
        return ONE_ROW.format(what=what, or_else="" if facts.phase == "eval" else ", or gradient checkpointing")
    if kind is CauseKind.ACTIVATIONS and facts.phase == "eval":
        return INFERENCE
    if kind is CauseKind.ACTIVATIONS and is_longer_input(facts):
        return SHORTER_INPUTS
    if kind is CauseKind.LEAK and (advice := facts.growing_tensor_advice or facts.leak_advice):
        named = bool(facts.leak_name) and advice.startswith(facts.leak_name.partition(" ")[0])
        return f"{advice if named else advice[0].upper() + advice[1:]}."  # a name keeps its case
    return FIRST_AID[kind]
