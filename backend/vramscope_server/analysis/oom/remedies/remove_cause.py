"""What should not be there: a leak, a limit, another process. Without it there is room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope.oom_diagnosis.facts import place
from vramscope.oom_diagnosis.growth import growing
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS
from vramscope_server.analysis.oom.remedies.remedy import Case, Remedy

AS_LARGE: Final = 0.01
"""of its weights, by which two models differ at most that may be one after the other"""


def of(case: Case) -> Iterator[Remedy]:
    """Of each that is there."""
    yield from _leak(case)
    yield from _copies(case)
    yield from _in_its_place(case)
    yield from _other_models(case)
    yield from _limit(case)
    yield from _neighbours(case)


def _leak(case: Case) -> Iterator[Remedy]:
    facts, leaks = case.facts, growing(case.box)
    held = facts.leaked_bytes or facts.growth_bytes or 0
    if held <= 0:
        return
    if leaks:
        where = f" ({place(leaks[0].file, leaks[0].line)})" if leaks[0].file else ""
        what = f"{leaks[0].name}{where}: {leaks[0].advice}"
    else:
        what = "find what outlives each step (page Leaks): no holder is named yet"
    words = "what was in use at the end of each step, from the first to the last"
    if facts.leaked_bytes:
        words = "what the leak held at its last look, and its growth since"
    elif facts.phase == "eval":
        words = "what it held when memory ran out"
    own = next((frame for frame in case.box.stack if frame.own), None)
    # (What is lengthened between forwards, and asked itself: the last of these ran while it stood, so without it the next will.
    # What is held over was not there yet in the first.)
    grows = bool(leaks) and not leaks[0].kind.startswith("overlap")
    asked_itself = grows and own is not None and (own.file, own.line) == (leaks[0].file, leaks[0].line)
    fits = (
        True
        if facts.lengthened or (asked_itself and case.cause == "leak")
        else case.need.fits(case.room_bytes, less=held, without_growth=facts.evaluates)
    )
    yield Remedy(
        what=what,
        saves_bytes=held,
        enough=fits,
        source="measured",
        source_words=words,
        cost="a line of code",
        rank=0 if case.cause == "leak" else 1,
    )


def _without(case: Case, held: int) -> bool | None:
    """Where these are all of the other models and copies, nothing more of them comes."""
    alone = held >= case.facts.other_models_bytes and not case.facts.evaluates
    return case.need.fits(case.room_bytes, less=held, without_growth=alone)


def _copies(case: Case) -> Iterator[Remedy]:
    held = sum(one.held_bytes for one in case.box.holders if one.category == OTHER_MODELS and one.module == COPIES)
    if held > 0:
        yield Remedy(
            what="let go of what has the names of the weights (a checkpoint, a state dict, gradients), or keep it on the host",
            saves_bytes=held,
            enough=_without(case, held),
            source="measured",
            source_words="tensors in dicts that have the names and the shapes of the model's parameters",
            cost="a line of code",
            rank=1,
        )


def _in_its_place(case: Case) -> Iterator[Remedy]:
    """A model as large as the one that trains comes while that is there: a notebook's cell that runs again, another fold."""
    facts = case.facts
    there, waits = facts.parameters_bytes or 0, facts.waiting_bytes
    arrived = [one.held_bytes for one in case.box.holders if one.category == OTHER_MODELS and one.module != COPIES]
    comes = any(abs(there - waits - held) <= AS_LARGE * there for held in (0, *arrived))
    if facts.step and waits and there and facts.optimizer_bytes and comes:
        yield Remedy(
            what="if it takes the place of the model that is there: let go of that one and its optimizer first "
            "(del model, optimizer; a notebook's Out keeps what a cell shows)",
            saves_bytes=there + (facts.gradients_bytes or 0) + facts.optimizer_bytes,
            enough=None,
            source="measured",
            source_words="weights, gradients and state of the model that has trained so far; the one that comes is as large",
            cost="a line of code",
            rank=0,
        )


def _other_models(case: Case) -> Iterator[Remedy]:
    """A teacher, an average of the weights: what does not train need not lie on the card all the time."""
    models = [one for one in case.box.holders if one.category == OTHER_MODELS and one.module != COPIES]
    held = sum(one.held_bytes for one in models)
    if held > 0:
        names = ", ".join(one.module for one in sorted(models, key=lambda one: -one.held_bytes)[:3])
        yield Remedy(
            what=f"what does not train ({names}) on the host; or in 16 bits, for half as much",
            saves_bytes=held,
            enough=_without(case, held),
            source="measured",
            source_words="weights of models that no optimizer has and that are no part of one that trains",
            cost="slower where it is used",
            rank=4,
        )


def _limit(case: Case) -> Iterator[Remedy]:
    whole, limit = case.facts.whole_bytes, case.facts.limit_bytes
    if limit is None or whole is None or whole <= limit:
        return
    by_setting = "per_process_memory_fraction" in case.box.settings
    yield Remedy(
        what="take per_process_memory_fraction out of the allocator's settings, or raise it"
        if by_setting
        else "take out set_per_process_memory_fraction, or raise it",
        saves_bytes=whole - limit,
        enough=case.need.fits(whole),
        source="formula",
        source_words="what the card had free, and what PyTorch had of it: exact at that moment",
        cost="the room that was kept for others",
        rank=1,
    )


def _neighbours(case: Case) -> Iterator[Remedy]:
    facts = case.facts
    held = facts.others_bytes or 0
    if held <= 0:
        return
    pids = ", ".join(str(other.pid) for other in (case.box.neighbours or [])[:4])
    more = case.room_bytes + held
    yield Remedy(
        what=f"end the other process on the card (pid {pids}), or choose another card",
        saves_bytes=held,
        enough=case.need.fits(more if facts.limit_bytes is None else min(facts.limit_bytes, more)),
        source="measured",
        source_words="what NVML told of the other processes at that moment",
        cost="whatever it was doing",
        rank=1,
    )
