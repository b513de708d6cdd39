"""What is known of one out-of-memory error, as numbers that can be reckoned with; oom_evidence tells where they come from.

Agent (on the console), server (on the page) and command line (of a pasted message) reckon alike, so it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


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


def place(file: str, line: int | None) -> str:
    """``train.py:87``."""
    name = file.replace("\\", "/").rpartition("/")[2]
    return name if line is None else f"{name}:{line}"
