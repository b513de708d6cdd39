"""The contract between agent and server: every message, every series, its unit, and one version.

A batch is one MessagePack map. Numbers travel as columns: each column of a :class:`Block` is the little-endian
int64 array of one series, so that neither side touches single numbers. Every quantity is a whole number of its
unit and never negative; :data:`UNKNOWN` (-1) says "not known", which is not zero.

This module stands on msgspec alone, because both sides import it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from vramscope.protocol.series import (
    CPU,
    MAX_VALUE,
)

WIRE_VERSION: Final = 1
"""Raised when a message changes its meaning. A server refuses other versions and names both."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_ROWS_PER_BLOCK: Final = 65_536
MAX_PIECE_BYTES: Final = 256 * 1024
MAX_PIECES: Final = 1024
"""An artifact has at most 256 MiB."""

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


class Scan(msgspec.Struct, frozen=True, kw_only=True, tag="scan"):
    """One look at what is held between steps. ``leaks`` is all that the session has found; the newest replaces the one before."""

    time_ns: Whole
    step: Whole
    reason: Text
    """what made the agent look"""
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """that it took, on the training thread"""
    tensors: Whole
    """Python tensors seen"""
    not_scanned: Text = ""
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


Message = Attached | Block | Event | Scan | Techniques | Piece | Overhead | Ended


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
