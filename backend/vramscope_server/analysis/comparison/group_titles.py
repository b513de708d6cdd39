"""Titles of runs that share a row: the words that their names share, and the number of runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from vramscope_server.analysis.comparison.repeats import is_seed
from vramscope_server.analysis.number_format import count

UNNAMED: Final = "unnamed"
_SEPARATORS: Final = " \t\n-_./,:;=+()[]"
_WORD: Final = re.compile(rf"[{re.escape(_SEPARATORS)}]*[^{re.escape(_SEPARATORS)}]+")
"""A word with the separators before it."""


def titles(groups: Sequence[Sequence[str]]) -> list[str]:
    """Title of each group of run names: ``baseline (4 runs)``, or ``first, … (4 runs)`` where no shared words name it alone.

    A group of one run has the name of the run.
    """
    shared = ["" if len(names) == 1 else shared_words(names) for names in groups]
    uses = Counter(shared)
    return [_title(names, words if uses[words] == 1 else "") for names, words in zip(groups, shared, strict=True)]


def shared_words(names: Sequence[str]) -> str:
    """Words with which all names begin and end, without those that name a seed; empty if there are none."""
    split = [_WORD.findall(name) for name in names]
    first = split[0]
    begin = _equal(split)
    end = _equal([words[begin:][::-1] for words in split])
    if any(
        words != first for words in split
    ):  # parts of a date or a number that differs say nothing, or something false
        begin = _without_digits(first[:begin])
        end = _without_digits(first[len(first) - end :][::-1])
    shared = first[:begin] + first[len(first) - end :]
    return "".join(word for word in shared if not is_seed(word.lstrip(_SEPARATORS))).strip(_SEPARATORS)


def _equal(split: Sequence[Sequence[str]]) -> int:
    """Number of words with which all names begin."""
    columns = list(zip(*split, strict=False))
    return next((at for at, words in enumerate(columns) if len(set(words)) > 1), len(columns))


def _without_digits(words: Sequence[str]) -> int:
    """Number of these words without the last ones that have only digits."""
    left = len(words)
    while left and words[left - 1].lstrip(_SEPARATORS).isdecimal():
        left -= 1
    return left


def _title(names: Sequence[str], words: str) -> str:
    if len(names) == 1:
        return names[0]
    return f"{words or f'{names[0] or UNNAMED}, …'} ({count(len(names))} runs)"
