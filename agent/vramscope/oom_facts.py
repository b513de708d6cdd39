"""What is known of one out-of-memory error, from its record or from its message alone, as numbers that can be reckoned with.

Agent (on the console), server (on the page) and command line (of a pasted message) reckon alike, so it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from vramscope.black_box import COPIES, OTHER_MODELS, BlackBox
from vramscope.oom_growth import YOUNG_STEPS, growth_of
from vramscope.oom_message import Message

FILLS_UP: Final = ("LBFGS",)
"""optimizers whose state grows over many steps"""
READERS: Final = ("torch/serialization.py", "safetensors/torch.py")
"""files whose functions read weights"""
FUSED: Final = ("flash", "efficient", "cuDNN")
"""kernels of attention that keep no scores for the backward"""
LEAKS_THAT_GROW: Final = ("growing", "growing-eval", "tensor-growth", "cycle", "overlap", "overlap-unfreed")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one error; None: it is not."""

    kind: str = "pytorch"
    """of oom_message.KINDS"""
    asked_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    """of reserved, in blocks that are used (or wait for a stream)"""
    others_bytes: int | None = None
    outside_bytes: int | None = None
    """this process's, besides what PyTorch reserved"""
    outside_before_bytes: int | None = None
    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    buffers_bytes: int | None = None
    other_models_bytes: int = 0
    """weights of models that do not train, and copies of weights by name"""
    copies_bytes: int = 0
    """of these, the copies"""
    waiting_bytes: int = 0
    """of a model that is on its way to the card: what is still to come"""
    trainable_bytes: int | None = None
    gradients_at_once_bytes: int | None = None
    """of an optimizer that updates within the backward; None: a full set is made"""
    largest_parameter_bytes: int | None = None
    bucket_bytes: int = 0
    """DistributedDataParallel's copies of all gradients"""
    optimizer_to_come_bytes: int | None = None
    state_is_unknown: bool = False
    """how much the optimizer will keep nobody can tell: it is not PyTorch's own and has made none yet, or has not made all"""
    before_forward_bytes: int | None = None
    progress: float | None = None
    """how far the forward was, 0 to 1"""
    to_come_bytes: int | None = None
    """what the rest of it would have kept, drawn out from what its graph kept; None: too little was over"""
    forward_bytes: int | None = None
    """what of the memory in use was that forward's"""
    batch_size: int | None = None
    """rows of the batch that ran; None: not known"""
    input_shape: tuple[int, ...] = ()
    input_shape_before: tuple[int, ...] = ()
    """of the last good step; both are empty where one is not known"""
    input_sizes: tuple[tuple[tuple[int, ...], int], ...] = ()
    """of earlier steps: the shape of the input, and by how much forward and backward rose"""
    goes_with_length: bool = False
    """activations go with the length of what each row is: nothing has one value for each pair of tokens"""
    peak_now_bytes: int | None = None
    """highest allocated so far in the step that ran"""
    peak_before_bytes: int | None = None
    """highest allocated of the last good step"""
    end_before_bytes: int | None = None
    """allocated when it ended"""
    peak_at_first_bytes: int | None = None
    """the same of the first step that is known to have ended"""
    leaked_bytes: int = 0
    leak_name: str = ""
    leak_place: str = ""
    leak_advice: str = ""
    growth_bytes: int | None = None
    """by how much what outlives a step has risen, where that is known to rise"""
    growth_is_young: bool = False
    """it has risen over few steps: it may be something that fills up and is wanted"""
    lengthened: str = ""
    """what has grown is one tensor, which was just to be made longer (its shorter selves left the free pieces): what to do"""
    rank: int | None = None
    world_size: int = 1
    step: int | None = None
    phase: str | None = None
    is_reading: bool = False
    """a file of weights is being read onto the card"""
    forwards: int = 0
    """of one model, that began one behind the other with no backward between"""
    evaluates: bool = False
    """a model in evaluation mode, behind a step of training, with gradients on"""
    update: str | None = None
    """of black_box.Update"""
    thread: str | None = None
    """that asked, where it is neither the training's nor autograd's"""
    place: str = ""
    """``train.py:12``"""
    module: str = ""
    expandable: bool = False
    worker: int | None = None
    rss_bytes: int | None = None
    host_used_bytes: int | None = None
    host_total_bytes: int | None = None
    host_kills: int | None = None
    """processes that Linux has ended for want of memory while the run trained"""

    @property
    def room_bytes(self) -> int | None:
        """What PyTorch could have had at most: what it has reserved, and what was free or allowed beyond."""
        whole = self.whole_bytes
        return whole if whole is None or self.limit_bytes is None else min(whole, self.limit_bytes)

    @property
    def whole_bytes(self) -> int | None:
        """The same without any limit that was set."""
        if self.reserved_bytes is None or self.free_bytes is None:
            return None
        return self.reserved_bytes + self.free_bytes

    @property
    def shortfall_bytes(self) -> int | None:
        """By how much the request was more than could be had in one piece."""
        room = self.room_bytes
        if room is None or self.asked_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.asked_bytes - (room - self.reserved_bytes))

    @property
    def idle_bytes(self) -> int | None:
        """Reserved and not used: free pieces."""
        if self.reserved_bytes is None or self.used_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.used_bytes)

    @property
    def full_gradients_bytes(self) -> int:
        """A full set of gradients, made or to come; as many as are there at a time, where each is let go of once it was used."""
        whole, at_once = self.trainable_bytes or 0, self.gradients_at_once_bytes
        return max(self.gradients_bytes or 0, whole if at_once is None else min(whole, at_once))

    @property
    def full_state_bytes(self) -> int:
        """All of the optimizer's state, made or to come."""
        return max(self.optimizer_bytes or 0, self.optimizer_to_come_bytes or 0)

    @property
    def weights_bytes(self) -> int | None:
        """Parameters and buffers of all models, those included that were still on their way to the card."""
        if self.parameters_bytes is None:
            return None
        return self.parameters_bytes + self.waiting_bytes + (self.buffers_bytes or 0) + self.other_models_bytes

    @property
    def only_serves(self) -> bool:
        """The model is known, and nothing of it is trained."""
        return bool(self.parameters_bytes) and self.trainable_bytes == 0

    @property
    def fixed_bytes(self) -> int | None:
        """What the training needs in each step whatever the batch: weights, a full set of gradients and its copies, all optimizer
        state."""
        if self.weights_bytes is None:
            return None
        return self.weights_bytes + self.full_gradients_bytes + self.bucket_bytes + self.full_state_bytes

    @property
    def working_bytes(self) -> int | None:
        """Used, and none of the owners': activations, the batch, temporaries."""
        if self.used_bytes is None or self.parameters_bytes is None:
            return None
        owned = self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes, self.buffers_bytes
        return max(0, self.used_bytes - self.other_models_bytes - self.bucket_bytes - sum(part or 0 for part in owned))

    @property
    def beside_bytes(self) -> int:
        """Used, and none of the owners', but not made by this forward: what was there before it, and what is known to leak. It
        does not shrink with the batch. 0 where not known."""
        if self.working_bytes is None or self.used_bytes is None:
            return 0
        before = max(0, (self.before_forward_bytes or 0) - (self.used_bytes - self.working_bytes))
        grown = max(self.leaked_bytes, self.growth_bytes or 0)
        # (An evaluation with gradients on has gathered it since the first of its forwards began.)
        since = self.evaluates and self.forwards > 1
        return min(self.working_bytes, before + grown if since else max(before, grown))

    @property
    def unexplained_bytes(self) -> int:
        """Of a forward that was not heard to begin: what is neither its own nor any owner's. Whether that was there before, or has
        come in this step and goes on growing, is not known."""
        working, own = self.working_bytes, self.forward_bytes
        heard = self.before_forward_bytes is not None
        return 0 if heard or working is None or own is None else max(0, working - own)

    @property
    def input_times(self) -> float | None:
        """How many times as large the input is as the last good step's; None where one of them is not known."""
        before = prod(self.input_shape_before)
        return prod(self.input_shape) / before if self.input_shape and before else None

    @property
    def only_more_rows(self) -> bool:
        """The input has more rows than the last good step's, each as long as before; and they are no tokens of one sequence, of
        which each may have a value with each other."""
        now, before = self.input_shape, self.input_shape_before
        rows = [place for place, (a, b) in enumerate(zip(now, before, strict=False)) if a != b]
        apart = self.goes_with_length or len(now) > 2
        return apart and len(rows) == 1 and now[rows[0]] == self.batch_size and now.count(self.batch_size) == 1

    @property
    def least_bytes(self) -> int | None:
        """The least that would have been needed: for this request, for the last good step, for weights and their state."""
        if self.used_bytes is None or self.asked_bytes is None:
            return None
        return max(self.used_bytes + self.asked_bytes, self.peak_before_bytes or 0, self.fixed_bytes or 0)


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
    seen = next((one.detail.get("batch_size") for one in told), None)
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


def growing(box: BlackBox) -> list[Any]:
    """Leaks of the record that get larger, what holds most by now first; where there are none, what the last look found."""
    leaks = [leak for leak in box.leaks if leak.kind in LEAKS_THAT_GROW and not _is_of_an_evaluation(leak)]
    return sorted(leaks, key=lambda leak: -held_by(leak, box.step)) or list(box.last_look)


def held_by(leak: Any, step: int) -> int:
    """What a leak holds by now: at its last look, and its growth since; of what is emptied every so many steps, as far as it has
    filled in this fill, if the first began with the training; of what each evaluation empties, nothing that steps could tell."""
    if _is_of_an_evaluation(leak):
        return 0
    if leak.emptied_after is not None:
        return int(leak.exclusive_bytes * (step % leak.emptied_after) / leak.emptied_after)
    grown = (leak.growth_bytes_per_step or 0) * max(0, step - leak.last_step)
    return int(leak.exclusive_bytes + grown)


def _is_of_an_evaluation(leak: Any) -> bool:
    """Whether it is emptied by the time that an evaluation is over: where memory runs out within one, the last look has it."""
    return leak.emptied_after is not None and leak.per != "step"


def place(file: str, line: int | None) -> str:
    """``train.py:87``."""
    name = file.replace("\\", "/").rpartition("/")[2]
    return name if line is None else f"{name}:{line}"
