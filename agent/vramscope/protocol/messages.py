"""Messages between agent and server: every field, its unit, and one version.

A batch is one MessagePack map. Numbers travel as columns: each column of a :class:`Block` is the little-endian int64 array
of one series, so that neither side handles single numbers. Every quantity is a whole number of its unit and never negative;
:data:`UNKNOWN` (-1) means "not known", which is not zero.

This module needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from vramscope.protocol.series import (
    CPU,
    MAX_VALUE,
)

WIRE_VERSION: Final = 1
"""Version of the messages. It rises when a message changes its meaning. A server refuses other versions and names both."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_ROWS_PER_BLOCK: Final = 65_536
MAX_PIECE_BYTES: Final = 256 * 1024
MAX_PIECES: Final = 1024
"""Maximum number of pieces: an artifact has at most 256 MiB."""

Word = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,16}\Z")]
"""A word of one of the lists in series.py. Senders use the lists; receivers keep any other word and show it as it is,
because a newer agent knows more words and refusing a word would refuse the batch."""
MAX_NAME: Final = 200
"""Characters of the longest name of a run, and of other names."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Ident = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z]{8,40}\Z")]
Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_VALUE)]
Scalar = bool | int | float | Text | None
ScalarName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_./-]{0,63}\Z")]
MAX_JOBS: Final = 8
"""Maximum number of jobs that a process belongs to."""
MAX_SCALARS: Final = 32
"""Maximum number of names of Scalars in one message."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that the process watches. Unknown values are None."""

    index: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    name: Text
    uuid: Text | None = None
    total_bytes: Whole | None = None
    """Capacity as cudaMemGetInfo reports it."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the process belongs to, or a pod. Unknown values are None."""

    manager: Word
    """One of slurm, kubernetes, ray, torchrun, mpi."""
    id: Name | None = None
    """Identifier that all processes of the job share."""
    name: Name | None = None
    array: Name | None = None
    """Slurm's array and the task in it, as in ``4242_7``."""
    step: Name | None = None
    partition: Name | None = None
    pod: Name | None = None
    namespace: Name | None = None
    node: Name | None = None
    """Node of this process, by the manager's name."""
    nodes: Text | None = None
    """All nodes, as the manager writes the list."""
    node_count: Whole | None = None
    restarts: Whole | None = None
    memory_limit_bytes: Whole | None = None
    """Host memory that the job may use on this node."""


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """First message of a session (one process's attach): the training process and its devices. Sent again, it replaces the
    first."""

    project: Name
    name: Name
    tags: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    config: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=1024)] = {}
    """The user's own settings, flattened to dotted names."""
    resumes: bool = False
    """True if the user asked to continue an existing run."""
    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    host: Text
    pid: Whole
    start_ns: Whole
    framework: Text
    """One of loop, huggingface, lightning, accelerate."""
    devices: Annotated[list[Device], msgspec.Meta(max_length=64)]
    python: Text
    torch: Text
    cuda: Text | None = None
    hip: Text | None = None
    """``torch.version.hip`` of a build for ROCm."""
    driver: Text | None = None
    allocator_settings: Text | None = None
    """Allocator settings in force, as PyTorch spells them; "" for the defaults."""
    git_commit: Text | None = None
    command: Annotated[list[Text], msgspec.Meta(max_length=256)] = []
    """The command line, with secrets removed."""
    agent_version: Text
    host_total_bytes: Whole | None = None
    """Memory of the machine, or the limit of its container."""
    jobs: Annotated[list[Job], msgspec.Meta(max_length=MAX_JOBS)] = []
    """Jobs that the process belongs to, the outermost first."""


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """Rows of one stream for one device. A missing column is unknown in each row; ``time_ns`` and ``step`` are required."""

    stream: Literal["samples", "steps"]
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS_PER_BLOCK)]
    columns: dict[str, bytes]
    """Series name -> rows * 8 bytes, little-endian int64."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """Something that happened at a time: ``resumed``, ``notice``, ``out_of_memory``, ``cell_error`` ..."""

    time_ns: Whole
    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,40}\Z")]
    step: Whole | None = None
    data: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)] = {}


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a finding's state."""

    state: Word
    """One of LEAK_STATES."""
    reason: Word
    """One of LEAK_REASONS."""
    step: Whole
    """Step of the scan that changed it."""


class Leak(msgspec.Struct, frozen=True, kw_only=True):
    """One holder of leaked memory: its name, source line, size, and a fix. Retained bytes and the effect on the peak are
    two numbers."""

    kind: Word
    """A word of LEAK_KINDS."""
    name: Name
    """Short name of the holder: a variable, ``m.history``, a class."""
    holder: Text
    """Description of the holder with its container: ``local 'history' of train() -> list[412]``."""
    chain: Annotated[list[Text], msgspec.Meta(max_length=16)] = []
    """References from the root to the tensors, one link per entry."""
    file: Text | None = None
    line: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    function: Text | None = None
    count: Whole
    """Number of retained graphs or tensors."""
    first_step: Whole
    """Step of the scan that found it first."""
    last_step: Whole
    """Step of the scan that saw it last."""
    age_steps: Whole | None = None
    """Steps (or the unit in ``per``) since the oldest of them was made."""
    held_bytes: Whole
    """Bytes of tensors that the holder retains, each storage once. Parameters, gradients and optimizer state are not
    counted."""
    exclusive_bytes: Whole
    """Part of ``held_bytes`` that no other known holder retains."""
    node_bytes: Whole = 0
    """Host memory of the autograd nodes, estimated at 480 bytes each."""
    growth_bytes_per_step: float | None = None
    per: Word = "step"
    """Unit of ``age_steps`` and of the growth, a word of ROUNDS."""
    emptied_at: Text = ""
    """Source line that empties the holder: ``on_train_epoch_end() (train.py:40)``; "" if none is known."""
    emptied_after: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    """Iterations until the holder is emptied. Count, bytes and effect are then those of its fullest scan. None: never seen
    to be emptied."""
    full_bytes: Whole | None = None
    """Bytes that it retains once it is full: a deque's maxlen, a cached function's maxsize. None: it has no bound."""
    peak_effect_bytes: Whole | None = None
    """Reduction of the step's peak by the fix; None: not known."""
    peak_effect: Text = ""
    """Where the peak was, and whether this memory was alive then."""
    advice: Text
    fix: Text = ""
    """Form of the fix where the source line alone tells it, a word of series.FIXES; "" elsewhere."""
    source: Text = ""
    """Text of the source line; "" if it cannot be read."""
    examples: Annotated[list[Text], msgspec.Meta(max_length=16)] = []
    """Shapes of retained tensors: ``12 x float32[32, 512] on cuda:0``."""
    why: Annotated[list[Transition], msgspec.Meta(max_length=16)] = []
    """States of the holder from the first scan that saw it to the report, oldest first."""


class ClosedLeak(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is no longer in the list, and why."""

    kind: Word
    name: Name
    file: Text | None = None
    line: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    why: Annotated[list[Transition], msgspec.Meta(max_length=17)] = []
    """As of a leak; the last entry says why it was closed."""


class Scan(msgspec.Struct, frozen=True, kw_only=True, tag="scan"):
    """One scan for retained memory between steps. ``leaks`` has all findings of the session; the newest scan replaces the
    one before."""

    time_ns: Whole
    step: Whole
    reason: Text
    """What started the scan."""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Duration on the training thread."""
    tensors: Whole
    """Number of Python tensors seen."""
    not_scanned: Text = ""
    """What the limits of time and number left out; "": nothing."""
    leaks: Annotated[list[Leak], msgspec.Meta(max_length=64)]
    closed: Annotated[list[ClosedLeak], msgspec.Meta(max_length=64)] = []
    """Findings of this session that were withdrawn, emptied or replaced, oldest first."""
    filling: Annotated[list[Leak], msgspec.Meta(max_length=8)] = []
    """Containers that grow and may fill up, such as a cache by key. They become leaks if they grow long enough."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True, tag="overhead"):
    """The agent's own cost so far, measured in this run; the newest replaces the one before."""

    seconds_per_step: float | None
    """Median of watched minus unwatched steps, plus the cost of what stays on in unwatched ones, of scans and recordings, and the
    processor time of the agent's threads. None until enough steps were seen."""
    fraction: float | None
    """Share of the training's own time: medians of the median step, sums of the mean step."""
    resolvable: bool
    """False: the difference is below the noise. Pages then show "below 0.5 %", or the noise if that is larger."""
    noise_fraction: float | None
    watched_steps: Whole
    unwatched_steps: Whole
    hook_seconds: float
    """Total time of the hooks on the training thread."""
    sampler_cpu_seconds: float
    """Total CPU time of the sampler's and the sender's threads."""
    dropped_samples: Whole | None = None
    """Rows that the sender dropped so far; None: not reported."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks after the last step on one device: of an evaluation, of a step that did not end, or of a whole session without
    steps. From the allocator's own peak counters."""

    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    peak_allocated_bytes: Whole
    peak_reserved_bytes: Whole
    phase: Word | None = None
    """Phase (of PHASES) in which allocated was highest; None: not known."""
    step: Whole | None = None
    """The unfinished step in which allocated was highest; None: outside of steps."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Last message of a session. A session that goes silent without it is lost."""

    time_ns: Whole
    state: Word
    """A word of ENDS."""
    error_type: Text | None = None
    error_line: Text | None = None
    """First line of the exception's message."""
    dropped_samples: Whole = 0
    tails: Annotated[list[Tail], msgspec.Meta(max_length=64)] = []


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """One technique, as declared by the configuration and as observed in the process. The two may differ."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,40}\Z")]
    """A word of TECHNIQUES, or another one, as with ``Word``; the chip is shown then."""
    chip: Name
    """Shortest label: ``checkpointing``, ``bf16``, ``AdamW 8-bit 53 %``, ``accumulation 4``."""
    declared: Text | None = None
    """What the configuration says, with the name of the setting; None: nothing."""
    observed: Text | None = None
    """What was observed during training. "": searched for and not seen; None: not observable, or not yet."""
    detail: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)] = {}
    """Figures: ``variant``, ``blocks``, ``micro_steps``, ``dtype``, ``covered_fraction`` ..."""


class Pitfall(msgspec.Struct, frozen=True, kw_only=True):
    """A known pitfall that was observed in this training, or a technique that is declared and not observed."""

    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,40}\Z")]
    text: Text
    """The problem and its cost, in one sentence."""
    advice: Text
    file: Text | None = None
    line: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)] | None = None
    first_step: Whole = 0


class Techniques(msgspec.Struct, frozen=True, kw_only=True, tag="techniques"):
    """All known techniques of this session; the newest message replaces the one before."""

    time_ns: Whole
    step: Whole
    techniques: Annotated[list[Technique], msgspec.Meta(max_length=64)]
    findings: Annotated[list[Pitfall], msgspec.Meta(max_length=64)] = []


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """Part of an artifact: a recording that is too large for one message. It is complete when all pieces have arrived."""

    artifact: Ident
    kind: Word
    """A word of ARTIFACT_KINDS."""
    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PIECES)]
    pieces: Annotated[int, msgspec.Meta(ge=1, le=MAX_PIECES)]
    """Number of pieces; the same in each."""
    about: Annotated[dict[Name, Scalar], msgspec.Meta(max_length=64)]
    """Summary that lists show; the same in each."""
    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_PIECE_BYTES)]


Message = Attached | Block | Event | Scan | Techniques | Piece | Overhead | Ended


class Scalars(msgspec.Struct, frozen=True, kw_only=True):
    """Values that belong to steps and may be any number, also negative, infinite or NaN: the loss, and values of
    ``session.log``. They are sent when they are known, which may be after the step."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS_PER_BLOCK)]
    time_ns: bytes
    """Column of rows * 8 bytes, little-endian int64: end of the step, or the time of the report."""
    step: bytes
    """Column of rows * 8 bytes, little-endian int64: number of the optimizer step."""
    columns: Annotated[dict[ScalarName, bytes], msgspec.Meta(min_length=1, max_length=MAX_SCALARS)]
    """Name -> rows * 8 bytes, little-endian IEEE 754 doubles; ABSENT in rows without a value."""


BatchItem = Message | Scalars
"""Anything that an agent puts into a batch."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Body of one POST. ``(session, sequence)`` identifies it: sent twice, it is stored once."""

    wire: int
    session: Ident
    """Id of one process's attach; new after a fork or a restart."""
    run: Ident
    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    sequence: Annotated[int, msgspec.Meta(ge=1, le=MAX_VALUE)]
    """Rises by one within a session, from 1. The first batch of a session begins with Attached."""
    sent_ns: Whole
    """Wall clock of the sender; the server compares it with its own to measure the skew."""
    messages: Annotated[list[Message], msgspec.Meta(max_length=4096)]
    scalars: Annotated[list[Scalars], msgspec.Meta(max_length=4096)] = []


RECORD_WINDOW: Final = "record_window"
"""Word in Ack.requests: record a window of allocator history in the next steps."""
RECORD_PROFILE: Final = "record_profile"
"""Word in Ack.requests: record a profile of the next steps with torch.profiler, as tables."""
RECORD_TRACE: Final = "record_trace"
"""Word in Ack.requests: record a profile with its whole trace."""
RECORD_BYSTANDER: Final = "record_bystander"
"""Word in Ack.requests: another rank of the run ran out of memory; send the state of this one."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a batch, after its commit."""

    wire: int = WIRE_VERSION
    accepted: int
    """Every batch of this session up to this number is stored."""
    retry_after_ms: int = 0
    """Time to wait before the next POST; 0: no wait."""
    send_every_ms: int = 0
    """Time between two turns of sending, so that the server keeps up; 0: as the agent is set."""
    requests: list[str] = []
    """Requests of the server to the agent (RECORD_WINDOW and others). Unknown words are ignored."""


CONTENT_TYPE: Final = "application/msgpack"
encode = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
decode_ack = msgspec.msgpack.Decoder(Ack).decode
