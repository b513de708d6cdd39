"""Format of the artifact kinds ``oom`` (an out-of-memory error and the state of the process) and ``bystander`` (the state of a rank
that did not run out when another one did).

One :class:`OomRecord`, as MessagePack, compressed by zlib. Columns are little-endian int64 arrays, as on the wire. None
means not known. What becomes known later (the message, whether the run survived) comes as events that name the record:
:data:`MESSAGE_EVENT` and :data:`SURVIVED_EVENT`. The agent's package ``oom`` writes records, the server's
``analysis/oom`` reads them.

It needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal

import msgspec

from vramscope.protocol.artifact import BadArtifact, unpacked
from vramscope.protocol.messages import Ident, Leak, Technique, Text, Whole
from vramscope.protocol.other_process import MAX_NEIGHBOURS, OtherProcess
from vramscope.protocol.series import CPU, MAX_VALUE
from vramscope.protocol.window import BLOCKS, SEGMENTS, Columns, Layout

FORMAT: Final = 1
MAX_BYTES: Final = 256 << 20
"""Uncompressed size of one record at most: about 4 million blocks."""
MAX_FRAMES: Final = 64
MAX_HOLDERS: Final = 400

EVENT: Final = "out_of_memory"
"""Kind of the event that comes with a record. Data: record, device, asked_bytes, free_bytes, phase, file, line."""
MESSAGE_EVENT: Final = "oom_message"
"""Text of the error. Data: record, error_type, text."""
SURVIVED_EVENT: Final = "oom_survived"
"""The run continued. Data: record, step."""
BYSTANDER_EVENT: Final = "oom_bystander"
"""This rank has written a record because another one ran out. Data: record, device, free_bytes, phase, file, line, asked_by."""

OTHER_MODELS: Final = "other models"
OWNERS: Final = ("parameters", "gradients", "optimizer", "buffers", OTHER_MODELS)
"""The last: weights of models that do not train (a teacher, an average), and copies of weights by name (a checkpoint)."""
MAX_STATE_RATIO: Final = 1 << 20
"""Maximum of ``state_bytes_per_parameter_byte``: above all optimizers, and below what makes sums overflow."""
COPIES: Final = "copies of weights, by name"
"""Module name of these copies in ``holders``."""

Update = Literal["foreach", "fused", "one by one"]
OpenWord = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9 _-]{1,40}$")]
"""Word from a list that the agent writes. The server accepts any other, because a newer agent knows more of them."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a Python stack."""

    file: Text
    line: Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE)]
    function: Text
    own: bool
    """Whether it is the user's code, not a library's."""


class ModuleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one module in one category."""

    module: Text
    """Name within the model; "" is the model itself."""
    category: OpenWord
    """One of OWNERS."""
    held_bytes: Whole
    tensors: Whole


class DataHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A variable or container with tensors that the program has put on the device: a data set, say."""

    name: Text
    file: Text | None
    line: Whole | None
    tensors: Whole
    held_bytes: Whole


class OomRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One error, or the state of a bystander."""

    format: int = FORMAT
    record: Ident
    """Id of the artifact."""
    seen_by: OpenWord
    """Origin of the record. observer: PyTorch's allocator reported the error before it raised it. passing: an error
    that the allocator does not report ended a forward or a backward, or was being handled elsewhere. exception: the
    error that ended the run, afterwards. bystander: another rank ran out, this one did not."""
    time_ns: Whole
    rank: Whole
    world_size: Whole
    error_type: Text | None = None
    error_text: Text | None = None

    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)] | None
    asked_bytes: Whole | None
    """As the allocator rounds it: to 2 MiB from 10 MiB on, and 20 MiB for anything between 1 and 10 MiB."""
    total_bytes: Whole | None = None
    free_bytes: Whole | None = None
    """Of the device, as cudaMemGetInfo reports it."""
    limit_bytes: Whole | None = None
    """Limit of set_per_process_memory_fraction; None: no limit, or not known."""

    step: Whole
    """Optimizer steps that have ended."""
    phase: Text | None = None
    """One of series.PHASES; None: a control step."""
    module: Text | None = None
    """Innermost running module of a known model."""
    node: Text | None = None
    """Running autograd node."""
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Completed share of the forward, by the position of the running module among those without children."""
    to_come_bytes: Whole | None = None
    """Bytes that the rest of the forward and its loss would have kept, extrapolated from the graph; None: too little was done."""
    forward_bytes: Whole | None = None
    """Used memory that belongs to this forward: what its graph keeps, and its local tensors; None: not known."""
    stack: Annotated[list[Frame], msgspec.Meta(max_length=MAX_FRAMES)]
    """Innermost first. Of an error in autograd's thread: the code that called backward."""

    counters: dict[str, int] = {}
    """torch.cuda.memory_stats() at the error, flattened, without peaks (the agent resets those)."""
    counters_before: dict[str, int] = {}
    """Newest sample before the error."""
    peak_allocated_bytes: Whole | None = None
    """Peak so far in the current step."""
    owned_bytes: dict[str, Whole] = {}
    """By OWNERS, each storage once; empty: not counted."""
    trainable_bytes: Whole | None = None
    """Bytes of parameters that require gradients, those still on the host included: size of a full set of gradients."""
    gradients_at_once_bytes: Whole | None = None
    """Most gradients at a time of an optimizer that updates within the backward and frees each gradient then (LOMO),
    with copies in 32 bits; None: a full set is there when the backward ends."""
    bucket_bytes: Whole | None = None
    """DistributedDataParallel's copies of all gradients, allocated with the wrapper."""
    largest_parameter_bytes: Whole | None = None
    waiting_bytes: Whole | None = None
    """Parameters that are still on the host while a model is moved to the device."""
    copy_of: Text | None = None
    """Class of the model that was being copied on the device. Of a dict: ``the model's weights``, and the optimizer's state."""
    copy_bytes: Whole | None = None
    """Size of that copy."""
    copy_waiting_bytes: Whole | None = None
    """The part of it that was not copied yet."""
    forwards: Whole = 0
    """Consecutive forward passes of one model since the last backward."""
    no_graph_yet: bool = False
    """Autograd had recorded no operation on the thread that requested the memory."""
    computes: bool | None = None
    """Whether the call that requested the memory computes with tensors. False: it creates or copies one. None: not known."""
    evaluates: bool = False
    """The model was in evaluation mode, after a step of training, with gradients on."""
    thread: Text | None = None
    """Name of the thread that requested the memory, unless it is the training's or autograd's."""
    narrow_bytes: Whole | None = None
    """Bytes of the trainable parameters with 16 bits a number."""
    kept_models: Whole | None = None
    """Models that no optimizer updates, require gradients, and have the shapes of one that trains; None: not counted."""
    weight_sized_bytes: Whole | None = None
    """Blocks without an owner that are as large as a weight, and may have been computed from it; None: not counted."""
    update: OpenWord | None = None
    """Update loop of the optimizer; None: not known."""
    optimizer_kind: Text | None = None
    superseded_state_bytes: Whole | None = None
    """State of optimizers that no longer step, for weights that another one updates; 0 unless two have it. None: not counted."""
    surplus_state_bytes: Whole | None = None
    """State beyond what one optimizer keeps for the weights that have any; None: not known."""
    frozen_gradients_bytes: Whole | None = None
    """Gradients of weights that require none, and that no optimizer which steps updates; None: not counted."""
    state_bytes_per_parameter_byte: Annotated[float, msgspec.Meta(ge=0, le=MAX_STATE_RATIO)] | None = None
    """Expected bytes of the optimizer's state; None: not known."""
    allocated_before_forward_bytes: Whole | None = None
    before_forward_in_last_step_bytes: Whole | None = None
    """The same of the last complete step."""
    allocated_before_update_bytes: Whole | None = None
    """Allocated bytes when the running optimizer's update began; None outside an update, and where not known."""
    holders: Annotated[list[ModuleBytes], msgspec.Meta(max_length=MAX_HOLDERS)] = []
    layout: Layout | None = None
    pools: list[tuple[int, int]] = []

    samples: dict[str, bytes] = {}
    """Samples of this device in the last minute; names and units as series.SAMPLES."""
    last_step: dict[str, int] = {}
    """Last complete step; names as series.STEPS."""
    steps: dict[str, bytes] = {}
    """Steps so far, thinned: ``step``, ``end_allocated_bytes``, ``peak_allocated_bytes``, named as series.STEPS."""
    losses: dict[str, bytes] = {}
    """Loss in the last minute: ``time_ns``, ``step``, and doubles under a name of series.LOSSES."""
    batch_size: Whole | None = None
    """Rows of the running batch; None: no forward was running, or it had no tensor argument."""
    input_shape: list[Whole] = []
    """Shape of the first argument of the root module that trains; empty: not known."""
    input_shape_before: list[Whole] = []
    """Largest shape of that argument in the last complete step."""
    input_sizes: Annotated[list[tuple[list[Whole], Whole]], msgspec.Meta(max_length=4096)] = []
    """Of earlier steps: the largest shape of that argument, and by how much forward and backward raised the memory. One
    entry a shape."""
    outside_before_bytes: Whole | None = None
    """Lowest sampled device memory of this process outside PyTorch."""
    outside_bytes: Whole | None = None
    """The same at the error: CUDA's context, libraries, other allocators."""
    neighbours: Annotated[list[OtherProcess], msgspec.Meta(max_length=MAX_NEIGHBOURS)] | None = None
    """None: NVML does not report them."""
    process_rss_bytes: Whole | None = None
    host_used_bytes: Whole | None = None
    host_total_bytes: Whole | None = None
    """Of the machine; in a container with a limit both are the container's."""
    host_kills: Whole | None = None
    """Processes that Linux has ended for lack of memory since attach, in the container or else on the machine."""

    settings: Text = ""
    """Text of the allocator's settings."""
    settings_in_force: dict[str, int | float | bool | str | None] = {}
    torch: Text = ""
    hip: Text | None = None
    """``torch.version.hip`` of a build for ROCm."""
    leaks: Annotated[list[Leak], msgspec.Meta(max_length=64)] = []
    last_look: Annotated[list[Leak], msgspec.Meta(max_length=64)] = []
    """Late suspects: containers as large as the growth, in a run too young for ``leaks``. The likeliest comes first."""
    data: DataHolder | None = None
    """Holder of most tensors without a graph that were there before the forward, or outside of any step."""
    unused_graph: DataHolder | None = None
    """The variable with most of a graph that leads to no weights which an optimizer updates."""
    copies: DataHolder | None = None
    """The variable with most copies of the model's weights, by names and shapes."""
    techniques: Annotated[list[Technique], msgspec.Meta(max_length=64)] = []
    window: Ident | None = None
    """Recording that was open at the error: an artifact of its own."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Time it took to make the record."""
    notes: list[Text] = []
    """Reasons why something is missing."""

    @property
    def own_frame(self) -> Frame | None:
        """Innermost frame of the user's own code."""
        return next((frame for frame in self.stack if frame.own), None)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(OomRecord).decode


class BadOomRecord(ValueError):
    """Raised where bytes are not an out-of-memory record of a known format. The text has the reason."""


def pack(record: OomRecord) -> bytes:
    """Bytes of the artifact."""
    return zlib.compress(_encode(record), 1)


def unpack(data: bytes) -> OomRecord:
    """Record in an artifact's bytes; at most MAX_BYTES. Raises BadOomRecord, with a field where one is wrong."""
    try:
        record = unpacked(data, _decode, MAX_BYTES)
    except BadArtifact as bad:
        raise BadOomRecord(str(bad)) from None
    if record.format != FORMAT:
        raise BadOomRecord(f"the record has format {record.format}; this version reads {FORMAT}")
    if record.layout is not None:
        _check("segments", record.layout.segments, tuple(SEGMENTS))
        _check("blocks", record.layout.blocks, tuple(BLOCKS))
    _check("samples", record.samples, ())
    _check("steps", record.steps, ())
    _check("losses", record.losses, ("time_ns", "step") if record.losses else ())
    return record


def _check(name: str, columns: Columns, needed: tuple[str, ...]) -> None:
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or any(length % 8 for length in lengths):
        raise BadOomRecord(f"{name}: columns of different lengths, {sorted(lengths)} bytes")
    missing = [column for column in needed if column not in columns]
    if missing:
        raise BadOomRecord(f"{name}: no column {missing[0]!r}")
