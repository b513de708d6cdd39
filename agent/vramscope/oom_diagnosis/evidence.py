"""Facts of an out-of-memory error, from its record or from its message alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.data_of_steps import is_made_in_each_step
from vramscope.oom_diagnosis.facts import Facts, line_of
from vramscope.oom_diagnosis.growth import LEAKS_THAT_GROW, YOUNG_STEPS, growing, growth_of, retained_by_all
from vramscope.oom_diagnosis.message import Message
from vramscope.oom_diagnosis.message_amounts import EXABYTE
from vramscope.oom_diagnosis.message_backend import OLD_FORMATS, conf_of, software_of
from vramscope.oom_diagnosis.message_kinds import ON_HOST
from vramscope.protocol.gpu_backend import allocator_variable, software
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS, DataHolder, OomRecord

ACCUMULATES_STATE: Final = ("LBFGS",)
"""Optimizers whose state grows over many steps."""
READERS: Final = ("torch/serialization.py", "safetensors/torch.py")
"""Files whose functions read weights."""
CHECKPOINT: Final = "torch/utils/checkpoint.py"
FUSED: Final = ("flash", "efficient", "cuDNN")
"""Attention kernels that keep no scores for the backward."""


def facts_of_message(message: Message) -> Facts:
    """Facts from a pasted text."""
    used = message.allocated_bytes
    reserved = message.process_bytes if message.kind == "mps" else message.reserved_bytes
    if message.kind == "cudaMallocAsync" and used is not None:
        reserved = used
    if message.kind in ON_HOST:
        return _facts_of_host(message)
    others = [process.used_bytes for process in message.processes if not process.mine]
    if others and reserved is not None and not any(process.mine for process in message.processes):
        # In a container NVML reports the host's pids, so that PyTorch does not find itself among them. One of these is
        # this process.
        least = reserved - message.rounding_bytes.get("reserved_bytes", 0)
        ourselves = min((used for used in others if used >= least), default=None)
        if ourselves is not None:
            others.remove(ourselves)
    return Facts(
        kind=message.kind,
        asked_bytes=message.asked_bytes,
        total_bytes=message.total_bytes,
        free_bytes=message.free_bytes,
        limit_bytes=message.limit_bytes,
        reserved_bytes=reserved,
        used_bytes=used,
        others_bytes=sum(others) if others else None,
        outside_pytorch_bytes=_outside_pytorch(message, sum(others)),
        fragmentation_setting=conf_of(message.text, old=message.wording in OLD_FORMATS),
        software=software_of(message.text),
        expandable=message.sets_expandable,
        no_size=EXABYTE in message.text,
        from_text=True,
        certain=message.certain,
        later_exception=message.later_exception,
    )


def _facts_of_host(message: Message) -> Facts:
    """Facts from a text about the host's memory."""
    free, total = message.free_bytes, message.total_bytes
    return Facts(
        kind=message.kind,
        asked_bytes=message.asked_bytes,
        worker=message.worker,
        rss_bytes=next((process.used_bytes for process in message.processes if process.mine), None),
        host_total_bytes=total,
        host_used_bytes=None if total is None or free is None else total - free,
        from_text=True,
        certain=message.certain,
        later_exception=message.later_exception,
    )


def _outside_pytorch(message: Message, listed_bytes: int) -> int | None:
    """Bytes of the device that are neither free, nor reserved by PyTorch in this process, nor of a process in the text.

    None where the text has too few numbers, or where PyTorch has reserved more than the device has.
    """
    own = message.reserved_bytes if message.process_bytes is None else message.process_bytes
    if own is None or message.total_bytes is None or message.free_bytes is None:
        return None
    rest = message.total_bytes - message.free_bytes - own - listed_bytes
    return rest if rest > 0 else None


def facts_of_record(record: OomRecord, message: Message | None = None, *, growth_bytes: int | None = None) -> Facts:
    """Facts from a record, and from its message where the record has none.

    growth_bytes   growth of the memory after each step, by all steps of the run; used where those in the record show none
    """
    counters, owned = record.counters, record.owned_bytes
    own = record.own_frame
    others = [other.used_bytes for other in record.neighbours or () if other.used_bytes is not None]
    leaks = [leak for leak in record.leaks if leak.kind in LEAKS_THAT_GROW]
    worst = next(iter(growing(record)), None)
    expected_state = None
    if record.trainable_bytes is not None and record.state_bytes_per_parameter_byte is not None:
        expected_state = int(record.trainable_bytes * record.state_bytes_per_parameter_byte)
    growth = growth_of(record.steps)
    if growth is not None and growth.of_work and worst is None:
        growth = growth_bytes = None
    # No step ends in an evaluation: what a container has accumulated there is the growth.
    accumulated = record.last_look[0].held_bytes if growth is None and record.last_look else 0
    data = None if record.data is None or is_made_in_each_step(record, record.data.held_bytes) else record.data
    unused = record.unused_graph
    facts = Facts(
        asked_bytes=record.asked_bytes,
        total_bytes=record.total_bytes,
        free_bytes=record.free_bytes,
        limit_bytes=record.limit_bytes,
        reserved_bytes=counters.get("reserved_bytes.all.current"),
        used_bytes=counters.get("active_bytes.all.current"),
        others_bytes=sum(others) if others else None,
        outside_bytes=record.outside_bytes,
        outside_before_bytes=record.outside_before_bytes,
        fragmentation_setting=f"{allocator_variable(record.torch, record.hip)}=expandable_segments:True",
        software=software(record.torch, record.hip),
        parameters_bytes=owned.get("parameters"),
        gradients_bytes=owned.get("gradients"),
        optimizer_bytes=owned.get("optimizer"),
        buffers_bytes=owned.get("buffers"),
        other_models_bytes=owned.get(OTHER_MODELS, 0) + (record.copy_waiting_bytes or 0),
        # In the first step nothing was trained that could be kept.
        kept_models=(record.kept_models or 0) if record.step else 0,
        weight_sized_bytes=record.weight_sized_bytes or 0,
        recomputes=record.phase == "backward" and any(_path(frame.file).endswith(CHECKPOINT) for frame in record.stack),
        gradients_begin=_REDUCES.match(record.node or "") is not None,
        copy_of=record.copy_of or "",
        copy_bytes=record.copy_bytes or 0,
        copies_bytes=sum(
            one.held_bytes for one in record.holders if (one.category, one.module) == (OTHER_MODELS, COPIES)
        ),
        waiting_bytes=record.waiting_bytes or 0,
        trainable_bytes=record.trainable_bytes,
        gradients_at_once_bytes=record.gradients_at_once_bytes,
        largest_parameter_bytes=record.largest_parameter_bytes,
        bucket_bytes=record.bucket_bytes or 0,
        superseded_state_bytes=record.superseded_state_bytes or 0,
        surplus_state_bytes=record.surplus_state_bytes,
        unused_graph_bytes=unused.held_bytes if unused else 0,
        unused_graph_name=f"{unused.name}{f' ({at})' if (at := _line_of(unused)) else ''}" if unused else "",
        frozen_gradients_bytes=record.frozen_gradients_bytes or 0,
        expected_state_bytes=expected_state,
        state_is_unknown=_state_is_unknown(record, expected_state),
        before_forward_bytes=record.allocated_before_forward_bytes,
        before_update_bytes=record.allocated_before_update_bytes,
        progress=record.progress,
        to_come_bytes=record.to_come_bytes,
        forward_bytes=record.forward_bytes,
        batch_size=_batch_size(record),
        input_shape=tuple(record.input_shape),
        input_shape_before=tuple(record.input_shape_before),
        input_sizes=tuple((tuple(shape), peak) for shape, peak in record.input_sizes),
        scales_with_length=_scales_with_length(record),
        peak_now_bytes=record.peak_allocated_bytes,
        peak_before_bytes=record.last_step.get("peak_allocated_bytes"),
        end_before_bytes=record.last_step.get("end_allocated_bytes"),
        peak_at_first_bytes=None if growth is None else growth.first_peak_bytes,
        leaked_bytes=retained_by_all(leaks, record.step),
        leak_name="" if worst is None else worst.name,
        leak_line="" if worst is None or worst.file is None else line_of(worst.file, worst.line),
        leak_advice="" if worst is None else worst.advice,
        data_bytes=data.held_bytes if data else 0,
        data_name=data.name if data else "",
        data_line=_line_of(data) if data else "",
        named_copy_bytes=record.copies.held_bytes if record.copies else 0,
        copy_name=record.copies.name if record.copies else "",
        copy_line=_line_of(record.copies) if record.copies else "",
        growth_bytes=accumulated if accumulated else growth_bytes if growth is None else growth.bytes,
        growth_steps=None if accumulated or growth is None else growth.steps,
        growth_is_young=bool(accumulated) or (growth is not None and growth.steps < YOUNG_STEPS),
        growing_tensor_advice=_growing_tensor_advice(record) if accumulated else "",
        rank=record.rank,
        world_size=record.world_size,
        step=record.step,
        phase=record.phase,
        update=record.update,
        optimizer_kind=record.optimizer_kind,
        thread=record.thread,
        is_reading=any(_path(frame.file).endswith(READERS) for frame in record.stack),
        forwards=record.forwards,
        no_graph_yet=record.no_graph_yet,
        computes=record.computes,
        evaluates=record.evaluates,
        source_line="" if own is None else line_of(own.file, own.line),
        module=record.module or "",
        expandable=bool(record.settings_in_force.get("expandable_segments"))
        or "expandable_segments:True" in record.settings,
        rss_bytes=record.process_rss_bytes,
        host_used_bytes=record.host_used_bytes,
        host_total_bytes=record.host_total_bytes,
        host_kills=record.host_kills,
    )
    if message is None or not message.is_known:
        return facts
    from_text = facts_of_message(message)
    # CUDA's own pool is not in the counters of PyTorch's.
    missing = [name for name in _IN_MESSAGE if getattr(facts, name) is None or message.kind == "cudaMallocAsync"]
    taken = {name: getattr(from_text, name) for name in missing if getattr(from_text, name) is not None}
    return replace(facts, kind=message.kind, worker=message.worker, **taken)


_REDUCES: Final = re.compile(
    r"(?:Mean|Max|Min|Amax|Amin|Std|Var|Norm|LinalgVectorNorm|Logsumexp|Gather|Select|Slice|Index|IndexSelect|Topk|Take|NllLoss2D|NllLoss"
    r"|Prod|Median|Nanmedian|Mode|AvgPool[23]D|AdaptiveAvgPool[23]D|MaxPool[23]DWithIndices|AdaptiveMaxPool[23]D"
    r"|MseLoss|SmoothL1Loss|L1Loss|HuberLoss|BinaryCrossEntropy|BinaryCrossEntropyWithLogits|KlDiv)Backward\d*$"
)
"""Autograd nodes of operations whose result is smaller than what they take."""
_IN_MESSAGE: Final = (
    "asked_bytes",
    "total_bytes",
    "free_bytes",
    "limit_bytes",
    "reserved_bytes",
    "used_bytes",
    "others_bytes",
)


def _line_of(data: DataHolder) -> str:
    return "" if data.file is None or data.line is None else line_of(data.file, data.line)


def _path(file: str) -> str:
    return file.replace("\\", "/")


def _state_is_unknown(record: OomRecord, expected_state: int | None) -> bool:
    if expected_state is not None or not record.trainable_bytes:
        return False
    if record.optimizer_kind is None:
        return record.step == 0  # one will be made, or was made unobserved
    if record.phase == "optimizer" and not record.step:
        return True  # the first update makes it, one parameter after the other
    return record.optimizer_kind in ACCUMULATES_STATE or not record.owned_bytes.get("optimizer")


def _batch_size(record: OomRecord) -> int | None:
    """Rows of the batch: of the running forward; after it, of this step's input if the input's first axis is the batch;
    else as observed in earlier steps. Where neither input has as many, it varies. A batch of one sample may have many rows.

    A size that was only declared does not count: it may have changed since.
    """
    batches = (one for one in record.techniques if one.kind == "batch" and one.observed)
    observed = next((one.detail.get("input_rows", one.detail.get("batch_size")) for one in batches), None)
    if record.batch_size:
        return record.batch_size
    if record.input_shape and record.input_shape_before[:1] == [observed]:
        return record.input_shape[0] or None
    if record.input_shape and observed not in (1, *record.input_shape, *record.input_shape_before):
        return None
    return observed if isinstance(observed, int) and observed > 0 else None


def _scales_with_length(record: OomRecord) -> bool:
    """Whether every observed attention kernel keeps no scores. False where nothing is known of the training."""
    attention = [one.chip for one in record.techniques if one.kind == "attention"]
    return bool(record.techniques) and all(any(kernel in chip for kernel in FUSED) for chip in attention)


def _growing_tensor_advice(record: OomRecord) -> str:
    """Advice of a late suspect that no scan found: only the failed request proves that it was being extended."""
    first = record.last_look[0]
    return first.advice if first.kind == "tensor-growth" and first.growth_bytes_per_step is None else ""
