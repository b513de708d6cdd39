"""Why memory ran out: one cause and one sentence with its arithmetic, from what the record or the message alone tells.

    room       what PyTorch has reserved, and what is free or allowed beyond
    shortfall  by how much the request was more than could be had in one piece
    likely     what the whole step would have come to (oom_need)

The order of the questions is that of blame: what should not be there at all (a leak, a limit, another process, memory
outside PyTorch) comes before how the rest lies (fragmentation), and that before how much the training needs. Each earlier
cause must by itself have been enough: without it the request would have fitted, and so would the step, as far as it can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramscope.oom_diagnosis.demand import PIECES, input_words, need_of, outgrew_bytes, waits_for_backward
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.message import ON_HOST, OUTSIDE_PYTORCH

CAUSES: Final = (
    "weights",
    "optimizer",
    "activations",
    "fragmentation",
    "leak",
    "other_process",
    "limit",
    "outside_pytorch",
)
NEARLY_ALL: Final = 0.8
"""of the room: a model that leaves more of it is not what is too large where the rest of the step would have been larger"""
LEAK_SHARE: Final = 0.02
"""of the room: what is held by less cannot be why memory ran out, even where a single request would have fitted"""

FIRST_AID: Final = {
    "weights": "The model does not fit with this precision: smaller weights (bf16), fewer, or shared between cards (FSDP).",
    "optimizer": "An optimizer with less state (8-bit AdamW, SGD), or foreach=False where its temporaries are too much.",
    "activations": "A smaller batch with gradient accumulation, or gradient checkpointing.",
    "fragmentation": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "leak": "Let go of what is held: detach() or item() what you keep, del the rest.",
    "other_process": "End the other process, or choose another card.",
    "limit": "Raise set_per_process_memory_fraction (per_process_memory_fraction in the allocator's settings), or take it out.",
    "outside_pytorch": "Leave room for the library that asked: set_per_process_memory_fraction(0.9), say.",
    "": "",
}
SHORTER_AID: Final = (
    "Shorter inputs (cut the long ones, or group them by length), a smaller batch with gradient accumulation, or gradient "
    "checkpointing."
)
NO_TRAINING: Final = "A smaller batch, or a shorter sequence."
NO_GRAD: Final = "The evaluation under torch.no_grad(): its forwards then keep no graphs."
OTHERS_AID: Final = "Models that do not train on the host or in 16 bits, and no second copy of weights on the card."
READING_AID: Final = 'torch.load(..., map_location="cpu"): the card holds the weights once, not twice.'
PINNED: Final = (
    "Less pinned memory at a time (pin_memory, prefetch_factor), or a higher limit of locked memory (ulimit -l)."
)
MOSTLY_FREE: Final = 0.5
"""of the card: with more, a CUDA call that finds no memory meant the host's"""
WORKER_ENDED: Final = (
    "A DataLoader worker was ended, but Linux has ended no process for want of memory since the run began: it was something "
    "else."
)
HOST_AID: Final = "Fewer DataLoader workers, a smaller prefetch_factor, or less kept in the process."


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cause of CAUSES ("" where the text says too little), the sentence, and what to try first."""

    cause: str
    sentence: str
    first_aid: str


def judge(facts: Facts) -> Verdict:
    """Why it ran out. Never raises: what is not known is left out of the sentence."""
    if facts.kind == "worker_killed" and facts.host_kills == 0:
        return Verdict("", WORKER_ENDED + _met_by(facts), "")
    if facts.kind in ON_HOST:
        return Verdict("outside_pytorch", _host_sentence(facts), HOST_AID)
    if facts.kind in OUTSIDE_PYTORCH:
        return Verdict("outside_pytorch", _library_sentence(facts), _aid("outside_pytorch", facts))
    cause, why = _cause(facts)
    return Verdict(cause, f"{_asked(facts)} {why}".strip(), _aid(cause, facts))


def _aid(cause: str, facts: Facts) -> str:
    """What to try first."""
    if cause == "outside_pytorch" and _is_pinned(facts):
        return PINNED
    if cause == "weights" and facts.is_reading:
        return READING_AID
    if cause == "weights" and facts.other_models_bytes >= (facts.shortfall_bytes or 0) > 0:
        return OTHERS_AID
    if cause == "activations" and facts.evaluates:
        return NO_GRAD
    if cause == "activations" and facts.phase == "eval":
        return NO_TRAINING
    if cause == "activations" and input_words(facts) and facts.input_shape[:1] == facts.input_shape_before[:1]:
        return SHORTER_AID
    if cause == "leak" and (own := facts.lengthened or facts.leak_advice):
        named = bool(facts.leak_name) and own.startswith(
            facts.leak_name.partition(" ")[0]
        )  # a name stays as it is written
        return f"{own if named else own[0].upper() + own[1:]}."
    return FIRST_AID[cause]


def _is_pinned(facts: Facts) -> bool:
    """A CUDA call that found no memory while most of the card was free."""
    free, total = facts.free_bytes, facts.total_bytes
    return facts.kind == "cuda" and bool(free and total and free > MOSTLY_FREE * total)


def _cause(facts: Facts) -> tuple[str, str]:
    asked, shortfall, room, whole = facts.asked_bytes, facts.shortfall_bytes, facts.room_bytes, facts.whole_bytes
    if facts.kind == "preemptive" and (facts.reserved_bytes is None or facts.limit_bytes is not None):
        return "limit", "The memory fraction that was set does not allow it."
    need = need_of(facts)
    likely = facts.least_bytes if need is None else need.likely_bytes
    if asked is None or shortfall is None or room is None or whole is None or likely is None:
        return "", "The message does not say enough to tell the cause."
    who = f"{facts.leak_name or 'A leak'}{f' ({facts.leak_place})' if facts.leak_place else ''}"
    held = max(facts.leaked_bytes, 0)
    if held >= max(shortfall, LEAK_SHARE * room) and likely - held <= room:
        return "leak", f"{who} holds {amount(held)} that should be gone; without it, it fits."
    idle = facts.idle_bytes or 0
    # What is less than the step wanted beyond the last one would have let this request through, and hardly the rest of the step.
    lacking = max(shortfall, outgrew_bytes(facts, need))
    usual = 0.0 if need is None else PIECES * room  # so much lies free in pieces in any training
    in_one_piece = idle >= max(lacking, usual) and likely <= room and not facts.expandable
    growth = facts.growth_bytes or 0
    leaks = growth >= max(shortfall, LEAK_SHARE * room, _wanted_more(facts, likely)) and likely - growth <= room
    # (Over few steps what grows may be wanted. In an evaluation it is what one container holds, and the larger of both it is.)
    wanted = facts.phase != "eval" or growth <= idle
    in_doubt = facts.growth_is_young and in_one_piece and wanted and not facts.lengthened
    if leaks and not in_doubt:
        by = f"; {who} holds as much" if facts.leak_name else ""
        what = "forward of the evaluation" if facts.phase == "eval" else "step"
        return "leak", f"What outlives a {what} has grown by {amount(growth)}{by}; without that, it fits."
    if facts.limit_bytes is not None and asked <= (facts.free_bytes or 0) and likely <= whole:
        return "limit", (
            f"The card had {amount(facts.free_bytes)} free, but the process may reserve {amount(facts.limit_bytes)} and has "
            f"{amount(facts.reserved_bytes)}."
        )
    others, outside = facts.others_bytes or 0, _risen(facts)
    if others >= max(lacking, idle) and likely <= room + others:
        return "other_process", f"Other processes on the card hold {amount(others)}; without them, it fits."
    if outside >= max(lacking, idle) and likely <= room + outside:
        return "outside_pytorch", (
            f"This process holds {amount(facts.outside_bytes)} on the card outside PyTorch, {amount(outside)} more than at "
            "first; without that, it fits."
        )
    if in_one_piece:
        return "fragmentation", (
            f"PyTorch has {amount(idle)} reserved and unused, in pieces too small for it; in one piece it fits: "
            f"{amount(facts.used_bytes)} used and {amount(asked)} asked are {amount(room - (facts.used_bytes or 0) - asked)} "
            f"less than the {amount(room)} that PyTorch can have."
        )
    return _capacity(facts, asked, room, likely)


def _wanted_more(facts: Facts, likely: int) -> int:
    """By how much this step wants more than the first ones did, all that has grown meanwhile left out: a larger batch does."""
    if facts.peak_at_first_bytes is None or facts.growth_bytes is None:
        return 0
    return likely - facts.growth_bytes - facts.peak_at_first_bytes


def _capacity(facts: Facts, asked: int, room: int, likely: int) -> tuple[str, str]:
    """The training needs more than there is: which part of it is the largest, or does not fit even alone."""
    parameters, fixed, working = facts.parameters_bytes, facts.fixed_bytes, facts.working_bytes
    if parameters is None or fixed is None or working is None or facts.weights_bytes is None:
        return "", f"All that PyTorch can have, {amount(room)}, is less than what it holds and was asked for."
    gradients, state = facts.full_gradients_bytes, facts.full_state_bytes
    weights = facts.weights_bytes + gradients + facts.bucket_bytes
    parts = f"Weights {amount(parameters + facts.waiting_bytes)}" if fixed else "No weights are known"
    if fixed and facts.waiting_bytes:
        parts += f" ({amount(facts.waiting_bytes)} of it still on its way)"
    if facts.other_models_bytes:
        parts += f", other models and copies of weights {amount(facts.other_models_bytes)}"
    if gradients or state:
        kept = "not known yet" if facts.state_is_unknown and not state else amount(state)
        to_come = "" if facts.gradients_bytes or facts.optimizer_bytes else "still to come "
        copies = (
            f" and DistributedDataParallel's copies of them {amount(facts.bucket_bytes)}" if facts.bucket_bytes else ""
        )
        parts += f", {to_come}gradients {amount(gradients)}{copies}, optimizer state {kept}"
    if fixed > room:
        # (Where other models or copies are what is too much, it is they; of a model that is wanted, if the update fits without it.)
        update = 0 if facts.copies_bytes else _update_bytes(facts)
        beside = facts.other_models_bytes > 0 and fixed - facts.other_models_bytes + update <= room
        cause = "optimizer" if weights <= room and state > 0 and not beside else "weights"
        return cause, f"{parts}: {amount(fixed)} before any activation, and PyTorch can have {amount(room)}."
    if facts.phase == "optimizer":
        return "optimizer", f"The optimizer asked for it: {parts}, and {amount(room)} is all that PyTorch can have."
    in_step = facts.phase in ("forward", "backward", "eval") or working > 0
    active = working + (asked if in_step else 0)
    if fixed < NEARLY_ALL * room:  # (else no batch is small enough to do much about it)
        active = max(active, likely - fixed)
    largest = max((active, "activations"), (state, "optimizer"), (weights, "weights"))[1]
    if facts.phase == "eval" and not gradients and weights < NEARLY_ALL * room:
        largest = "activations"
    before_all = facts.phase in ("other", "data", None) and working < parameters and not facts.step
    comes = facts.is_reading or (facts.waiting_bytes > 0 and working <= facts.weights_bytes)
    if before_all or (comes and facts.phase in ("other", "data", None)):
        # A model, or a file of weights, is on its way to the card.
        rest = f"; {amount(working)} else, and what was asked" if facts.is_reading else ""
        return "weights", f"{parts}{rest}, and {amount(room)} is all that PyTorch can have."
    many = ""
    if waits_for_backward(facts):
        many = f" {facts.forwards} forwards of this step have had no backward: what of their graphs is kept is alive together."
    if facts.evaluates:
        many = " The model is in evaluation mode, and gradients are on: what a backward would need is kept."
    elif grown := input_words(facts):
        many += f" {grown[0].upper()}{grown[1:]}."
    return largest, (
        f"{parts}; activations, batch and temporaries {amount(working)} and what was asked: more than the {amount(room)} that "
        f"PyTorch can have.{many}"
    )


def _update_bytes(facts: Facts) -> int:
    """Copies of all that it updates, that ``foreach`` holds, where the optimizer was at work."""
    return (facts.trainable_bytes or 0) if facts.phase == "optimizer" and facts.update in ("foreach", None) else 0


def _risen(facts: Facts) -> int:
    if facts.outside_bytes is None or facts.outside_before_bytes is None:
        return 0
    return max(0, facts.outside_bytes - facts.outside_before_bytes)


def _rank(facts: Facts) -> str:
    """Of one process alone nobody needs to be told which it was."""
    return f" on rank {facts.rank} of {facts.world_size}" if facts.rank is not None and facts.world_size > 1 else ""


def _met_by(facts: Facts) -> str:
    return f" It happened{_rank(facts)}." if _rank(facts) else ""


def _asked(facts: Facts) -> str:
    where = _rank(facts) + (f" at {facts.place}" if facts.place else "")
    if facts.module:
        where += f", in {facts.module}"
    if facts.thread is not None:
        where += f", by thread {facts.thread!r}" + (f", beside step {facts.step + 1}" if facts.step is not None else "")
    elif facts.phase not in (None, "other") or facts.step:
        phase = f"in the {facts.phase} of " if facts.phase not in (None, "other") else "in "
        where += f", {phase}step {(facts.step or 0) + 1}" if facts.step is not None else ""
    asked = "an amount that is not told" if facts.asked_bytes is None else amount(facts.asked_bytes)
    free = (
        f"; {amount(facts.free_bytes)} of {amount(facts.total_bytes)} were free" if facts.free_bytes is not None else ""
    )
    return f"Asked for {asked}{where}{free}."


def _library_sentence(facts: Facts) -> str:
    who = {
        "cublas": "cuBLAS",
        "cudnn": "cuDNN",
        "nccl": "NCCL",
        "bitsandbytes": "bitsandbytes",
    }.get(facts.kind, "a CUDA call")
    free = (
        f" {amount(facts.free_bytes)} of {amount(facts.total_bytes)} were free" if facts.free_bytes is not None else ""
    )
    idle = facts.idle_bytes
    held = ""
    if facts.reserved_bytes:
        held = f"; PyTorch had reserved {amount(facts.reserved_bytes)}"
        held += "" if idle is None else f", {amount(idle)} of it unused"
    place = _rank(facts) + (f" at {facts.place}" if facts.place else "")
    told = f"Memory ran out outside PyTorch's allocator: {who} asked{place}.{free}{held}{'.' if free or held else ''}"
    host = " With so much free it was most likely not the card's but the host's pinned memory."
    return told + host if _is_pinned(facts) else told


def _host_sentence(facts: Facts) -> str:
    asked = "" if facts.asked_bytes is None else f" {amount(facts.asked_bytes)} were asked for."
    worker = "" if facts.worker is None else f" It happened in DataLoader worker {facts.worker}."
    what = {
        "worker_killed": "A DataLoader worker was killed: Linux ends processes when the host's memory runs out.",
        "shared_memory": "The host's shared memory (/dev/shm) ran out, through which DataLoader workers hand over batches.",
        "oom_kill": "The process vanished without a word while the host's memory was full: Linux's out-of-memory killer.",
    }.get(facts.kind, "The host's memory ran out, not the GPU's.")
    size = ""
    if facts.rss_bytes is not None and facts.host_total_bytes:
        size = f" The process had {amount(facts.rss_bytes)} of {amount(facts.host_total_bytes)}"
        size += f"; {amount(facts.host_used_bytes)} were in use in all." if facts.host_used_bytes is not None else "."
    if facts.host_kills:
        size += f" Linux has ended processes for want of memory since the run began: {facts.host_kills}."
    return f"{what}{asked}{worker}{_met_by(facts)}{size}"


def amount(value: int | None) -> str:
    """Bytes with one decimal; "unknown" where it is not known."""
    if value is None:
        return "unknown"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= size - size / 2048:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"
