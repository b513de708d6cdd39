"""Recorder of out-of-memory errors: builds a record when one happens and writes it to the disk before anything else can happen.

It costs nothing until then: the observer waits in the allocator, and the sampler keeps its last minute of rows and the
history of the steps. ``record_builder`` has the content of a record.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vramscope.oom import batch_rows_from_stack, error_chain, error_stack, forward_progress, observer, other_models
from vramscope.oom.bystander import Bystander
from vramscope.oom.memory_reserve import MemoryReserve
from vramscope.oom.peer_signal import PeerSignal
from vramscope.oom.record_builder import RecordBuilder
from vramscope.oom.record_pieces import messages_of
from vramscope.oom.trigger import OomTrigger
from vramscope.process import terminal
from vramscope.protocol import messages as wire_messages
from vramscope.protocol.oom_record import MAX_FRAMES, MESSAGE_EVENT, SURVIVED_EVENT, OomRecord
from vramscope.steps.clock import StepClock

if TYPE_CHECKING:
    from vramscope.oom_diagnosis.diagnosis import Diagnosis
    from vramscope.oom_diagnosis.message import Message

MOST_RECORDS: Final = 16
"""Limit of a session. A loop that runs out of memory in every step is only counted from then on."""
MOST_TEXT: Final = 4000
MOST_PARSED: Final = 1 << 20
"""Characters of an error that ended the run."""
MEMORY_TYPES: Final = ("OutOfMemoryError", "MemoryError")


PARSER: Final = "vramscope.oom_diagnosis.parse_message"


def _parsed(text: str, error_type: str) -> Message:
    """Parse an error's text. The diagnosis is imported with the first error: it takes 30 ms, and most runs have none."""
    from vramscope.oom_diagnosis.parse_message import parse

    return parse(text, error_type)


def _diagnosed(record: OomRecord, message: Message | None = None) -> Diagnosis:
    from vramscope.oom_diagnosis.diagnosis import diagnose
    from vramscope.oom_diagnosis.evidence import facts_of_record

    return diagnose(facts_of_record(record, message))


def _other_process(record: OomRecord, diagnosis: Diagnosis) -> str:
    """Return a sentence about the other process, if one is the cause; else ""."""
    from vramscope.oom_diagnosis.cause import CauseKind
    from vramscope.oom_diagnosis.other_processes import words_of

    return words_of(record.neighbours or ()) if diagnosis.kind is CauseKind.OTHER_PROCESS else ""


class OomRecorder:
    """Records out-of-memory errors. One per session.

    keep          writes a batch to the disk at once: ``keep(messages) -> bool``; False where that failed
    put           puts a message into the ring
    hide          removes secrets from a text
    peer_signal   for the other ranks; None: there are none
    """

    def __init__(
        self,
        clock: StepClock,
        builder: RecordBuilder,
        *,
        keep: Callable[[list[wire_messages.Message]], bool],
        put: Callable[[wire_messages.Message], None],
        hide: Callable[[str], str],
        url: str,
        peer_signal: PeerSignal | None,
    ) -> None:
        self._clock, self._builder = clock, builder
        self._keep, self._put = keep, put
        self._hide = hide
        self._url = url
        self._reserve = MemoryReserve()
        self._busy = threading.Lock()
        self._open: OomRecord | None = None
        """Latest record whose outcome (survived or not) is still open."""
        self._closing = threading.Lock()
        self._records = 0
        self._caught = 0
        """Errors that the training caught."""
        self._first_caught: OomRecord | None = None
        """The first of them, until it is printed."""
        self._reported: OomRecord | None = None
        """Record of the error that ended a notebook's cell, or that a framework reported."""
        self._is_listening = False
        self.verdict = ""
        """Sentence on the error that ended the training; empty before that."""
        self.bystander = None if peer_signal is None else Bystander(clock, builder, peer_signal, self._send)

    def begin(self) -> None:
        if self.bystander is not None:
            self.bystander.begin()
        self._is_listening = observer.listen(self)

    def end(self) -> None:
        """End with the session, and print how many errors were caught."""
        record = self._open
        if record is not None and record is not self._reported and self._take(record):
            self._note_caught(record)
        self._print_first_caught()
        if self._caught > 1:
            terminal.say(f"{self._caught} out-of-memory errors were caught in this run: {self._url}/oom")
        if self._is_listening:
            observer.stop()
        self._is_listening = False
        self._reserve.release()

    # -- errors ----------------------------------------------------------------------------------------------------------

    def ran_out(self, device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
        """The allocator is about to raise. On the requesting thread: the training's, or autograd's."""
        self._clock.batch.has_failed = True
        if self._records >= MOST_RECORDS or not self._busy.acquire(blocking=False):
            return
        try:
            self._records += 1
            before = self._open
            if before is not None:
                self._survived(before)  # the user's code caught that one
            total, _ = self._builder.memory_of(device)
            frames, roots = error_stack.frames_now(), self._builder.roots()
            moving = other_models.being_moved(frames)
            # A model that is being moved runs no forward, though its own methods are on the stack.
            running = None
            if moving is None:
                running = forward_progress.running_module(frames, roots, asked_bytes=asked_bytes)
            self._add(
                OomTrigger(
                    "observer",
                    device,
                    asked_bytes,
                    total or allowed_bytes,
                    free_bytes,
                    allowed_bytes if total is not None and allowed_bytes < total else None,
                    stack=error_stack.as_record(frames),
                    running=running,
                    batch_size=batch_rows_from_stack.rows_of(frames),
                    frames=frames,
                    roots=roots,
                    moving=moving,
                    thread=None if running is not None else self._other_thread(),
                )
            )
        finally:
            self._busy.release()

    def _other_thread(self) -> str | None:
        """Name of this thread, unless it is the training's or autograd's."""
        own = threading.current_thread()
        trains = self._clock.thread in (None, own.ident) or error_stack.is_backward_thread()
        return None if trains else own.name[:256]

    def passes(self, error: BaseException, in_except: bool) -> None:
        """An error has ended a forward, a backward or the wait for a batch, or is being handled elsewhere (``in_except``).

        PyTorch's allocator does not report errors of a library or of the host's memory.
        """
        message = self._parsed(str(error)[:MOST_TEXT], type(error).__name__)
        if message.kind == "pytorch" or not message.is_known or not message.certain or self._records >= MOST_RECORDS:
            return
        before = self._open
        if before is not None and (self._reported_by_allocator(before, message) or self._is_the_same(before, message)):
            return  # the error passes a forward within a backward pass, or comes again
        self._records += 1
        if before is not None:
            self._survived(before)
        frames = error_chain.frames_around(error) if in_except else error_stack.frames_now()
        roots = self._builder.roots()
        self._add(
            OomTrigger(
                "passing",
                self._device_of(message),
                message.asked_bytes,
                limit_bytes=message.limit_bytes,
                stack=[*error_chain.frames_of(error), *error_stack.as_record(frames)][:MAX_FRAMES],
                running=forward_progress.running_module([*error_chain.living_frames_of(error), *frames], roots),
                batch_size=batch_rows_from_stack.rows_of(frames),
                frames=frames,
                roots=roots,
                error_type=type(error).__name__,
                error_text=message.text[:MOST_TEXT],
            )
        )

    def raised(self, error: BaseException) -> None:
        """An error ends the run: send its text, and a record where the allocator had not reported it."""
        # After a Ctrl-C nothing may be imported: that changes the exit code. An earlier memory error has imported it.
        may_parse = not isinstance(error, KeyboardInterrupt) or PARSER in sys.modules
        found = self._memory_error(error) if may_parse else None
        if found is None:
            if self.bystander is not None and self._open is None:
                self.bystander.failing(error)
            return
        known, message = found
        kind = type(known).__name__
        record = self._open
        if record is not None and (self._reported_by_allocator(record, message) or self._is_the_same(record, message)):
            self._put_text(record, kind, message)
        else:
            record = self._add(
                OomTrigger(
                    "exception",
                    self._device_of(message),
                    message.asked_bytes,
                    limit_bytes=message.limit_bytes,
                    stack=error_chain.frames_of(known),
                    error_type=kind,
                    error_text=message.text[:MOST_TEXT],
                )
            )
        self._print(record, message)
        self._open = None

    def _parsed(self, text: str, error_type: str) -> Message:
        if error_type.endswith("MemoryError"):
            self._reserve.release()
        return _parsed(self._hide(text), error_type)

    def _device_of(self, message: Message) -> int | None:
        return message.device if message.device is not None else self._builder.device()

    def _memory_error(self, error: BaseException) -> tuple[BaseException, Message] | None:
        """Newest error of a chain that is a lack of memory, with its message.

        A known format comes first; else the class decides, and the text is kept as it is.
        """
        unknown = None
        for known in error_chain.chain_of(error):
            kind = type(known).__name__
            message = self._parsed(str(known)[:MOST_PARSED], kind)
            if message.is_known and (message.certain or kind in MEMORY_TYPES):
                return known, message
            is_torchs = type(known).__module__.partition(".")[0] == "torch"
            reported = is_torchs or (self._open is not None and self._reported_by_allocator(self._open, message))
            if unknown is None and not message.is_known and kind in MEMORY_TYPES and reported:
                unknown = known, message
        return unknown

    def _reported_by_allocator(self, record: OomRecord, message: Message) -> bool:
        """Whether the message belongs to an error that the allocator had reported."""
        here = record.step == self._clock.step and record.seen_by == "observer"
        return here and (message.kind == "pytorch" or not message.is_known)

    def _is_the_same(self, record: OomRecord, message: Message) -> bool:
        """Whether the error has passed a forward or a backward of this step before."""
        is_passing = record.seen_by == "passing" and record.step == self._clock.step
        return is_passing and record.error_text == message.text[:MOST_TEXT]

    def ended_with(self, error_type: str, error_line: str) -> None:
        """The same where only the first line is known: a notebook's cell, a framework's report."""
        message = self._parsed(error_line, error_type)
        record = self._open
        if record is not None and (message.is_known or error_type in MEMORY_TYPES):
            self._reported = record
            self._put_text(record, error_type, message)

    def check(self) -> None:
        """Has the run continued since the last error, and has another rank run out? On the sampler's thread, and at the end."""
        record = self._open
        self._print_first_caught()
        if self.bystander is not None:
            self.bystander.check(ran_out=record is not None)
        if record is not None and self._clock.step > record.step:
            self._survived(record)

    # -- messages ----------------------------------------------------------------------------------------------------------

    def _put_text(self, record: OomRecord, error_type: str, message: Message) -> None:
        data: dict[str, wire_messages.Scalar] = {
            "record": record.record,
            "error_type": error_type,
            "text": message.text[:MOST_TEXT],
        }
        self._put(wire_messages.Event(time_ns=time.time_ns(), kind=MESSAGE_EVENT, step=record.step, data=data))

    def _note_caught(self, record: OomRecord) -> None:
        self._caught += 1
        if self._caught == 1:
            self._first_caught = record

    def _print_first_caught(self) -> None:
        """Print one line about the first error that was caught. Not on the training's thread, where it is found."""
        record, self._first_caught = self._first_caught, None
        if record is not None:
            sentence = _diagnosed(record).sentence
            line = f"the training caught an out-of-memory error. {sentence} {self._url}/oom"
            terminal.say_once(f"caught {record.record}", line, every_rank=True)

    def _take(self, record: OomRecord) -> bool:
        """Close the open record. False if another thread has: the training's and the sampler's both see that the run goes on."""
        with self._closing:
            if self._open is not record:
                return False
            self._open = None
            return True

    @property
    def survived(self) -> int:
        """Number of errors that the program caught so far."""
        return self._caught

    def _survived(self, record: OomRecord) -> None:
        if not self._take(record):
            return
        self._note_caught(record)
        data: dict[str, wire_messages.Scalar] = {"record": record.record, "step": self._clock.step}
        self._put(wire_messages.Event(time_ns=time.time_ns(), kind=SURVIVED_EVENT, step=self._clock.step, data=data))

    def _add(self, trigger: OomTrigger) -> OomRecord:
        """Build a record and signal the other ranks."""
        record = self._builder.build(trigger)
        self._open = record
        if self.bystander is not None:
            self.bystander.signal()
        self._send(record)
        _diagnosed(record)  # imports all of it, on this thread: the sampler's may not import during a fork or a Ctrl-C
        return record

    def _send(self, record: OomRecord, asked_by: str = "") -> None:
        """To the disk in one write, from where the sender takes it; into the ring where there is no disk."""
        messages = messages_of(record, asked_by)
        if not self._keep(messages):
            for message in messages:
                self._put(message)

    def _print(self, record: OomRecord, message: Message) -> None:
        """Print the diagnosis below the traceback."""
        diagnosis = _diagnosed(record, message)
        self.verdict = diagnosis.sentence
        terminal.say_once(f"oom {record.record}", diagnosis.sentence, every_rank=True)
        if who := _other_process(record, diagnosis):
            terminal.say_once(f"oom others {record.record}", who, every_rank=True)
        if diagnosis.first_aid:  # alone on its line: it may be a setting to copy
            terminal.say_once(f"oom fix {record.record}", diagnosis.first_aid, every_rank=True)
        terminal.say_once(f"oom page {record.record}", f"Details: {self._url}/oom", every_rank=True)
