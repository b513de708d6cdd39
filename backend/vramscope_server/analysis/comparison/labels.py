"""What a run is called in a comparison: by the techniques in which it differs from the baseline.

``checkpointing``, ``checkpointing + bf16``, ``all``, ``all but 8-bit``: names follow from the sets of techniques alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Chips = dict[str, str]
"""kind of technique -> its words"""

FEWEST: Final = 3
"""techniques of which "all" and "all but one" are said; fewer are named one by one"""
_WORDS: Final = {"gradient_checkpointing": "checkpointing", "optimizer_8bit": "8-bit"}


@dataclass(frozen=True)
class RunLabel:
    """``label`` is None where the run's techniques are not known."""

    label: str | None
    differing: tuple[str, ...] = ()
    """words of each technique in which it differs from the baseline"""
    left_out: str | None = None
    """of "all but X": X"""
    whole: int | None = None
    """and the position of the run that is "all\""""


def chips_of(techniques: Sequence[Mapping[str, Any]] | None) -> Chips | None:
    """By kind; what was looked for and not seen is not there. None: not known."""
    if techniques is None:
        return None
    chips: Chips = {}
    for told in techniques:
        if told.get("observed") != "":
            kind = str(told["kind"])
            word = _WORDS.get(kind, str(told["chip"]))
            chips[kind] = word if kind not in chips or chips[kind] == word else f"{chips[kind]} + {word}"
    return chips


def difference(own: Chips, base: Chips) -> Chips:
    """The techniques in which a run differs from the baseline; one that it lacks is ``no X``.

    A smaller batch that comes with accumulation, an optimizer whose states are 8-bit, and the attention kernels that a dtype makes
    possible are one technique, not two.
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
    """A name for each run; the first is the baseline."""
    base = techniques[0] if techniques else None
    found = [None if own is None or base is None else difference(own, base) for own in techniques]
    whole = _whole(found, techniques)
    return [_name(position, own, found, whole) for position, own in enumerate(found)]


def _whole(found: Sequence[Chips | None], techniques: Sequence[Chips | None]) -> int | None:
    """The one run that has every technique of the comparison; None where there is none, or two that differ, or nothing but it.

    What lacks a technique of the baseline has not all of them, however much it differs.
    """
    kinds = {kind for own in found for kind in own or ()}
    full = [
        position
        for position, (own, has) in enumerate(zip(found, techniques, strict=True))
        if own and own.keys() == kinds and has is not None and own.keys() <= has.keys()
    ]
    alike = len(kinds) >= FEWEST and full and all(found[position] == found[full[0]] for position in full)
    has_parts = any(own and position not in full for position, own in enumerate(found))
    return full[0] if alike and has_parts else None


def _name(position: int, own: Chips | None, found: Sequence[Chips | None], whole: int | None) -> RunLabel:
    if position == 0:
        return RunLabel("baseline")
    if own is None:
        return RunLabel(None)
    words = tuple(own.values())
    everything = found[whole] if whole is not None else None
    if everything is not None and len(own) >= FEWEST:
        if own == everything:
            return RunLabel("all", words)
        left = [kind for kind in everything if kind not in own]
        if len(left) == 1 and own.items() <= everything.items():
            return RunLabel(f"all but {everything[left[0]]}", words, everything[left[0]], whole)
    return RunLabel(" + ".join(words) or "as the baseline", words)
