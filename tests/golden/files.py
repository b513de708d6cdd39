"""Reads, writes and compares golden files: results of an earlier version, one JSON object per area in ``data/``.

Facts (names, numbers, lines) and sentences (what a person reads) are kept in separate files, so that a new wording changes
``*_sentences.json`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
WIDTH = 128
MOST_SHOWN = 40
"""Differences that a message lists."""
MASK = "*"
"""Replaces a value that varies between two runs of the same code."""
MISSING = "(missing)"
TEXT = "(text)"
"""Stands in the facts where a sentence is."""


@dataclass
class Result:
    """Result of one area: for each entry its facts and its sentences."""

    facts: dict[str, Any] = field(default_factory=dict)
    sentences: dict[str, Any] = field(default_factory=dict)


def split(value: Any, words: Collection[str] = (), names: Collection[str] = ()) -> tuple[Any, dict[str, str]]:
    """Facts of a JSON value, and its sentences by their place. A text with a space is a sentence; in the facts stands ``TEXT``.

    words  Keys whose texts are sentences even if they are one word.
    names  Keys whose texts are facts even if they have spaces.
    """
    sentences: dict[str, str] = {}

    def facts_of(part: Any, place: str, key: str) -> Any:
        if isinstance(part, dict):
            return {name: facts_of(one, f"{place}.{name}" if place else name, name) for name, one in part.items()}
        if isinstance(part, list):
            return [facts_of(one, f"{place}[{at}]", key) for at, one in enumerate(part)]
        if isinstance(part, str) and key not in names and (" " in part.strip() or (part and key in words)):
            sentences[place] = part
            return TEXT
        return part

    return facts_of(value, "", ""), sentences


def masked(value: Any, keys: Collection[str]) -> Any:
    """The value, with a mask in place of what is known under these keys; null, empty and 0 are kept."""
    if isinstance(value, dict):
        return {key: MASK if one and key in keys else masked(one, keys) for key, one in value.items()}
    return [masked(one, keys) for one in value] if isinstance(value, list) else value


def path_of(area: str, *, sentences: bool = False) -> Path:
    return DATA / f"{area}{'_sentences' if sentences else ''}.json"


def recorded(area: str) -> Result:
    """Golden result of an area. Raises FileNotFoundError where none was recorded."""
    sentences = path_of(area, sentences=True)
    return Result(
        json.loads(path_of(area).read_text()), json.loads(sentences.read_text()) if sentences.exists() else {}
    )


def record(area: str, result: Result) -> None:
    """Write the files of an area. What is masked in them stays masked; without the files, no mask is taken over."""
    DATA.mkdir(exist_ok=True)
    if path_of(area).exists():
        golden = recorded(area)
        result = Result(_masked_alike(golden.facts, result.facts), _masked_alike(golden.sentences, result.sentences))
    path_of(area).write_text(as_text(result.facts))
    sentences = path_of(area, sentences=True)
    if result.sentences:
        sentences.write_text(as_text(result.sentences))
    else:
        sentences.unlink(missing_ok=True)


def agreed(results: Sequence[Result]) -> Result:
    """One result of several runs of the same code: what differs between them is masked."""
    return Result(
        _agreed([json.loads(json.dumps(one.facts)) for one in results]),
        _agreed([json.loads(json.dumps(one.sentences)) for one in results]),
    )


def _agreed(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(isinstance(one, dict) for one in values):
        # (an entry that only some runs have is kept: its absence is a difference, which a second try may settle)
        return {
            key: _agreed([one[key] for one in values if key in one]) for key in sorted({*chain.from_iterable(values)})
        }
    if all(isinstance(one, list) and len(one) == len(first) for one in values):
        return [_agreed(parts) for parts in zip(*values, strict=True)]
    return first if all(one == first for one in values) else MASK


def record_sentences(area: str, seen: Result) -> None:
    """Rewrite the sentences of entries whose facts are the same."""
    golden = recorded(area)
    sentences = json.loads(json.dumps(seen.sentences))
    for name in golden.sentences:
        if differences(area, seen, entries=[name], facts_only=True):
            sentences[name] = golden.sentences[name]
    record(area, Result(golden.facts, sentences))


def _masked_alike(golden: Any, seen: Any) -> Any:
    """Mask in ``seen`` what is masked in ``golden``."""
    if golden == MASK:
        return MASK
    if isinstance(golden, dict) and isinstance(seen, dict):
        return {key: _masked_alike(golden.get(key), value) for key, value in seen.items()}
    if isinstance(golden, list) and isinstance(seen, list) and len(golden) == len(seen):
        return [_masked_alike(before, now) for before, now in zip(golden, seen, strict=True)]
    return seen


def differences(area: str, seen: Result, *, entries: list[str] | None = None, facts_only: bool = False) -> list[str]:
    """Lines that say where a result differs from the golden one. Empty: it is the same.

    entries  Names to compare; default: all.
    """
    golden = recorded(area)
    lines = []
    for label, before, after in [
        (area, golden.facts, seen.facts),
        (f"{area}_sentences", golden.sentences, seen.sentences),
    ][: 1 if facts_only else 2]:
        names = entries if entries is not None else sorted({*before, *after})
        for name in names:
            # What is written is JSON: a tuple is a list, a key is a text.
            now = json.loads(json.dumps(after[name])) if name in after else MISSING
            for place, old, new in _differing(before.get(name, MISSING), now, name):
                lines.append(f"{label}.json: {place}\n    golden: {old}\n    now:    {new}")
    return lines


def assert_same(area: str, seen: Result, *, entries: list[str] | None = None) -> None:
    lines = differences(area, seen, entries=entries)
    if lines:
        more = f"\n... and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
        raise AssertionError(
            f"{len(lines)} differences from the golden result of {area!r}. If they are intended, record the area again "
            "(tests/golden/README.md).\n" + "\n".join(lines[:MOST_SHOWN]) + more
        )


def _differing(before: Any, after: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """(place, golden value, present value) of each leaf that differs. A masked one must only be present."""
    if before == MASK and after is not MISSING:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _differing(before.get(key, MISSING), after.get(key, MISSING), f"{place} / {key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differing(old, new, f"{place} [{at}]")
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield place, _short(before), _short(after)


def _short(value: Any) -> str:
    text = value if value is MISSING else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 400 else f"{text[:300]} ... ({len(text)} characters)"


def as_text(value: Any) -> str:
    """JSON with sorted keys. A list or an object that fits on one line takes one line."""
    return f"{_lines(json.loads(json.dumps(value)), '')}\n"


def _lines(value: Any, indent: str) -> str:
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not isinstance(value, (dict, list)) or not value or (indent and len(flat) + len(indent) <= WIDTH):
        return flat
    deeper = indent + "  "
    if isinstance(value, list):
        parts = [_lines(one, deeper) for one in value]
        opening, closing = "[", "]"
    else:
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_lines(value[key], deeper)}" for key in sorted(value)]
        opening, closing = "{", "}"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{closing}"
