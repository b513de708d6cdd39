"""Labels of runs in a comparison, from the techniques that differ from the baseline.

Examples: ``checkpointing``, ``checkpointing + bf16``, ``all``, ``all but 8-bit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Chips = dict[str, str]
"""Kind of technique -> text."""

MIN_ALL: Final = 3
"""Number of techniques from which on labels say "all" and "all but". Fewer are named one by one."""
_WORDS: Final = {"gradient_checkpointing": "checkpointing", "optimizer_8bit": "8-bit"}


@dataclass(frozen=True)
class RunLabel:
    """Label of a run; ``label`` is None if its techniques are unknown."""

    label: str | None
    differing: tuple[str, ...] = ()
    """Texts of the techniques that differ from the baseline."""
    left_out: str | None = None
    """X of "all but X"."""
    whole: int | None = None
    """Position of the run with the label "all"."""


def chips_of(techniques: Sequence[Mapping[str, Any]] | None) -> Chips | None:
    """Technique texts by kind, without techniques that were not observed. None if unknown."""
    if techniques is None:
        return None
    chips: Chips = {}
    for technique in techniques:
        if technique.get("observed") != "":
            kind = str(technique["kind"])
            word = _WORDS.get(kind, str(technique["chip"]))
            chips[kind] = word if kind not in chips or chips[kind] == word else f"{chips[kind]} + {word}"
    return chips


def difference(own: Chips, base: Chips) -> Chips:
    """Techniques in which a run differs from the baseline. A missing technique is ``no X``.

    A smaller batch with accumulation, an optimizer with 8-bit state, and attention kernels that a dtype enables count as one
    technique each, not two.
    """
    found = {kind: chip for kind, chip in own.items() if base.get(kind) != chip}
    found |= {kind: f"no {chip}" for kind, chip in base.items() if kind not in own}
    for implied, by in (
        ("batch", None),
        ("optimizer", "optimizer_8bit"),
        ("optimizer", "gradient_projection"),
        ("attention", "mixed_precision"),
    ):
        if implied in found and (by in found if by else len(found) > 1):
            del found[implied]
    return found


def names(techniques: Sequence[Chips | None]) -> list[RunLabel]:
    """Labels of all runs. The first is the baseline."""
    base = techniques[0] if techniques else None
    found = [None if own is None or base is None else difference(own, base) for own in techniques]
    whole = _whole(found, techniques)
    return [_name(position, own, found, whole) for position, own in enumerate(found)]


def _whole(found: Sequence[Chips | None], techniques: Sequence[Chips | None]) -> int | None:
    """Position of the run with every technique of the comparison.

    None if there is none, if two such runs differ, or if there are no other runs. A run that lacks a technique of the baseline
    does not have all of them.
    """
    kinds = {kind for own in found for kind in own or ()}
    full = [
        position
        for position, (own, has) in enumerate(zip(found, techniques, strict=True))
        if own and own.keys() == kinds and has is not None and own.keys() <= has.keys()
    ]
    is_unique = len(kinds) >= MIN_ALL and full and all(found[position] == found[full[0]] for position in full)
    has_parts = any(own and position not in full for position, own in enumerate(found))
    return full[0] if is_unique and has_parts else None


def _name(position: int, own: Chips | None, found: Sequence[Chips | None], whole: int | None) -> RunLabel:
    if position == 0:
        return RunLabel("baseline")
    if own is None:
        return RunLabel(None)
    words = tuple(own.values())
    everything = found[whole] if whole is not None else None
    if everything is not None and len(own) >= MIN_ALL:
        if own == everything:
            return RunLabel("all", words)
        left = [kind for kind in everything if kind not in own]
        if len(left) == 1 and own.items() <= everything.items():
            return RunLabel(f"all but {everything[left[0]]}", words, everything[left[0]], whole)
    return RunLabel(" + ".join(words) or "same techniques as the baseline", words)
