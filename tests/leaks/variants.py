"""Variants of the detector for the ablation: changed thresholds, and rules that are switched off."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vramscope.leaks.policy import POLICY, LeakPolicy

FACTORS = {"halved": 0.5, "doubled": 2}


def always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def first(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


LEAKS = "vramscope.leaks."
RULES: dict[str, tuple[str, Any]] = {
    "bounded containers of graphs": (LEAKS + "verdict.leak_kind:_is_bounded_window", always(False)),
    "chains must have one age": (LEAKS + "verdict.leak_kind:_is_of_one_age", always(True)),
    "overlap at every optimizer": (LEAKS + "verdict.leak_kind:_at_every_optimizer", always(True)),
    "overlap is the least of all optimizers": (LEAKS + "verdict.leak_kind:_is_least", always(True)),
    "growing batches": (LEAKS + "verdict.history:_input_elements", always(0)),
    "settled": (LEAKS + "verdict.judge:has_settled", always(False)),
    "shrunk": (LEAKS + "verdict.judge:has_shrunk", always(False)),
    "renewed": (LEAKS + "verdict.judge:was_renewed", always(False)),
    "emptied": (LEAKS + "verdict.judge:is_plain_and_dead", always(False)),
    "parts of a container": (LEAKS + "verdict.judge:Judge._without_parts", lambda self, verdicts, groups: verdicts),
    "batches of several calls": (LEAKS + "verdict.judge:batches_of", lambda group, count, boundaries: count),
    "wait for emptying": (LEAKS + "verdict.judge:Judge._waits", always(False)),
    "slower growth": (LEAKS + "verdict.history:_start_of_recent", always(None)),
    "call arguments": (LEAKS + "detector:is_argument", always(False)),
    "losses summed up before a step": (LEAKS + "loop_shape:LoopShape.may_be_summed_up", always(False)),
    "wait for the first step": (LEAKS + "loop_shape:LoopShape.waits_for_a_step", always(False)),
    "also in a container": (LEAKS + "scan.find_holders:also_in", always(frozenset())),
    "single element of its class": (LEAKS + "holders.grouping:single_links", always(frozenset())),
    "numbered attributes": (LEAKS + "holders.grouping:numbered_attributes", always(frozenset())),
    "linked objects": (LEAKS + "holders.holder:_linked_by", always("")),
    "metrics": (LEAKS + "holders.holder:_metric_among", always("")),
    "bounded windows": (LEAKS + "holders.holder:_bound", lambda paths, links, *, is_container: links[-1].bound),
    "emptied in another function": (LEAKS + "holders.drains:taken_by_callee", always(None)),
    "restarted values": (LEAKS + "holders.drains:begun_anew", always(None)),
    "line of an inner list": (LEAKS + "holders.holder:inner_place", always(None)),
    "line that feeds a library": (LEAKS + "holders.source_line:_fed_at", always(None)),
    "line in the called function": (LEAKS + "holders.line_search:handed_on", always(None)),
    "only line that adds": (LEAKS + "holders.line_search:sole_adder", always(None)),
    "line that fills an attribute": (LEAKS + "holders.line_search:filled_at", always(None)),
    "records in a container": (LEAKS + "scan.paths:_is_in_what_takes_more", always(False)),
    "loop variables of elements": (LEAKS + "scan.paths:_through_their_containers", first),
    "self comes last": ("vramscope.process.name_roots:_is_self", always(False)),
    "arguments in flight": ("vramscope.process.name_roots:in_flight", always(set())),
    "containers being built": (LEAKS + "holders.wording:being_built", always(None)),
    "walks of unequal length": (LEAKS + "holders.holder_bytes:_of_unequal_walks", always(1.0)),
    "part of a larger finding": (LEAKS + "registry:FindingRegistry._close_parts", always(None)),
    "optimizers in use": (LEAKS + "scan.find_holders:in_use", first),
    "models without an optimizer": (LEAKS + "scan.tensors:models_without_optimizer", always([])),
    "optimizers of the user": (LEAKS + "scan.tensors:_of_a_library", always(True)),
    "written tensors": (LEAKS + "scan.find_holders:is_written", always(False)),
}
"""Rule -> (module:attribute, what stands in its place)."""


def scaled(name: str, factor: float) -> Any:
    """A threshold's value times a factor; a whole number stays one, and is 1 at least."""
    value = getattr(POLICY, name)
    if isinstance(value, frozenset):
        return frozenset(max(1, int(one * factor)) for one in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def thresholds() -> list[str]:
    return [field.name for field in dataclasses.fields(LeakPolicy)]


@contextlib.contextmanager
def changed(policy: Mapping[str, Any], without: Sequence[str]) -> Iterator[None]:
    """The detector with these thresholds, and without these rules."""
    before = {name: getattr(POLICY, name) for name in policy}
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for name, value in policy.items():
            object.__setattr__(POLICY, name, frozenset(value) if isinstance(before[name], frozenset) else value)
        for rule in without:
            owner, attribute, original = target(rule)
            replaced.append((owner, attribute, original))
            setattr(owner, attribute, RULES[rule][1])
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(POLICY, name, value)
        for owner, attribute, original in reversed(replaced):
            setattr(owner, attribute, original)


def target(rule: str) -> tuple[Any, str, Any]:
    """Owner, attribute and present value of what a rule's removal replaces."""
    module, _, path = RULES[rule][0].partition(":")
    owner: Any = importlib.import_module(module)
    *outer, attribute = path.split(".")
    for name in outer:
        owner = getattr(owner, name)
    return owner, attribute, getattr(owner, attribute)
