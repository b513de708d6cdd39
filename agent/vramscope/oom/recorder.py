"""Told of an out-of-memory error at the moment it happens, it brings a record of it away before anything else can happen.

It costs nothing until then: the observer sleeps in the allocator, the sampler keeps its last minute of rows and the course of
the steps. What is recorded: ``scene``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from vramscope.oom import batch, error_chain, forward_progress, observer, other_models, stack
from vramscope.oom.messages import messages_of
from vramscope.oom.peer import Bystander
from vramscope.oom.peer_signal import Word
from vramscope.oom.record_builder import Scene
from vramscope.oom.trigger import Error
from vramscope.oom_diagnosis.cause import judge
from vramscope.oom_diagnosis.evidence import facts_of_box
from vramscope.oom_diagnosis.message import Message, parse
from vramscope.process import terminal
from vramscope.protocol import messages as wire_messages
from vramscope.protocol.oom_record import MAX_FRAMES, MESSAGE_EVENT, SURVIVED_EVENT, BlackBox
from vramscope.steps.clock import StepClock

MOST_RECORDS: Final = 16
"""of one session: a loop that runs out of memory in every step tells as many times, and is then only counted"""
MOST_TEXT: Final = 4000
MEMORY_TYPES: Final = ("OutOfMemoryError", "MemoryError")


class OomRecorder:
    """One a session.

    keep        brings a batch away at once: ``keep(messages) -> bool``; False where it could not be written
    put         puts a message into the ring
    hide        takes secrets out of a text
    word        for the other ranks; None: there are none
    """

    def __init__(
        self,
        clock: StepClock,
        scene: Scene,
        *,
        keep: Callable[[list[wire_messages.Message]], bool],
        put: Callable[[wire_messages.Message], None],
        hide: Callable[[str], str],
        url: str,
        word: Word | None,
    ) -> None:
        self._clock, self._scene = clock, scene
        self._keep, self._put = keep, put
        self._hide = hide
        self._url = url
        self._busy = threading.Lock()
        self._open: BlackBox | None = None
        """of which it is not known yet whether the run survived it"""
        self._records = 0
        self._listening = False
        self.bystander = None if word is None else Bystander(clock, scene, word, self._carry)

    def begin(self) -> None:
        if self.bystander is not None:
            self.bystander.begin()
        self._listening = observer.listen(self)

    def end(self) -> None:
        """The session ends."""
        if self._listening:
            observer.stop()
        self._listening = False

    # -- what happens --------------------------------------------------------------------------------------------------

    def ran_out(self, device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
        """The allocator is about to raise. On the thread that asked: the training's, or autograd's."""
        if self._records >= MOST_RECORDS or not self._busy.acquire(blocking=False):
            return
        try:
            self._records += 1
            if self._open is not None:
                self._went_on(self._open)  # somebody caught that one
            total, _ = self._scene.memory_of(device)
            frames, roots = stack.frames_now(), self._scene.roots()
            moving = other_models.on_its_way(frames)
            # (A model that is being moved runs no forward, though methods of its own stand on the stack.)
            running = forward_progress.running(frames, roots, asked_bytes=asked_bytes) if moving is None else None
            error = Error(
                "observer",
                device,
                asked_bytes,
                total or allowed_bytes,
                free_bytes,
                allowed_bytes if total is not None and allowed_bytes < total else None,
                stack=stack.told(frames),
                running=running,
                batch_size=batch.rows_of(frames),
                frames=frames,
                roots=roots,
                moving=moving,
                thread=None if running is not None else self._other_thread(),
            )
            self._bring(self._scene.box(error))
        finally:
            self._busy.release()

    def _other_thread(self) -> str | None:
        """The name of this one, where it is neither the training's nor autograd's."""
        own = threading.current_thread()
        trains = self._clock.thread in (None, own.ident) or stack.is_autograds()
        return None if trains else own.name[:256]

    def passes(self, error: BaseException, in_except: bool) -> None:
        """An error has ended a forward, a backward or the wait for a batch, or was caught elsewhere and is being handled
        (``in_except``): of a library, or of the host's memory, it is not told otherwise."""
        told = parse(self._hide(str(error)[:MOST_TEXT]), type(error).__name__)
        if told.kind == "pytorch" or not told.is_known or not told.certain or self._records >= MOST_RECORDS:
            return
        before = self._open
        if before is not None and (self._is_told_by(before, told) or self._is_the_same(before, told)):
            return  # (it passes a forward within a backward, or comes again)
        self._records += 1
        if before is not None:
            self._went_on(before)
        frames, roots = error_chain.frames_around(error) if in_except else stack.frames_now(), self._scene.roots()
        self._bring(
            self._scene.box(
                Error(
                    "passing",
                    told.device if told.device is not None else self._scene.device(),
                    told.asked_bytes,
                    limit_bytes=told.limit_bytes,
                    stack=[*error_chain.frames_of(error), *stack.told(frames)][:MAX_FRAMES],
                    running=forward_progress.running([*error_chain.living_frames_of(error), *frames], roots),
                    batch_size=batch.rows_of(frames),
                    frames=frames,
                    roots=roots,
                    error_type=type(error).__name__,
                    error_text=told.text[:MOST_TEXT],
                )
            )
        )

    def raised(self, error: BaseException) -> None:
        """An error ends the run: its words, and a record of its own where the allocator had not told of it."""
        found = self._of_memory(error)
        if found is None:
            if self.bystander is not None and self._open is None:
                self.bystander.failing(error)
            return
        known, told = found
        kind = type(known).__name__
        box = self._open
        if box is not None and (self._is_told_by(box, told) or self._is_the_same(box, told)):
            self._put_words(box, kind, told)
        else:
            device = told.device if told.device is not None else self._scene.device()
            box = self._scene.box(
                Error(
                    "exception",
                    device,
                    told.asked_bytes,
                    limit_bytes=told.limit_bytes,
                    stack=error_chain.frames_of(known),
                    error_type=kind,
                    error_text=told.text[:MOST_TEXT],
                )
            )
            self._bring(box)
        self._say(box, told)
        self._open = None

    def _of_memory(self, error: BaseException) -> tuple[BaseException, Message] | None:
        """Of an error and those behind it the newest that is one of memory, with its words: of known wording where there is one,
        else by its class, and then the words are kept as they are."""
        unknown = None
        for known in error_chain.chain_of(error):
            kind = type(known).__name__
            told = parse(self._hide(str(known)[: 1 << 20]), kind)
            if told.is_known and (told.certain or kind in MEMORY_TYPES):
                return known, told
            is_torchs = type(known).__module__.partition(".")[0] == "torch"
            told_of = is_torchs or (self._open is not None and self._is_told_by(self._open, told))
            if unknown is None and not told.is_known and kind in MEMORY_TYPES and told_of:
                unknown = known, told
        return unknown

    def _is_told_by(self, box: BlackBox, told: Message) -> bool:
        """Whether these are the words of an error of which the allocator had told."""
        here = box.step == self._clock.step and box.seen_by == "observer"
        return here and (told.kind == "pytorch" or not told.is_known)

    def _is_the_same(self, box: BlackBox, told: Message) -> bool:
        """Whether it passed a forward or a backward of this step before."""
        return box.seen_by == "passing" and box.step == self._clock.step and box.error_text == told.text[:MOST_TEXT]

    def ended_with(self, error_type: str, error_line: str) -> None:
        """The same where only the first line is known: a notebook's cell, a framework's report."""
        told = parse(self._hide(error_line), error_type)
        box = self._open
        if box is not None and (told.is_known or error_type in MEMORY_TYPES):
            self._put_words(box, error_type, told)

    def _put_words(self, box: BlackBox, error_type: str, told: Message) -> None:
        data: dict[str, wire_messages.Scalar] = {
            "record": box.record,
            "error_type": error_type,
            "text": told.text[:MOST_TEXT],
        }
        self._put(wire_messages.Event(time_ns=time.time_ns(), kind=MESSAGE_EVENT, step=box.step, data=data))

    def look_back(self) -> None:
        """Has the run gone on since the last error, and has another rank run out? On the sampler's thread, and at the end."""
        box = self._open
        if self.bystander is not None:
            self.bystander.scan(ran_out=box is not None)
        if box is not None and self._clock.step > box.step:
            self._open = None
            self._went_on(box)

    def _went_on(self, box: BlackBox) -> None:
        data: dict[str, wire_messages.Scalar] = {"record": box.record, "step": self._clock.step}
        self._put(wire_messages.Event(time_ns=time.time_ns(), kind=SURVIVED_EVENT, step=self._clock.step, data=data))

    def _bring(self, box: BlackBox) -> None:
        """To the disk in one write, from where the sender takes it; into the ring where there is no disk."""
        self._open = box
        if self.bystander is not None:
            self.bystander.tell()
        self._carry(box)

    def _carry(self, box: BlackBox, asked_by: str = "") -> None:
        messages = messages_of(box, asked_by)
        if not self._keep(messages):
            for message in messages:
                self._put(message)

    def _say(self, box: BlackBox, told: Message) -> None:
        """The block that a person at the terminal finds below the traceback."""
        verdict = judge(facts_of_box(box, told))
        terminal.say_once(f"oom {box.record}", verdict.sentence, every_rank=True)
        if verdict.first_aid:  # alone on its line: it may be a setting to copy
            terminal.say_once(f"oom fix {box.record}", verdict.first_aid, every_rank=True)
        terminal.say_once(f"oom page {box.record}", f"all of it: {self._url}/oom", every_rank=True)
