"""Less for the optimizer: its state, the copies that its update makes, and fewer bytes a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vramscope_server.analysis.oom.remedies.remedy import Case, Remedy

EIGHT_BIT: Final = 2 + 8 / 256
"""bytes a parameter of 8-bit Adam's state: two, and two floats for each block of 256. Of fp32 there are 8, of bf16 4"""
MEASURED: Final = {"foreach": (-0.005, 0.13), "8-bit": (-0.005, 0.09), "no state": (-0.005, 0.07)}
"""least and most of what was saved beyond what the formula says, where it was measured (docs/out-of-memory.md): blocks are larger
than what lies in them, so that it is more as a rule"""
KEEPS_TWO_STATES: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})


def of(case: Case) -> Iterator[Remedy]:
    """What the optimizer, the precision and the copies of gradients leave to be saved."""
    yield from _buckets(case)
    yield from _update(case)
    yield from _state(case)
    yield from _precision(case)


def _buckets(case: Case) -> Iterator[Remedy]:
    held = case.facts.bucket_bytes
    if held:
        yield Remedy(
            what="DistributedDataParallel(..., gradient_as_bucket_view=True)",
            saves_bytes=held,
            enough=_without(case, held),
            source="measured",
            source_words="the sizes that it tells of its buckets: gradients are then parts of them, and no copies beside them",
            cost="none to speak of",
            rank=1,
        )


def _update(case: Case) -> Iterator[Remedy]:
    trainable = case.facts.trainable_bytes or 0
    if case.facts.phase != "optimizer" or not trainable or case.box.state_bytes_per_parameter_byte is None:
        return  # (LBFGS and many that are not PyTorch's know no foreach)
    if case.box.update not in ("foreach", None):
        return
    # foreach takes a copy of all that it updates; one by one only the largest.
    one = 2 * (case.box.largest_parameter_bytes or 0)
    yield Remedy(
        what=f"{case.box.optimizer_kind or 'the optimizer'}(..., foreach=False), or fused=True",
        saves_bytes=max(0, trainable - one),
        enough=replace(case.need, update_bytes=one, least_bytes=case.need.fixed_bytes).fits(case.room_bytes),
        source="formula",
        source_words=f"foreach holds copies of all parameters at a time, the loop of one ({_error('foreach')}; fused none)",
        cost="foreach=False: a slower update; fused: none",
        rank=1,
        technique="optimizer",
    )


def _state(case: Case) -> Iterator[Remedy]:
    state = case.facts.full_state_bytes
    if state <= 0:
        return
    if case.box.optimizer_kind in KEEPS_TWO_STATES:
        # The largest parameter is an embedding more often than not, and transformers' Trainer keeps those in 32 bits.
        embedding = min(state, 2 * (case.box.largest_parameter_bytes or 0))
        narrow = _narrow_share(case)
        saved = (1 - narrow) * (1 - EIGHT_BIT / 8) + narrow * (1 - EIGHT_BIT / 4)
        instead = "8" if not narrow else "4" if narrow == 1 else "8 or 4"
        yield Remedy(
            what="an 8-bit optimizer (bitsandbytes; torchao where weights have a multiple of 256 numbers)",
            saves_bytes=int(state * saved),
            enough=_without_state(case, int((state - embedding) * saved), saved),
            source="formula",
            source_words=f"2 bytes a parameter and two floats for each 256, instead of {instead} ({_error('8-bit')}); "
            "tensors below 4096 elements stay",
            cost="state rounded to 8 bits",
            rank=5,
            technique="optimizer_8bit",
        )
    yield Remedy(
        what="SGD without momentum",
        saves_bytes=state,
        enough=_without_state(replace(case, need=replace(case.need, update_bytes=0)), state, 1.0),
        source="formula",
        source_words=f"it keeps no state ({_error('no state')})",
        cost="another course of training",
        rank=7,
        technique="optimizer",
    )


def _precision(case: Case) -> Iterator[Remedy]:
    fixed, room = case.need.fixed_bytes, case.room_bytes
    less = int(fixed * (1 - _narrow_share(case)) / 2)
    if fixed <= room // 2 or not less:
        return
    yield Remedy(
        what="weights, gradients and state in bfloat16",
        saves_bytes=less,
        enough=False if fixed - less > room else None,
        source="formula",
        source_words="half the bytes, where they are float32 now: at most, if nothing stays as it is",
        cost="rounding: small updates may be lost",
        rank=6,
        technique="mixed_precision",
    )


def _error(of: str) -> str:
    """By how much what was saved was more or less than this."""
    least, most = MEASURED[of]
    return f"measured: {least * 100:+.3g} to {most * 100:+.3g} % of it"


def _narrow_share(case: Case) -> float:
    """Of what trains, that has 16 bits a number already."""
    trainable = case.facts.trainable_bytes or 0
    return min(1.0, (case.box.narrow_bytes or 0) / trainable) if trainable else 0.0


def _without_state(case: Case, less: int, share: float) -> bool | None:
    """Where this request came before the state was made, what is not there yet cannot make room for it."""
    facts = case.facts
    made = int(share * (facts.optimizer_bytes or 0))
    if facts.phase != "optimizer" and (facts.used_bytes or 0) + (facts.asked_bytes or 0) - made > case.room_bytes:
        return False
    return _without(case, less)


def _without(case: Case, less: int) -> bool | None:
    needed = case.need.at(less=less)
    if needed is not None and needed <= case.room_bytes:
        return True
    return False if case.need.fixed_bytes - less > case.room_bytes else None
