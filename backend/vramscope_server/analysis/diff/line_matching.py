"""Which site of one recording is which of another: code moves between two runs, by folders and by lines.

A file is the same if its path is, else if it is the one whose path ends most alike. Within one function of it the sites keep their
order: what calls the same functions of libraries at the same place in that order is the same line, whatever its number is now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from difflib import SequenceMatcher

from vramscope_server.analysis.diff.holdings import AllocatingLine, LineBytes

Sites = Mapping[AllocatingLine, LineBytes]
Scan = Callable[[LineBytes], Hashable]
"""what a line looks like from outside"""
Pair = tuple[AllocatingLine | None, AllocatingLine | None]


def matched(a: Sites, b: Sites) -> list[Pair]:
    """Each site of both once, beside what it is in the other; None: it is not there."""
    files = same_files({site.file for site in a}, {site.file for site in b})
    back = {other: own for own, other in files.items()}
    in_a, in_b = _by_function(a, {}), _by_function(b, back)
    pairs: list[Pair] = []
    for key in dict.fromkeys([*in_a, *in_b]):
        pairs += _lines(in_a.get(key, []), in_b.get(key, []), a, b)
    return pairs


def same_files(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """Files of ``a`` -> the same in ``b``. Those of other paths by the longest common end, the file's name at least."""
    left, right = set(a), set(b)
    found = {path: path for path in left & right}
    left, right = left - right, right - left
    alike = sorted(
        ((_common_end(own, other), own, other) for own in left for other in right), key=lambda one: (-one[0], *one[1:])
    )
    for parts, own, other in alike:
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


def _by_function(sites: Sites, names: Mapping[str, str]) -> dict[tuple[str, str, str], list[AllocatingLine]]:
    """Sites of each function and module by their lines; files under the names that ``names`` gives them."""
    found: defaultdict[tuple[str, str, str], list[AllocatingLine]] = defaultdict(list)
    for site in sorted(sites):
        found[(names.get(site.file, site.file), site.function, site.module)].append(site)
    return found


def _lines(in_a: list[AllocatingLine], in_b: list[AllocatingLine], a: Sites, b: Sites) -> list[Pair]:
    if [site.line for site in in_a] == [site.line for site in in_b]:
        return list(zip(in_a, in_b, strict=True))
    return _aligned(in_a, in_b, a, b, [_exactly, _roughly])


def _aligned(
    in_a: list[AllocatingLine], in_b: list[AllocatingLine], a: Sites, b: Sites, scans: list[Scan]
) -> list[Pair]:
    """In their order: first those that look exactly alike; between these, those that do so roughly; then by their lines."""
    if not in_a or not in_b or not scans:
        lines = {site.line: site for site in in_b}
        taken = {site.line for site in in_a}
        pairs: list[Pair] = [(site, lines.get(site.line)) for site in in_a]
        return pairs + [(None, site) for site in in_b if site.line not in taken]
    scan, *others = scans
    aligned = SequenceMatcher(None, [scan(a[s]) for s in in_a], [scan(b[s]) for s in in_b], autojunk=False)
    pairs = []
    for kind, low_a, high_a, low_b, high_b in aligned.get_opcodes():
        left, right = in_a[low_a:high_a], in_b[low_b:high_b]
        pairs += zip(left, right, strict=True) if kind == "equal" else _aligned(left, right, a, b, others)
    return pairs


def _exactly(held: LineBytes) -> Hashable:
    return (held.calls, held.bytes, held.allocations)


def _roughly(held: LineBytes) -> Hashable:
    """Sizes change with the batch, numbers with the layers."""
    return (held.calls, *sorted(held.categories))
