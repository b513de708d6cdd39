"""The contract between agent and server: every message, every series, its unit, and one version.

A batch is one MessagePack map. Numbers travel as columns: each column of a :class:`Block` is the little-endian
int64 array of one series, so that neither side touches single numbers. Every quantity is a whole number of its
unit and never negative; :data:`UNKNOWN` (-1) says "not known", which is not zero.

This module stands on msgspec alone, because both sides import it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

WIRE_VERSION: Final = 1
"""Raised when a message changes its meaning. A server refuses other versions and names both."""

UNKNOWN: Final = -1
"""In a column: this quantity is not known here (no NVML, no CUDA, phase not seen). Shown as unknown, never as 0."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_ROWS_PER_BLOCK: Final = 65_536
MAX_PIECE_BYTES: Final = 256 * 1024
MAX_PIECES: Final = 1024
"""An artifact has at most 256 MiB."""
MAX_VALUE: Final = 1 << 62
"""No quantity of ours is larger; a larger one is a mistake of the sender."""
MOST_GRAPHS: Final = 10_000
"""Graphs of earlier steps are counted up to there: so many are so many or more."""

CPU: Final = -1
"""Device number of a run that has no CUDA; CUDA devices are numbered as the process sees them."""

PHASES: Final = ("other", "data", "forward", "backward", "optimizer", "eval")
"""Phase codes are positions in this tuple."""
MOST_PHASES: Final = 64
"""a higher code is a mistake of the sender, and no phase of a newer agent"""


def phase_name(code: int) -> str:
    """A phase's name; of one that only a newer agent knows its number."""
    return PHASES[code] if code < len(PHASES) else f"phase {code}"


CATEGORIES: Final = ("parameters", "gradients", "optimizer", "buffers", "activations", "other")

LEAK_KINDS: Final = (
    "growing",  # graphs of earlier steps are kept, more of them from step to step
    "growing-eval",  # the same where nothing is ever walked backward: an evaluation that keeps its graphs
    "overlap",  # a large result of the last step still lives when the next graph is built
    "overlap-unfreed",  # and with it activations that its backward did not free
    "no_grad-missing",  # graphs are built and thrown away without a backward
    "cycle",  # tensors held by a reference cycle until the garbage collector comes by
    "tensor-growth",  # plain tensors, more from step to step
)

ROUNDS: Final = ("step", "batch", "call")
"""what a leak's age and growth are counted in: where nothing trains, batches of a loader, or calls of the model"""

ENDS: Final = ("finished", "failed")
"""how a session ends; the words of those that do not, ``running`` and ``lost``, are none"""

ARTIFACT_KINDS: Final = (
    "window",  # of allocator history: window.py
    "profile",  # what torch.profiler saw in some steps, as tables: profile_tables.py
    "trace",  # the same as PyTorch's own trace, in Chrome's JSON, gzipped: only when it is asked for
    "oom",  # an out-of-memory error with all that was known then: black_box.py
    "bystander",  # how another rank of the run stood when one ran out of memory: a black box, too
)

TECHNIQUES: Final = (
    "gradient_checkpointing",
    "gradient_accumulation",
    "mixed_precision",
    "optimizer",
    "optimizer_8bit",
    "batch",  # batch size and sequence length
    "offload",
    "distributed",  # DDP, FSDP, ZeRO and their stage
    "compile",
    "peft",
    "attention",
    "allocator",
    "gradient_projection",  # to a low rank: GaLore, APOLLO
    "fused_kernels",  # a library's, in the place of several operations: Liger
    "quantized_weights",  # kept in 8 bits or fewer: bitsandbytes', torchao's
)
"""Kinds of techniques that change what a training needs."""


class Series(msgspec.Struct, frozen=True):
    """One named column: its unit, and what it means in the words that a page shows."""

    unit: Literal["bytes", "ns", "count", "percent", "celsius", "milliwatts", "code"]
    meaning: str


SAMPLES: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the reading, since 1970"),
    "step": Series("count", "optimizer steps finished when it was read"),
    "phase": Series("code", "position in PHASES"),
    "allocated_bytes": Series("bytes", "bytes in blocks that tensors own (PyTorch: allocated)"),
    "reserved_bytes": Series("bytes", "bytes that PyTorch took from the device (PyTorch: reserved)"),
    "active_bytes": Series("bytes", "allocated, and blocks that wait for a stream"),
    "requested_bytes": Series("bytes", "what the program asked for, before rounding"),
    "inactive_split_bytes": Series("bytes", "free pieces of segments that are partly in use"),
    "stranded_bytes": Series(
        "bytes", "free bytes that this run's requests cannot use; read now and then, once a window was recorded"
    ),
    "private_pools_bytes": Series(
        "bytes", "of reserved, in private pools: kept for replays of CUDA graphs (PyTorch 2.13 and later)"
    ),
    "private_requested_bytes": Series(
        "bytes", "of requested, in private pools; read every two seconds, and when they grow or shrink"
    ),
    "private_active_bytes": Series("bytes", "of active, in private pools; read with it"),
    "private_inactive_split_bytes": Series(
        "bytes", "of free pieces, in private pools: what replays write to; read with it"
    ),
    "segments": Series("count", "cudaMalloc segments held (expandable segments are not counted by PyTorch)"),
    "alloc_retries": Series("count", "allocations that succeeded only after the cache was emptied, since start"),
    "ooms": Series("count", "out-of-memory errors raised, since start"),
    "device_used_bytes": Series("bytes", "in use on the whole device, all processes (NVML)"),
    "process_device_bytes": Series("bytes", "in use on the device by this process (NVML)"),
    "others_device_bytes": Series(
        "bytes", "in use on the device by other processes that compute on it, where each is told (NVML)"
    ),
    "gpu_utilization_percent": Series("percent", "time in which a kernel ran (NVML)"),
    "temperature_celsius": Series("celsius", "of the GPU (NVML)"),
    "power_milliwatts": Series("milliwatts", "drawn by the GPU (NVML)"),
    "process_rss_bytes": Series("bytes", "resident host memory of this process"),
    "host_used_bytes": Series(
        "bytes",
        "host memory in use: total minus available; in a container with a limit, what counts against it",
    ),
}
"""Columns of the stream ``samples``: one row a tick of the sampler (10 a second by default)."""

STEPS: Final[dict[str, Series]] = {
    "time_ns": Series("ns", "wall clock at the step's end, since 1970"),
    "step": Series("count", "number of the optimizer step, from 1"),
    "duration_ns": Series("ns", "from the end of the step before to the end of this one"),
    "micro_steps": Series("count", "backward passes in the step"),
    "peak_allocated_bytes": Series("bytes", "highest allocated within the step: the allocator's own peak counter"),
    "peak_reserved_bytes": Series("bytes", "highest reserved within the step: the allocator's own peak counter"),
    "peak_phase": Series("code", "phase in which allocated was highest"),
    "end_allocated_bytes": Series("bytes", "allocated when the step ended"),
    "end_reserved_bytes": Series("bytes", "reserved when the step ended"),
    "foreign_reset": Series(
        "code",
        "0: none; 1: somebody reset the peak counters through PyTorch's functions, the peak is still exact; "
        "2: behind PyTorch's functions, the peak is a lower bound",
    ),
    "floor_bytes": Series(
        "bytes",
        "what was still in use when the step ended: allocated on the device; on the CPU what the C allocator has handed out",
    ),
    "graphs_alive": Series(
        "count", f"backward graphs of earlier steps still alive when the step ended, counted up to {MOST_GRAPHS:,}"
    ),
    "watched": Series("code", "1: phases were read in this step; 0: left alone, to measure what watching costs"),
    "agent_ns": Series("ns", "time of this step that the agent's hooks took on the training thread"),
    **{f"{phase}_ns": Series("ns", f"time in {phase}, without what the agent took") for phase in PHASES},
    **{f"{phase}_peak_allocated_bytes": Series("bytes", f"highest allocated in {phase}") for phase in PHASES},
    **{f"{phase}_peak_reserved_bytes": Series("bytes", f"highest reserved in {phase}") for phase in PHASES},
    **{f"end_{category}_bytes": Series("bytes", f"{category} when the step ended") for category in CATEGORIES},
    **{f"peak_{category}_bytes": Series("bytes", f"{category} at the step's peak") for category in CATEGORIES},
}
"""Columns of the stream ``steps``: one row an optimizer step."""

STREAMS: Final[dict[str, dict[str, Series]]] = {"samples": SAMPLES, "steps": STEPS}

LOSSES: Final[dict[str, str]] = {
    "loss": "told by session.log",
    "backward_loss": "what backward began at",
    "trainer_loss": "logged by the Trainer",
}
"""Scalars that are the training's loss, and where each comes from; the first that a run has is shown, they are never mixed."""

ABSENT: Final = b"\xff" * 8
"""In a column of Scalars: not told in this row. One of the many bit patterns that are no number, and no loss has it."""

Word = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,16}\Z")]
"""Of one of the lists above, for those who send. Who receives keeps any other, too, and shows it as it is: a newer agent knows
more of them, and to refuse a word is to refuse the batch."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Ident = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z]{8,40}\Z")]
Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE)]
Scalar = bool | int | float | Text | None
ScalarName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_./-]{0,63}\Z")]
MAX_SCALARS: Final = 32
"""names of Scalars in one message"""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that the process watches. What is not known is None."""

    index: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    name: Text
    uuid: Text | None = None
    total_bytes: Whole | None = None
    """capacity as cudaMemGetInfo tells it"""


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """First message of a session (one process's attach): who watches what, where. Sent again, it replaces the first."""

    project: Name
    name: Name
    tags: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    config: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=1024)] = {}
    """the user's own settings, flattened to dotted names"""
    resumes: bool = False
    """the user asked to go on with an existing run"""
    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    host: Text
    pid: Whole
    start_ns: Whole
    framework: Text
    """loop | huggingface | lightning | accelerate"""
    devices: Annotated[list[Device], msgspec.Meta(max_length=64)]
    python: Text
    torch: Text
    cuda: Text | None = None
    driver: Text | None = None
    allocator_settings: Text | None = None
    """the settings in force, as PyTorch words them; "" where none were set"""
    git_commit: Text | None = None
    command: Annotated[list[Text], msgspec.Meta(max_length=256)] = []
    """the command line, secrets taken out"""
    agent_version: Text
    host_total_bytes: Whole | None = None
    """memory of the machine, or what its container may use"""


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """Rows of one stream for one device. Columns not given are unknown in each row; ``time_ns`` and ``step`` must be."""

    stream: Literal["samples", "steps"]
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS_PER_BLOCK)]
    columns: dict[str, bytes]
    """series name -> rows * 8 bytes, little-endian int64"""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """Something that happened at a moment: ``resumed``, ``notice``, ``out_of_memory``, ``cell_error`` ..."""

    time_ns: Whole
    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,40}\Z")]
    step: Whole | None = None
    data: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)] = {}


class Leak(msgspec.Struct, frozen=True, kw_only=True):
    """One holder of memory that should be gone: who, where, how much, and what to do. Held is not saved: two numbers."""

    kind: Word
    """of LEAK_KINDS"""
    name: Name
    """what holds, in short: a variable, ``m.history``, a class"""
    holder: Text
    """the same in words, with its container: ``local 'history' of train() -> list[412]``"""
    chain: Annotated[list[Text], msgspec.Meta(max_length=16)] = []
    """from the root to the tensors, one link an entry"""
    file: Text | None = None
    line: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    function: Text | None = None
    count: Whole
    """graphs or tensors held"""
    first_step: Whole
    """of the look that found it first"""
    last_step: Whole
    """of the look that saw it last"""
    age_steps: Whole | None = None
    """steps since the oldest of them was made"""
    held_bytes: Whole
    """tensors that live as long as the holder does, each storage once; parameters, gradients and optimizer state are not counted"""
    exclusive_bytes: Whole
    """of these, held by no other holder that was found"""
    node_bytes: Whole = 0
    """host memory of the autograd nodes, estimated at 480 bytes each"""
    growth_bytes_per_step: float | None = None
    per: Word = "step"
    """of ROUNDS: what ``age_steps`` and growth are counted in"""
    emptied_at: Text = ""
    """where the code empties it or takes out of it: ``on_train_epoch_end() (train.py:40)``; empty: nowhere, as far as is known"""
    emptied_after: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    """rounds that it fills for until it is emptied: count, bytes and effect are then those of when it was seen with the most; None:
    it was not seen to be emptied"""
    peak_effect_bytes: Whole | None = None
    """by how much the step's peak would be lower after the advice; None where that is not known"""
    peak_effect: Text = ""
    """where the peak was, and whether this was alive then"""
    advice: Text
    examples: Annotated[list[Text], msgspec.Meta(max_length=16)] = []
    """shapes of what is held: ``12 x float32[32, 512] on cuda:0``"""


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """One look at what is held between steps. ``leaks`` is all that the session has found; the newest replaces the one before."""

    time_ns: Whole
    step: Whole
    reason: Text
    """what made the agent look"""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """that it took, on the training thread"""
    tensors: Whole
    """Python tensors seen"""
    not_looked_at: Text = ""
    """what the bounds in time and number left out, in words; empty: nothing"""
    leaks: Annotated[list[Leak], msgspec.Meta(max_length=64)]


class Overhead(msgspec.Struct, frozen=True, kw_only=True, tag="overhead"):
    """The agent's own cost so far, measured in this run; the newest replaces the one before."""

    seconds_per_step: float | None
    """median of watched minus unwatched steps plus what is left on in unwatched ones; None until enough were seen"""
    fraction: float | None
    """of the median step"""
    resolvable: bool
    """False: the difference is below the noise; pages then say "below 0.5 %" (or the noise, where that is larger)"""
    noise_fraction: float | None
    watched_steps: Whole
    unwatched_steps: Whole
    hook_seconds: float
    """in all, on the training thread, timed around the hooks themselves"""
    sampler_cpu_seconds: float
    """in all, of the sampler's and the sender's threads"""
    dropped_samples: Whole | None = None
    """rows that the sender had to drop so far; None: not told"""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """What came after the last step on one device: an evaluation, or a step that did not end; of a session without steps all of it.
    By the allocator's own peak counters."""

    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    peak_allocated_bytes: Whole
    peak_reserved_bytes: Whole
    phase: Word | None = None
    """of PHASES: in which allocated was highest; None: not known"""
    step: Whole | None = None
    """the step that did not end, where allocated was highest in it; None: in none"""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Last message of a session. A session that goes silent without it is lost."""

    time_ns: Whole
    state: Word
    """of ENDS"""
    error_type: Text | None = None
    error_line: Text | None = None
    """first line of the exception's message"""
    dropped_samples: Whole = 0
    tails: Annotated[list[Tail], msgspec.Meta(max_length=64)] = []


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """One technique, as the configuration declares it and as the process was seen to use it: two different things."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,40}\Z")]
    """of TECHNIQUES, or another one, as with ``Word``: its chip shows it"""
    chip: Name
    """the shortest words for it: ``checkpointing``, ``bf16``, ``AdamW 8-bit 53 %``, ``accumulation 4``"""
    declared: Text | None = None
    """what the configuration says, with the name of the setting; None: it says nothing"""
    observed: Text | None = None
    """what was seen while it trained; "" where it was looked for and not seen; None: it cannot be seen, or not yet"""
    detail: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)] = {}
    """its figures: ``variant``, ``blocks``, ``micro_steps``, ``dtype``, ``covered_fraction`` .."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A known trap that this training was seen to step into, or a technique that is declared and not observed."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,40}\Z")]
    text: Text
    """what is wrong and what it costs, one sentence"""
    advice: Text
    file: Text | None = None
    line: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    first_step: Whole = 0


class Techniques(msgspec.Struct, frozen=True, kw_only=True, tag="techniques"):
    """All techniques that are known of this session by now; the newest message replaces the one before."""

    time_ns: Whole
    step: Whole
    techniques: Annotated[list[Technique], msgspec.Meta(max_length=64)]
    findings: Annotated[list[Finding], msgspec.Meta(max_length=64)] = []


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """Part of an artifact: something recorded that is too large for one message. Whole when all its pieces are there."""

    artifact: Ident
    kind: Word
    """of ARTIFACT_KINDS"""
    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PIECES)]
    pieces: Annotated[int, msgspec.Meta(ge=1, le=MAX_PIECES)]
    """how many there are; the same in each"""
    about: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)]
    """what a list shows of the artifact; the same in each"""
    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_PIECE_BYTES)]


Message = Attached | Block | Event | Look | Techniques | Piece | Overhead | Ended


class Scalars(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that belong to steps and may be anything, also negative, infinite or not a number: the loss, and what
    ``session.log`` is told. They come when they are known, which may be later than the step."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS_PER_BLOCK)]
    time_ns: bytes
    """rows * 8 bytes, little-endian int64: when the step ended, or when it was told"""
    step: bytes
    """likewise: number of the optimizer step"""
    columns: Annotated[dict[ScalarName, bytes], msgspec.Meta(min_length=1, max_length=MAX_SCALARS)]
    """name -> rows * 8 bytes, little-endian IEEE 754 doubles; ABSENT where a row does not tell it"""


Cargo = Message | Scalars
"""What an agent puts into a batch."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one POST carries. ``(session, sequence)`` is its identity: sent twice, it is stored once."""

    wire: int
    session: Ident
    """one process's attach; new after a fork or a restart"""
    run: Ident
    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    sequence: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)]
    """rises by one within a session, from 1. The first batch of a session begins with Attached."""
    sent_ns: Whole
    """wall clock of the sender; the server measures the skew against its own"""
    messages: Annotated[list[Message], msgspec.Meta(max_length=4096)]
    scalars: Annotated[list[Scalars], msgspec.Meta(max_length=4096)] = []
    """beside the messages, because a server that does not know them yet ignores a field, and refuses a message"""


RECORD_WINDOW: Final = "record_window"
"""in Ack.requests: somebody at the page would like a window of allocator history, of the next steps"""
RECORD_PROFILE: Final = "record_profile"
"""in Ack.requests: or what torch.profiler sees in the next steps, as tables"""
RECORD_TRACE: Final = "record_trace"
"""in Ack.requests: the same, and the whole trace with it"""
RECORD_BYSTANDER: Final = "record_bystander"
"""in Ack.requests: another rank of the run has run out of memory, say how this one stands"""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a batch, after its commit."""

    wire: int = WIRE_VERSION
    accepted: int
    """every batch of this session up to this number is stored"""
    retry_after_ms: int = 0
    """wait that long before the next POST; 0: as you like"""
    requests: list[str] = []
    """what the server would like of the agent (RECORD_WINDOW and the like); unknown words are ignored"""


CONTENT_TYPE: Final = "application/msgpack"
encode = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
decode_ack = msgspec.msgpack.Decoder(Ack).decode
