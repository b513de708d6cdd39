"""What the record of an out-of-memory error tells, or its message alone, as Facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.facts import Facts, place
from vramscope.oom_diagnosis.growth import LEAKS_THAT_GROW, YOUNG_STEPS, growing, growth_of, held_by
from vramscope.oom_diagnosis.message import Message
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS, BlackBox

FILLS_UP: Final = ("LBFGS",)
"""optimizers whose state grows over many steps"""
READERS: Final = ("torch/serialization.py", "safetensors/torch.py")
"""files whose functions read weights"""
FUSED: Final = ("flash", "efficient", "cuDNN")
"""kernels of attention that keep no scores for the backward"""


def facts_of_message(told: Message) -> Facts:
    """What a pasted text tells."""
    used = told.allocated_bytes
    reserved = told.reserved_bytes
    if told.kind == "cudaMallocAsync" and used is not None:
        reserved = used
    others = [process.used_bytes for process in told.processes if not process.mine]
    if others and reserved is not None and not any(process.mine for process in told.processes):
        # In a container NVML tells the host's pids, so that PyTorch does not find itself among them: one of these is ourselves.
        least = reserved - told.rounding_bytes.get("reserved_bytes", 0)
        ourselves = min((used for used in others if used >= least), default=None)
        if ourselves is not None:
            others.remove(ourselves)
    return Facts(
        kind=told.kind,
        asked_bytes=told.asked_bytes,
        total_bytes=told.total_bytes,
        free_bytes=told.free_bytes,
        limit_bytes=told.limit_bytes,
        reserved_bytes=reserved,
        used_bytes=used,
        others_bytes=sum(others) if others else None,
        worker=told.worker,
        expandable="expandable_segments" not in told.text and told.wording not in ("", "1.11 to 2.0", "2.1"),
    )


def facts_of_box(box: BlackBox, told: Message | None = None, *, growth_bytes: int | None = None) -> Facts:
    """What a record tells, and its message where the record says nothing.

    growth_bytes   by how much the floor rises, where the whole run's steps say so and those in the record do not
    """
    counters, owned = box.counters, box.owned_bytes
    own = next((frame for frame in box.stack if frame.own), None)
    others = [other.used_bytes for other in box.neighbours or () if other.used_bytes is not None]
    leaks = [leak for leak in box.leaks if leak.kind in LEAKS_THAT_GROW]
    worst = next(iter(growing(box)), None)
    to_come = None
    if box.trainable_bytes is not None and box.state_bytes_per_parameter_byte is not None:
        to_come = int(box.trainable_bytes * box.state_bytes_per_parameter_byte)
    growth = growth_of(box.steps)
    # In an evaluation no step ends: what a container has gathered there is what has grown.
    gathered = box.last_look[0].held_bytes if growth is None and box.last_look else 0
    facts = Facts(
        asked_bytes=box.asked_bytes,
        total_bytes=box.total_bytes,
        free_bytes=box.free_bytes,
        limit_bytes=box.limit_bytes,
        reserved_bytes=counters.get("reserved_bytes.all.current"),
        used_bytes=counters.get("active_bytes.all.current"),
        others_bytes=sum(others) if others else None,
        outside_bytes=box.outside_bytes,
        outside_before_bytes=box.outside_before_bytes,
        parameters_bytes=owned.get("parameters"),
        gradients_bytes=owned.get("gradients"),
        optimizer_bytes=owned.get("optimizer"),
        buffers_bytes=owned.get("buffers"),
        other_models_bytes=owned.get(OTHER_MODELS, 0),
        copies_bytes=sum(one.held_bytes for one in box.holders if (one.category, one.module) == (OTHER_MODELS, COPIES)),
        waiting_bytes=box.waiting_bytes or 0,
        trainable_bytes=box.trainable_bytes,
        gradients_at_once_bytes=box.gradients_at_once_bytes,
        largest_parameter_bytes=box.largest_parameter_bytes,
        bucket_bytes=box.bucket_bytes or 0,
        optimizer_to_come_bytes=to_come,
        state_is_unknown=_state_is_unknown(box, to_come),
        before_forward_bytes=box.allocated_before_forward_bytes,
        progress=box.progress,
        to_come_bytes=box.to_come_bytes,
        forward_bytes=box.forward_bytes,
        batch_size=_batch_size(box),
        input_shape=tuple(box.input_shape),
        input_shape_before=tuple(box.input_shape_before),
        input_sizes=tuple((tuple(shape), peak) for shape, peak in box.input_sizes),
        goes_with_length=_goes_with_length(box),
        peak_now_bytes=box.peak_allocated_bytes,
        peak_before_bytes=box.last_step.get("peak_allocated_bytes"),
        end_before_bytes=box.last_step.get("end_allocated_bytes"),
        peak_at_first_bytes=None if growth is None else growth.first_peak_bytes,
        leaked_bytes=sum(held_by(leak, box.step) for leak in leaks),
        leak_name="" if worst is None else worst.name,
        leak_place="" if worst is None or worst.file is None else place(worst.file, worst.line),
        leak_advice="" if worst is None else worst.advice,
        growth_bytes=gathered if gathered else growth_bytes if growth is None else growth.bytes,
        growth_is_young=bool(gathered) or (growth is not None and growth.steps < YOUNG_STEPS),
        lengthened=_lengthened(box) if gathered else "",
        rank=box.rank,
        world_size=box.world_size,
        step=box.step,
        phase=box.phase,
        update=box.update,
        thread=box.thread,
        is_reading=any(frame.file.replace("\\", "/").endswith(READERS) for frame in box.stack),
        forwards=box.forwards,
        evaluates=box.evaluates,
        place="" if own is None else place(own.file, own.line),
        module=box.module or "",
        expandable=bool(box.settings_in_force.get("expandable_segments")) or "expandable_segments:True" in box.settings,
        rss_bytes=box.process_rss_bytes,
        host_used_bytes=box.host_used_bytes,
        host_total_bytes=box.host_total_bytes,
        host_kills=box.host_kills,
    )
    if told is None or not told.is_known:
        return facts
    said = facts_of_message(told)
    # CUDA's own pool is not in the counters of PyTorch's.
    better = [name for name in _TOLD if getattr(facts, name) is None or told.kind == "cudaMallocAsync"]
    taken = {name: getattr(said, name) for name in better if getattr(said, name) is not None}
    return replace(facts, kind=told.kind, worker=told.worker, **taken)


_TOLD: Final = (
    "asked_bytes",
    "total_bytes",
    "free_bytes",
    "limit_bytes",
    "reserved_bytes",
    "used_bytes",
    "others_bytes",
)


def _state_is_unknown(box: BlackBox, to_come: int | None) -> bool:
    if to_come is not None or not box.trainable_bytes:
        return False
    if box.optimizer_kind is None:
        return box.step == 0  # one will be made, or was made where nobody saw it
    return box.optimizer_kind in FILLS_UP or not box.owned_bytes.get("optimizer")


def _batch_size(box: BlackBox) -> int | None:
    """Of the forward that ran; behind it (in the loss), of this step's input where that is told as steps are; else as steps were
    seen to be (not as somebody declared them: it may be another by now)."""
    told = (one for one in box.techniques if one.kind == "batch" and one.observed)
    seen = next((one.detail.get("input_rows", one.detail.get("batch_size")) for one in told), None)
    if box.batch_size:
        return box.batch_size
    if box.input_shape and box.input_shape_before[:1] == [seen]:
        return box.input_shape[0] or None
    return seen if isinstance(seen, int) and seen > 0 else None


def _goes_with_length(box: BlackBox) -> bool:
    """Where attention was seen, it must be of a kernel that keeps no scores. False where nothing is known of the training."""
    attention = [one.chip for one in box.techniques if one.kind == "attention"]
    return bool(box.techniques) and all(any(kernel in chip for kernel in FUSED) for chip in attention)


def _lengthened(box: BlackBox) -> str:
    """One tensor that grows can only have been made longer, and only the error itself proves that."""
    first = box.last_look[0]
    return first.advice if first.kind == "tensor-growth" and first.count == 1 else ""
