"""Numbers that are known of one out-of-memory error. The module ``evidence`` makes them from a record or from a text.

The agent (console), the server (page) and the command line (a pasted message) diagnose from the same Facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

COPIES: Final = {"AdamW": 1, "Adam": 1, "SGD": 0}
"""Copies of the parameters that an optimizer's foreach update makes, with its defaults."""
MOST_COPIES: Final = 2


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one error; None where a number is not known."""

    kind: str = "pytorch"
    """Key of message.KINDS."""
    asked_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    """Reserved bytes in blocks that are allocated or wait for a stream."""
    others_bytes: int | None = None
    outside_bytes: int | None = None
    """Device memory of this process that PyTorch did not reserve."""
    outside_pytorch_bytes: int | None = None
    """Device memory that is neither free, nor PyTorch's, nor of a process that the text names. Known from texts only."""
    from_text: bool = False
    """The facts come from a text alone."""
    certain: bool = True
    """False: other errors use the same text."""
    later_exception: str = ""
    """Class of another exception with which a later traceback of a text ends."""
    no_size: bool = False
    """The request in a text is larger than an exabyte."""
    fragmentation_setting: str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    """Setting against fragmentation that version and backend know; empty where there is none."""
    software: str = "CUDA"
    """Name of the backend: CUDA, HIP, XPU, NPU."""
    outside_before_bytes: int | None = None
    """The lowest value of it that was sampled before."""
    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    buffers_bytes: int | None = None
    other_models_bytes: int = 0
    """Weights of models that do not train, and copies of weights by name, the rest of one that is being made included."""
    kept_models: int = 0
    """Models that do not train any more, with the shapes of the one that does: those of earlier folds, say."""
    weight_sized_bytes: int = 0
    """Bytes without an owner that may have been computed from the weights: no batch makes them smaller."""
    recomputes: bool = False
    """A checkpointed part is run again within the backward: the rest of its forward is still to come."""
    gradients_begin: bool = False
    """The request is a gradient that is larger than the one it is computed from: the first of its size in the backward."""
    copy_of: str = ""
    """Class of the model that is being copied, or what a dict that is being copied has; empty: none is."""
    copy_bytes: int = 0
    """Size of that copy."""
    copies_bytes: int = 0
    """The copies among them."""
    waiting_bytes: int = 0
    """Bytes of a model that is being moved to the device and are still on the host."""
    trainable_bytes: int | None = None
    gradients_at_once_bytes: int | None = None
    """Most gradients at a time, of an optimizer that updates within the backward. None: a full set is made."""
    largest_parameter_bytes: int | None = None
    bucket_bytes: int = 0
    """DistributedDataParallel's copies of all gradients."""
    superseded_state_bytes: int = 0
    """State of at least two optimizers that no longer step, for weights that another one updates."""
    surplus_state_bytes: int | None = None
    """State beyond what one optimizer keeps for the weights that have any. None: those weights are not known."""
    unused_graph_bytes: int = 0
    """Graph that leads to no weights which an optimizer updates."""
    unused_graph_name: str = ""
    """The variable that retains it, with its line."""
    frozen_gradients_bytes: int = 0
    """Gradients of weights that are frozen by now, and that no optimizer uses."""
    expected_state_bytes: int | None = None
    """Size of the optimizer's whole state; None: not known."""
    state_is_unknown: bool = False
    """The optimizer is not PyTorch's own and has made none, or not all, of its state."""
    before_forward_bytes: int | None = None
    before_update_bytes: int | None = None
    """Allocated bytes when the optimizer's update began."""
    progress: float | None = None
    """Completed share of the forward, 0 to 1."""
    to_come_bytes: int | None = None
    """Bytes that the rest of the forward would have kept, extrapolated from its graph. None: too little was done."""
    forward_bytes: int | None = None
    """Used bytes that belong to this forward."""
    batch_size: int | None = None
    """Rows of the batch of this step."""
    input_shape: tuple[int, ...] = ()
    input_shape_before: tuple[int, ...] = ()
    """Shape in the last complete step. Both shapes are empty where one is not known."""
    input_sizes: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Input shapes of earlier steps, and bytes that forward and backward added to the allocated memory."""
    scales_with_length: bool = False
    """Activations are proportional to the length of a row: nothing has a value for each pair of tokens."""
    peak_now_bytes: int | None = None
    """Peak allocated so far in the current step."""
    peak_before_bytes: int | None = None
    """Peak allocated of the last complete step."""
    end_before_bytes: int | None = None
    """Allocated bytes at the end of that step."""
    peak_at_first_bytes: int | None = None
    """Peak allocated of the first complete step that is known."""
    leaked_bytes: int = 0
    leak_name: str = ""
    leak_line: str = ""
    leak_advice: str = ""
    data_bytes: int = 0
    """The program's own data on the device, in the variable with most of it."""
    data_name: str = ""
    data_line: str = ""
    named_copy_bytes: int = 0
    """Copies of the weights in the variable with most of them."""
    copy_name: str = ""
    copy_line: str = ""
    growth_bytes: int | None = None
    """Growth of the memory after each step, where it is known to grow."""
    growth_is_young: bool = False
    """It has grown over few steps only: a cache that fills up looks the same."""
    growth_steps: int | None = None
    """Steps over which it has grown; None where these are not known, as in an evaluation."""
    growing_tensor_advice: str = ""
    """Advice where all growth is one tensor that was being extended. Its shorter versions left the free blocks."""
    rank: int | None = None
    world_size: int = 1
    step: int | None = None
    phase: str | None = None
    is_reading: bool = False
    """A file of weights is being read onto the device."""
    forwards: int = 0
    """Consecutive forward passes of one model without a backward."""
    no_graph_yet: bool = False
    """Autograd has recorded no operation on this thread."""
    computes: bool | None = None
    """The request is for the result of a computation; False: for a new tensor or a copy. None: not known."""
    evaluates: bool = False
    """A model in evaluation mode runs after a step of training, with gradients on."""
    update: str | None = None
    """Update loop of the optimizer, as oom_record.Update."""
    optimizer_kind: str | None = None
    """Name of the optimizer's class."""
    thread: str | None = None
    """Name of the thread that requested the memory, unless it is the training's or autograd's."""
    source_line: str = ""
    """Such as ``train.py:12``."""
    module: str = ""
    expandable: bool = False
    worker: int | None = None
    rss_bytes: int | None = None
    host_used_bytes: int | None = None
    host_total_bytes: int | None = None
    host_kills: int | None = None
    """Processes that Linux has ended for lack of memory during the run."""

    @property
    def available_bytes(self) -> int | None:
        """Most that PyTorch could have reserved: what it had reserved, and what was free and allowed."""
        whole = self.available_without_limit_bytes
        return whole if whole is None or self.limit_bytes is None else min(whole, self.limit_bytes)

    @property
    def available_without_limit_bytes(self) -> int | None:
        """The same without a limit on the process."""
        if self.reserved_bytes is None or self.free_bytes is None:
            return None
        return self.reserved_bytes + self.free_bytes

    @property
    def shortfall_bytes(self) -> int | None:
        """Bytes by which the request exceeds what could still be reserved."""
        available = self.available_bytes
        if available is None or self.asked_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.asked_bytes - (available - self.reserved_bytes))

    @property
    def idle_bytes(self) -> int | None:
        """Reserved bytes that are not used."""
        if self.reserved_bytes is None or self.used_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.used_bytes)

    @property
    def full_gradients_bytes(self) -> int:
        """A full set of gradients, made or expected; where each is freed after its use, the most at a time."""
        most = (self.gradients_at_once_bytes, self._gradients_of_last_step_bytes)
        return max(
            self.gradients_bytes or 0, min([self.trainable_bytes or 0, *(one for one in most if one is not None)])
        )

    @property
    def _gradients_of_last_step_bytes(self) -> int | None:
        """Most that the gradients of the last step can have been, known after it: of models that are trained in turn, those of one.

        None where weights or state may have come since then.
        """
        there = (self.weights_bytes or 0) + (self.optimizer_bytes or 0)
        unchanged = not self.waiting_bytes and not self.other_models_bytes and there <= (self.end_before_bytes or 0)
        if self.phase not in ("data", "other") or not self.step or not unchanged or not self.peak_before_bytes:
            return None
        return max(0, self.peak_before_bytes - there)

    @property
    def full_state_bytes(self) -> int:
        """All of the optimizer's state, made or expected."""
        return max(self.optimizer_bytes or 0, self.expected_state_bytes or 0)

    @property
    def other_state_bytes(self) -> int:
        """Optimizer state beyond what one optimizer keeps: of more optimizers, say. 0 if not known.

        Weights that were frozen after some steps keep theirs. If the weights with state are not known, all may have been trained.
        """
        if self.surplus_state_bytes is not None:
            return self.surplus_state_bytes
        if not self.expected_state_bytes or not self.trainable_bytes:
            return 0
        all_by_trained = max(1.0, (self.parameters_bytes or 0) / self.trainable_bytes)
        return max(0, (self.optimizer_bytes or 0) - int(self.expected_state_bytes * all_by_trained))

    @property
    def update_copies_bytes(self) -> int:
        """Copies of what ``foreach`` updates: none of SGD's, one of AdamW's, and two at most of others'."""
        if self.update not in ("foreach", None):
            return 0
        others = 0 if self.optimizer_kind is None else MOST_COPIES
        copies = 1 if self.phase == "optimizer" else COPIES.get(self.optimizer_kind or "", others)
        return copies * (self.trainable_bytes or 0)

    @property
    def weights_bytes(self) -> int | None:
        """Parameters and buffers of all models, with those that are still on the host."""
        if self.parameters_bytes is None:
            return None
        return self.parameters_bytes + self.waiting_bytes + (self.buffers_bytes or 0) + self.other_models_bytes

    @property
    def more_arrives(self) -> bool:
        """Whether weights may follow those that arrive: a file is being read, or a model is moved beside one that has trained."""
        return self.is_reading or (self.waiting_bytes > 0 and bool(self.step))

    @property
    def is_inference_only(self) -> bool:
        """Whether the model is known and nothing of it is trained."""
        return bool(self.parameters_bytes) and self.trainable_bytes == 0

    @property
    def fixed_bytes(self) -> int | None:
        """Bytes of every step that do not depend on the batch: weights, gradients and their copies, optimizer state."""
        if self.weights_bytes is None:
            return None
        return self.weights_bytes + self.full_gradients_bytes + self.bucket_bytes + self.full_state_bytes

    @property
    def working_bytes(self) -> int | None:
        """Used bytes without an owner: activations, the batch, temporaries."""
        if self.used_bytes is None or self.parameters_bytes is None:
            return None
        owned = self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes, self.buffers_bytes
        return max(0, self.used_bytes - self.other_models_bytes - self.bucket_bytes - sum(part or 0 for part in owned))

    @property
    def outside_step_bytes(self) -> int:
        """Bytes that were allocated or requested since the last step ended, and before any forward pass of a module.

        0 within a step, and where nothing shows that steps call a module: then these may be activations.
        """
        outside = self.phase in ("other", "data") and self.thread is None and self.before_forward_bytes is None
        if not outside or not self.input_shape_before or self.end_before_bytes is None or self.used_bytes is None:
            return 0
        return max(0, self.used_bytes - self.end_before_bytes) + (self.asked_bytes or 0)

    @property
    def is_before_first_forward(self) -> bool:
        """Whether there is a model or data in a variable, and neither its call nor an operation with gradients was seen.

        Nothing is an activation yet.
        """
        no_module = self.before_forward_bytes is None and self.progress is None and not self.input_shape
        outside = self.phase in ("other", "data") and self.thread is None and not self.forwards
        return (
            outside
            and no_module
            and self.no_graph_yet
            and not self.step
            and bool(self.parameters_bytes or self.data_bytes)
        )

    @property
    def constant_bytes(self) -> int:
        """Working bytes that this forward did not make: allocated before it, or leaked. They do not shrink with the batch.

        0 where not known.
        """
        if self.working_bytes is None or self.used_bytes is None:
            return 0
        before = max(0, (self.before_forward_bytes or 0) - (self.used_bytes - self.working_bytes))
        if self.phase in ("forward", "backward") and self.before_forward_bytes is None:
            before = self.data_bytes
        grown = max(self.leaked_bytes, self.growth_bytes or 0)
        # An evaluation with gradients on has accumulated it since its first forward began.
        since = self.evaluates and self.forwards > 1
        return min(self.working_bytes, before + grown if since else max(before, grown))

    @property
    def growth_beside_state_bytes(self) -> int:
        """Growth that the optimizer's state does not explain. One that keeps past gradients needs more in each of its first steps.

        No more can have grown than what was there beside weights and state, now and when the last step had ended.
        """
        kept = (self.parameters_bytes or 0) + (self.optimizer_bytes or 0)
        growth = min(self.growth_bytes or 0, (self.used_bytes or 0) - (self.gradients_bytes or 0) - kept)
        within_step = self.growth_is_young and self.growth_steps is None  # has been accumulated since then
        return growth if within_step or self.end_before_bytes is None else min(growth, self.end_before_bytes - kept)

    @property
    def unexplained_bytes(self) -> int:
        """Working bytes that are not this forward's, where its beginning was not observed.

        They may have been there before, or have come in this step and go on growing.
        """
        working, own = self.working_bytes, self.forward_bytes
        observed = self.before_forward_bytes is not None
        return 0 if observed or working is None or own is None else max(0, working - own - self.data_bytes)

    @property
    def input_ratio(self) -> float | None:
        """Size of the input relative to the last complete step's; None where one of them is not known."""
        before = prod(self.input_shape_before)
        return prod(self.input_shape) / before if self.input_shape and before else None

    @property
    def axis_of_more_rows(self) -> int | None:
        """The axis of the batch, if the input differs from the last complete step's in its number of rows alone; else None."""
        now, before = self.input_shape, self.input_shape_before
        changed = [axis for axis, (a, b) in enumerate(zip(now, before, strict=False)) if a != b]
        if len(now) != len(before) or len(changed) != 1 or now.count(self.batch_size or 0) != 1:
            return None
        return changed[0] if now[changed[0]] == self.batch_size else None

    @property
    def has_only_more_rows(self) -> bool:
        """Whether the input has more rows than the last complete step's, each as long as before.

        False for the tokens of one sequence: each may have a value with each other.
        """
        independent = self.scales_with_length or len(self.input_shape) > 2
        return independent and self.axis_of_more_rows is not None

    @property
    def low_bytes(self) -> int | None:
        """Least that is needed: for this request, for the last complete step, for the weights and their state."""
        if self.used_bytes is None or self.asked_bytes is None:
            return None
        return max(self.used_bytes + self.asked_bytes, self.peak_before_bytes or 0, self.fixed_bytes or 0)


def line_of(file: str, line: int | None) -> str:
    """Name of the file and the line: ``train.py:87``."""
    name = file.replace("\\", "/").rpartition("/")[2]
    return name if line is None else f"{name}:{line}"
