"""The contract of the artifact kinds ``oom``, an out-of-memory error with all that was known of the process at that moment, and
``bystander``, the same of a rank that had not run out when another one did.

One :class:`BlackBox`, as MessagePack, compressed by zlib. Columns are little-endian int64 arrays, as on the wire; None says
not known. What becomes known later (its message, whether the run survived it) comes as events that name the box:
:data:`MESSAGE_EVENT`, :data:`SURVIVED_EVENT`. The agent's ``oom`` room writes it, the server's ``analysis/oom`` reads it.

Stands on msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal

import msgspec

from vramscope.protocol.messages import Ident, Leak, Technique, Text, Whole
from vramscope.protocol.series import CPU, MAX_VALUE
from vramscope.protocol.window import BLOCKS, SEGMENTS, Columns, Layout

FORMAT: Final = 1
MAX_BYTES: Final = 256 << 20
"""of one box when it is not compressed: some 4 million blocks"""
MAX_FRAMES: Final = 64
MAX_HOLDERS: Final = 400

EVENT: Final = "out_of_memory"
"""kind of the event that comes with a box; its data: record, device, asked_bytes, free_bytes, phase, file, line"""
MESSAGE_EVENT: Final = "oom_message"
"""the error's own words, when they came: record, error_type, text"""
SURVIVED_EVENT: Final = "oom_survived"
"""the run went on: record, step"""
BYSTANDER_EVENT: Final = "oom_bystander"
"""this rank has written how it stood when another one ran out: record, device, free_bytes, phase, file, line, asked_by"""

OTHER_MODELS: Final = "other models"
OWNERS: Final = ("parameters", "gradients", "optimizer", "buffers", OTHER_MODELS)
"""the last: weights of models that do not train (a teacher, an average), and copies of weights by name (a checkpoint)"""
COPIES: Final = "copies of weights, by name"
"""as whose they stand among the holders"""

Update = Literal["foreach", "fused", "one by one"]
OpenWord = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9 _-]{1,40}$")]
"""of a list, for those who write; who reads takes any other, too, for a newer agent knows more of them"""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a Python stack."""

    file: Text
    line: Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE)]
    function: Text
    own: bool
    """the user's code, no library's"""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What one module holds of one category."""

    module: Text
    """as the model names it; "" is the model itself"""
    category: OpenWord
    """of OWNERS"""
    held_bytes: Whole
    tensors: Whole


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Another process on the card, as NVML tells."""

    pid: Whole
    used_bytes: Whole | None


class BlackBox(msgspec.Struct, frozen=True, kw_only=True):
    """One error."""

    format: int = FORMAT
    record: Ident
    """the artifact's own id"""
    seen_by: OpenWord
    """observer: PyTorch's allocator told before it raised. passing: an error that the allocator does not tell ended a forward or a
    backward, and may be caught, or was caught elsewhere and was being handled.
    exception: the error that ended the run told, afterwards.
    bystander: another rank ran out, this one did not"""
    time_ns: Whole
    rank: Whole
    world_size: Whole
    error_type: Text | None = None
    error_text: Text | None = None

    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)] | None
    asked_bytes: Whole | None
    """as the allocator rounds it: to 2 MiB from 10 MiB on, and 20 MiB for anything between 1 and 10 MiB"""
    total_bytes: Whole | None
    free_bytes: Whole | None
    """of the device, as cudaMemGetInfo told it"""
    limit_bytes: Whole | None
    """what set_per_process_memory_fraction allows; None: no limit, or not known"""

    step: Whole
    """optimizer steps finished"""
    phase: Text | None
    """of series.PHASES; None: this step was left alone"""
    module: Text | None
    """the innermost module of a known model that was running"""
    node: Text | None
    """the autograd node that was running"""
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    """how far the forward was: the place of the running module among all that have no children"""
    to_come_bytes: Whole | None = None
    """what the rest of the forward and its loss would have kept, drawn out from what its graph kept; None: too little was over"""
    forward_bytes: Whole | None = None
    """what of the memory in use was that forward's: what its graph kept, and what was at hand in it; None: not known"""
    stack: Annotated[list[Frame], msgspec.Meta(max_length=MAX_FRAMES)]
    """innermost first; of an error in autograd's thread: of the code that called backward"""

    counters: dict[str, int]
    """torch.cuda.memory_stats() at that moment, flattened, peaks as the agent has cut them left out"""
    counters_before: dict[str, int]
    """the newest sample before"""
    peak_allocated_bytes: Whole | None
    """highest so far in the step that ran"""
    owned_bytes: dict[str, Whole]
    """by OWNERS, each storage once; empty: not counted"""
    trainable_bytes: Whole | None
    """of parameters that want gradients, those that wait included: what a full set of gradients takes"""
    gradients_at_once_bytes: Whole | None = None
    """at most, of an optimizer that updates within the backward and lets each gradient go then (LOMO), copies in 32 bits included;
    None: a full set is there when the backward is over"""
    bucket_bytes: Whole | None = None
    """copies of all gradients that DistributedDataParallel keeps beside them, from its making on"""
    largest_parameter_bytes: Whole | None
    waiting_bytes: Whole | None
    """parameters that still lie on the host while a model is on its way to the card"""
    forwards: Whole = 0
    """of one model, that began one behind the other with no backward between"""
    evaluates: bool = False
    """it was in evaluation mode, behind a step of training, with gradients on"""
    thread: Text | None = None
    """the name of the thread that asked, where that was neither the training's nor autograd's"""
    narrow_bytes: Whole | None = None
    """of the trainable parameters: those of 16 bits a number"""
    update: OpenWord | None = None
    """how the optimizer goes through its parameters; None: not known"""
    optimizer_kind: Text | None
    state_bytes_per_parameter_byte: float | None
    """what the optimizer's state will take where it is not made yet; None: not known"""
    allocated_before_forward_bytes: Whole | None
    holders: Annotated[list[Holder], msgspec.Meta(max_length=MAX_HOLDERS)]
    layout: Layout | None
    pools: list[tuple[int, int]]

    samples: dict[str, bytes]
    """of this device, the last minute; names and units as series.SAMPLES"""
    last_step: dict[str, int]
    """the last good step, names as series.STEPS"""
    steps: dict[str, bytes] = {}
    """of the steps so far, thinned: ``step``, ``end_allocated_bytes``, ``peak_allocated_bytes``, names as series.STEPS"""
    losses: dict[str, bytes] = {}
    """what the training told of its loss in the last minute: ``time_ns`` and ``step``, and doubles under a name of series.LOSSES"""
    batch_size: Whole | None = None
    """rows of the batch that ran; None: no forward was running, or it was given no tensor"""
    input_shape: list[Whole] = []
    """of the first argument of the root module that trains; empty: not known"""
    input_shape_before: list[Whole] = []
    """the largest that it was given in the last good step"""
    input_sizes: Annotated[list[tuple[list[Whole], Whole]], msgspec.Meta(max_length=4096)] = []
    """of earlier steps the largest that it was given, and by how much forward and backward rose then; one a shape"""
    outside_before_bytes: Whole | None
    """least that this process has had on the device besides what PyTorch reserved, ever since it was first read"""
    outside_bytes: Whole | None
    """the same at the error: CUDA's context, libraries, other allocators"""
    neighbours: list[Neighbour] | None
    """None: NVML does not tell them"""
    process_rss_bytes: Whole | None
    host_used_bytes: Whole | None
    host_total_bytes: Whole | None
    """of the machine; in a container with a limit both are the container's"""
    host_kills: Whole | None = None
    """processes that Linux has ended for want of memory since attach, in the container or else on the machine"""

    settings: Text
    """of the allocator, as given"""
    settings_in_force: dict[str, int | float | bool | str | None]
    torch: Text
    leaks: Annotated[list[Leak], msgspec.Meta(max_length=64)]
    last_look: Annotated[list[Leak], msgspec.Meta(max_length=64)] = []
    """containers that hold as much as has grown, of a run too young for ``leaks`` to know; the likeliest first"""
    techniques: Annotated[list[Technique], msgspec.Meta(max_length=64)]
    window: Ident | None
    """the recorded window that was open then: an artifact of its own"""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """that making the box took"""
    notes: list[Text] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(BlackBox).decode


class BadBlackBox(ValueError):
    """The bytes are no black box, or none of a format that is known here. Says what is the matter."""


def pack(box: BlackBox) -> bytes:
    """The artifact's bytes."""
    return zlib.compress(_encode(box), 1)


def unpack(data: bytes) -> BlackBox:
    """The box in an artifact's bytes. Raises BadBlackBox, with a field where one is wrong; bounded by MAX_BYTES."""
    try:
        opener = zlib.decompressobj()
        raw = opener.decompress(data, MAX_BYTES)
        if opener.unconsumed_tail:
            raise BadBlackBox(f"a black box of more than {MAX_BYTES} bytes")
        if not opener.eof:
            raise BadBlackBox("the black box is cut off")
        box = _decode(raw)
    except zlib.error as fault:
        raise BadBlackBox(f"not compressed as a black box is: {fault}") from None
    except msgspec.MsgspecError as fault:
        raise BadBlackBox(str(fault)) from None
    if box.format != FORMAT:
        raise BadBlackBox(f"a black box of format {box.format}; known here: {FORMAT}")
    if box.layout is not None:
        _check("segments", box.layout.segments, tuple(SEGMENTS))
        _check("blocks", box.layout.blocks, tuple(BLOCKS))
    _check("samples", box.samples, ())
    _check("steps", box.steps, ())
    _check("losses", box.losses, ("time_ns", "step") if box.losses else ())
    return box


def _check(what: str, columns: Columns, needed: tuple[str, ...]) -> None:
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or any(length % 8 for length in lengths):
        raise BadBlackBox(f"{what}: columns of different lengths, {sorted(lengths)} bytes")
    missing = [name for name in needed if name not in columns]
    if missing:
        raise BadBlackBox(f"{what}: no column {missing[0]!r}")
