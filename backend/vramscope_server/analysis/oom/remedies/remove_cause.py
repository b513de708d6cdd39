"""Remedies that remove a cause: a leak, copies, other models, data on the device, a limit, or another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.demand import KEPT_MODELS
from vramscope.oom_diagnosis.facts import line_of
from vramscope.oom_diagnosis.growth import growing
from vramscope.protocol.oom_record import COPIES, OTHER_MODELS
from vramscope_server.analysis.oom.remedies.remedy import Remedy, RemedyContext

AS_LARGE: Final = 0.01
"""Maximum size difference of two models that may replace each other, as a share of the weights."""

RECENT: Final = 0.05
"""Share of a leak's bytes that may have come after they were counted."""


def remedies_for(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy for each cause that exists."""
    yield from _leak(context)
    yield from _superseded_state(context)
    yield from _frozen_gradients(context)
    yield from _unused_graph(context)
    yield from _copies(context)
    yield from _replaced_model(context)
    yield from _copy_in_progress(context)
    yield from _data(context)
    yield from _other_models(context)
    yield from _limit(context)
    yield from _other_processes(context)


def _leak(context: RemedyContext) -> Iterator[Remedy]:
    facts, record = context.facts, context.record
    leaks = growing(record)
    leaked = facts.leaked_bytes or facts.growth_bytes or 0
    if leaked <= 0:
        return
    if leaks:
        where = f" ({line_of(leaks[0].file, leaks[0].line)})" if leaks[0].file else ""
        name, advice = leaks[0].name, leaks[0].advice
        what = f"{name}{where}{advice[len(name) :]}" if advice.startswith(f"{name} ") else f"{name}{where}: {advice}"
    else:
        what = "find what retains memory from step to step (page Leaks): no variable is known yet"
    words = "memory after each step, from the first step to the last"
    if facts.leaked_bytes:
        words = "bytes retained at the last scan, and the growth since"
    elif facts.phase == "eval":
        words = "bytes retained when memory ran out"
    own = record.own_frame
    # If the line that extends a leaked tensor made the request, the last forward pass fitted beside this tensor. So the next
    # one fits without it. Kinds "overlap..." are different: memory of the previous step did not exist in the first step.
    grows = bool(leaks) and not leaks[0].kind.startswith("overlap")
    asked_itself = grows and own is not None and (own.file, own.line) == (leaks[0].file, leaks[0].line)
    fits = (
        True
        if facts.growing_tensor_advice or (asked_itself and context.kind is CauseKind.LEAK)
        else context.estimate.fits(context.available_bytes, less=leaked, without_growth=facts.evaluates)
    )
    yield Remedy(
        what=what,
        saves_bytes=leaked,
        enough=fits,
        source="measured",
        source_words=words,
        cost="a line of code",
        rank=0 if context.kind is CauseKind.LEAK else 1,
    )


def _superseded_state(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy if earlier optimizers of the same weights still have their state."""
    state = context.facts.superseded_state_bytes
    if state:
        yield Remedy(
            what="drop the earlier optimizers of these weights: keep none in a list, nor through its scheduler",
            saves_bytes=state,
            enough=context.estimate.fits(context.available_bytes, less=state, without_growth=True),
            source="measured",
            source_words="state of optimizers that no longer step, for weights that another one updates",
            cost="a line of code",
            rank=0 if context.kind is CauseKind.LEAK else 1,
        )


def _frozen_gradients(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy if weights that are frozen by now still have gradients."""
    gradients = context.facts.frozen_gradients_bytes
    if gradients:
        yield Remedy(
            what="set the gradients of frozen weights to None: zero_grad() of their model, where it is frozen",
            saves_bytes=gradients,
            enough=_without(context, gradients),
            source="measured",
            source_words="gradients of weights that require none, and that no optimizer updates",
            cost="a line of code",
            rank=1,
        )


def _unused_graph(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy for a model that does not train and runs with gradients on: a teacher, a target network."""
    facts = context.facts
    if facts.unused_graph_bytes:
        yield Remedy(
            what=f"torch.no_grad() where {facts.unused_graph_name} is computed",
            saves_bytes=facts.unused_graph_bytes,
            enough=context.estimate.fits(context.available_bytes, less=facts.unused_graph_bytes),
            source="measured",
            source_words="its graph leads to no weights that an optimizer updates",
            cost="none, unless the program reads the gradients of these weights itself",
            rank=0,
        )


def _without(context: RemedyContext, less: int) -> bool | None:
    """Return whether the run fits with ``less`` bytes. If these are all other models and copies, no growth is assumed."""
    alone = less >= context.facts.other_models_bytes and not context.facts.evaluates
    return context.estimate.fits(context.available_bytes, less=less, without_growth=alone)


def _copies(context: RemedyContext) -> Iterator[Remedy]:
    holders = context.record.holders
    copies = sum(one.held_bytes for one in holders if one.category == OTHER_MODELS and one.module == COPIES)
    facts = context.facts
    if context.kind is CauseKind.LEAK and growing(context.record) and copies <= (1 + RECENT) * facts.leaked_bytes:
        return  # the leaked variable has them, and the remedy of the leak frees them
    if copies > facts.copy_bytes:  # an unfinished copy has a remedy of its own
        where = f" ({facts.copy_line})" if facts.copy_line else ""
        named = f"{facts.copy_name}{where}" if facts.copy_name else "a checkpoint, a state dict, gradients"
        yield Remedy(
            what=f"free the copies of weights ({named}), or keep them on the host",
            saves_bytes=copies,
            enough=_without(context, copies),
            source="measured",
            source_words="tensors in dicts that have the names and shapes of the model's parameters, and optimizers' state dicts",
            cost="a line of code",
            rank=1,
        )


def _replaced_model(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy if a second model of the same size is being created: a notebook's cell runs again, or another fold."""
    facts = context.facts
    there, waits = facts.parameters_bytes or 0, facts.waiting_bytes
    holders = context.record.holders
    arrived = [one.held_bytes for one in holders if one.category == OTHER_MODELS and one.module != COPIES]
    comes = any(abs(there - waits - size) <= AS_LARGE * there for size in (0, *arrived))
    if facts.step and waits and there and facts.optimizer_bytes and comes:
        yield Remedy(
            what="if the new model replaces the old one: free the old model and its optimizer first "
            "(del model, optimizer; a notebook's Out keeps what a cell shows)",
            saves_bytes=there + (facts.gradients_bytes or 0) + facts.optimizer_bytes,
            enough=None,
            source="measured",
            source_words="weights, gradients and state of the old model; the new one is as large",
            cost="a line of code",
            rank=0,
        )


def _copy_in_progress(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy if ``copy.deepcopy`` was copying a model: for an average, the best state so far, or a reference."""
    facts = context.facts
    if facts.copy_of:
        yield Remedy(
            what=f"make the copy of {facts.copy_of} on the host",
            saves_bytes=facts.copy_bytes,
            enough=_without(context, facts.copy_bytes),
            source="measured",
            source_words="size of what copy.deepcopy was copying",
            cost="slower where it is used",
            rank=1,
        )


def _data(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy for a data set or inputs that the program has moved to the device as a whole."""
    facts = context.facts
    if facts.data_bytes:
        where = f" ({facts.data_line})" if facts.data_line else ""
        yield Remedy(
            what=f"keep {facts.data_name}{where} on the host, and move to the device what a step needs",
            saves_bytes=facts.data_bytes,
            enough=_without(context, facts.data_bytes),
            source="measured",
            source_words="bytes of that variable when memory ran out",
            cost="copies to the device in each step",
            rank=1 if context.kind is CauseKind.DATA else 3,
        )


def _other_models(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy for models that do not train: a teacher or an average need not be on the device all the time."""
    holders = context.record.holders
    models = [one for one in holders if one.category == OTHER_MODELS and one.module != COPIES]
    # After the first step, a model that is still moving to the device is not the trained one.
    waiting = context.facts.waiting_bytes if context.facts.step and models else 0
    size = sum(one.held_bytes for one in models) + waiting
    more_come = context.facts.kept_models >= KEPT_MODELS
    if size > context.facts.copy_bytes:  # the finished part of a copy counts as models
        names = ", ".join(one.module for one in sorted(models, key=lambda one: -one.held_bytes)[:3])
        yield Remedy(
            what=f"models that do not train ({names}) on the host; or in 16 bits, for half as much",
            saves_bytes=None if more_come else size,
            enough=_without(context, size),
            source="measured",
            source_words="weights of models that no optimizer updates and that are not part of a training model",
            cost="slower where they are used",
            rank=4,
        )


def _limit(context: RemedyContext) -> Iterator[Remedy]:
    whole, limit = context.facts.available_without_limit_bytes, context.facts.limit_bytes
    if limit is None or whole is None or whole <= limit:
        return
    by_setting = "per_process_memory_fraction" in context.record.settings
    yield Remedy(
        what="remove per_process_memory_fraction from the allocator's settings, or raise it"
        if by_setting
        else "remove set_per_process_memory_fraction, or raise it",
        saves_bytes=whole - limit,
        enough=context.estimate.fits(whole),
        source="formula",
        source_words="free memory of the device and memory reserved by PyTorch: exact at the error",
        cost="the memory that was left for others",
        rank=1,
    )


def _other_processes(context: RemedyContext) -> Iterator[Remedy]:
    facts = context.facts
    others = facts.others_bytes or 0
    if others <= 0:
        return
    pids = ", ".join(str(other.pid) for other in (context.record.neighbours or [])[:4])
    named = f" (pid {pids})" if pids else ""
    more = context.available_bytes + others
    yield Remedy(
        what=f"end the other process on the device{named}, or use another device",
        saves_bytes=others,
        enough=context.estimate.fits(more if facts.limit_bytes is None else min(facts.limit_bytes, more)),
        source="measured",
        source_words="memory of the other processes at the error, by NVML",
        cost="the work of that process",
        rank=1,
    )
