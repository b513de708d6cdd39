"""Matches source lines of two recordings. Code may move to other folders and lines between two runs.

Files match if their paths are equal, or else by the longest common end of their paths. Within a function lines keep their
order: a line that calls the same library functions at the same position matches, whatever its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from difflib import SequenceMatcher

from vramscope_server.analysis.diff.holdings import AllocatingLine, LineBytes

Lines = Mapping[AllocatingLine, LineBytes]
Signature = Callable[[LineBytes], Hashable]
"""Computes the signature of a line."""
Pair = tuple[AllocatingLine | None, AllocatingLine | None]


def matched(a: Lines, b: Lines) -> list[Pair]:
    """Pairs of matching lines. A line without a match is paired with None."""
    files = same_files({line.file for line in a}, {line.file for line in b})
    back = {other: own for own, other in files.items()}
    in_a, in_b = _by_function(a, {}), _by_function(b, back)
    pairs: list[Pair] = []
    for key in dict.fromkeys([*in_a, *in_b]):
        pairs += _lines(in_a.get(key, []), in_b.get(key, []), a, b)
    return pairs


def same_files(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """Files of ``a`` -> matching files of ``b``. Different paths match by the longest common end, at least the file's name."""
    left, right = set(a), set(b)
    found = {path: path for path in left & right}
    left, right = left - right, right - left
    candidates = sorted(
        ((_common_end(own, other), own, other) for own in left for other in right), key=lambda one: (-one[0], *one[1:])
    )
    for parts, own, other in candidates:
        if parts and own in left and other in right:
            found[own] = other
            left.discard(own)
            right.discard(other)
    return found


def _common_end(own: str, other: str) -> int:
    count = 0
    for left, right in zip(_parts(own), _parts(other), strict=False):
        if left != right:
            break
        count += 1
    return count


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("\\", "/").split("/") if part][::-1]


def _by_function(lines: Lines, names: Mapping[str, str]) -> dict[tuple[str, str, str], list[AllocatingLine]]:
    """Lines grouped by file, function and module, sorted. ``names`` maps paths to other paths."""
    found: defaultdict[tuple[str, str, str], list[AllocatingLine]] = defaultdict(list)
    for line in sorted(lines):
        found[(names.get(line.file, line.file), line.function, line.module)].append(line)
    return found


def _lines(in_a: list[AllocatingLine], in_b: list[AllocatingLine], a: Lines, b: Lines) -> list[Pair]:
    if [one.line for one in in_a] == [one.line for one in in_b]:
        return list(zip(in_a, in_b, strict=True))
    return _aligned(in_a, in_b, a, b, [_exactly, _roughly])


def _aligned(
    in_a: list[AllocatingLine], in_b: list[AllocatingLine], a: Lines, b: Lines, signatures: list[Signature]
) -> list[Pair]:
    """Pairs in order: first equal signatures, between these the next, looser signature, then equal line numbers."""
    if not in_a or not in_b or not signatures:
        by_number = {one.line: one for one in in_b}
        matched_numbers = {one.line for one in in_a}
        pairs: list[Pair] = [(one, by_number.get(one.line)) for one in in_a]
        return pairs + [(None, one) for one in in_b if one.line not in matched_numbers]
    signature, *others = signatures
    aligned = SequenceMatcher(None, [signature(a[s]) for s in in_a], [signature(b[s]) for s in in_b], autojunk=False)
    pairs = []
    for kind, low_a, high_a, low_b, high_b in aligned.get_opcodes():
        left, right = in_a[low_a:high_a], in_b[low_b:high_b]
        pairs += zip(left, right, strict=True) if kind == "equal" else _aligned(left, right, a, b, others)
    return pairs


def _exactly(line: LineBytes) -> Hashable:
    return (line.calls, line.bytes, line.allocations)


def _roughly(line: LineBytes) -> Hashable:
    """Signature without bytes, which change with the batch, and counts, which change with the layers."""
    return (line.calls, *sorted(line.categories))
