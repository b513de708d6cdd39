"""Groups paths that lead to one holder: up to the container that grows; and finds what they have in
common, of which the holder's name is made.
"""

from __future__ import annotations

import collections
import itertools
import queue
import re
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from vramscope.leaks.holders import line_search
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan.object_children import is_array, length
from vramscope.leaks.scan.paths import Path
from vramscope.process import type_info

TRACEBACK: Final = ".__traceback__"
"""Link from an exception to the frames of its traceback, and to all their variables."""
_OF_EXCEPTIONS: Final = (TRACEBACK, ".__cause__", ".__context__")
"""Links from an exception to what it keeps; each earlier exception has the one before it."""
MOST_COMPARED: Final = 64
"""Maximum number of newest paths that are compared to see how they differ."""
NUMBER: Final = re.compile(r"\d+")
_OF_A_KEYS_CLASS: Final = re.compile(r"\[(?!None|True|False)[A-Za-z_]\w*\]")
"""``[tuple]``: keys that are no text and no number are called by their class, and differ all the same"""
TEE: Final[type] = type(itertools.tee(())[0])
"""An iterator of itertools.tee; the others of the same tee share with it what one of them has yet to read."""
_BLOCK: Final = "_tee_dataobject"
"""Class of the blocks in which it is stored. A block is freed as a whole, once all have read on."""
GROWS: Final = (list, dict, set, collections.deque, weakref.WeakKeyDictionary, queue.SimpleQueue, TEE)
"""Container types that can grow."""
CONTAINERS: Final = (*GROWS, tuple, frozenset)


def items_of_tee(paths: Iterable[Path]) -> int:
    """Number of items, of one tensor or several, that the blocks of a tee have."""
    items: set[int] = set()
    for path in paths:
        link = path
        while link.parent is not None and type_info.name_of(link.parent.kind) != _BLOCK:
            link = link.parent
        items.add(id(link))
    return len(items)


class Grouping(NamedTuple):
    """What the paths of one scan have in common."""

    lonely: frozenset[int]
    """See :func:`single_links`."""
    numbered: frozenset[tuple[str, str]]
    """See :func:`numbered_attributes`."""


def grouping_of(paths: Collection[Path]) -> Grouping:
    return Grouping(single_links(paths), numbered_attributes(paths))


def numbered_attributes(paths: Iterable[Path]) -> frozenset[tuple[str, str]]:
    """(class, pattern of a name) of many tensors in attributes, or in globals that no line names, which differ in
    numbers alone: ``out_0``, ``out_1``, and so on."""
    labels: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        pattern = _pattern(path)
        if pattern is not None:
            labels.setdefault(pattern, set()).add(path.label)
    return frozenset(pattern for pattern, found in labels.items() if len(found) >= POLICY.numbered_attributes)


def _pattern(link: Path) -> tuple[str, str] | None:
    """None where it is no such attribute or global, or where it is a container, which is a holder by itself."""
    if issubclass(link.kind, CONTAINERS) or is_array(link.kind):
        return None
    if link.parent is None:
        # One that the code names is a variable by itself: ``h1 = layer1(x)``.
        code = link.root.code
        made_up = link.root.kind == "global" and code is not None and link.label not in code.co_names
        return (link.root.owner, NUMBER.sub("*", link.label)) if made_up and NUMBER.search(link.label) else None
    if not link.label.startswith(".") or not NUMBER.search(link.label):
        return None
    return type_info.qualified_name(link.parent.kind), NUMBER.sub("*", link.label)


def is_numbered(links: list[Path], family: Grouping | None) -> bool:
    """Whether these end with such an attribute: all of an object's are one holder then, as the elements of a list are."""
    return family is not None and bool(family.numbered) and _pattern(links[-1]) in family.numbered


def single_links(paths: Iterable[Path]) -> frozenset[int]:
    """Identities of links that are the only one of their class to lead on from their parent: the one callback of a list that
    keeps, or one of each kind. (Of a list that takes more and more there come to be several.)"""
    ways: dict[tuple[int, type], set[int]] = {}
    for path in paths:
        link = path
        while link.parent is not None:
            known = ways.setdefault((id(link.parent), link.kind), set())
            if id(link) in known:
                break
            known.add(id(link))
            link = link.parent
    return frozenset(next(iter(links)) for links in ways.values() if len(links) == 1)


def group_key(path: Path, family: Grouping | None = None) -> HolderKey:
    """Identity of the holder that a path leads to."""
    links = held_links(path, family)
    root = links[0].root
    if links[-1].kind is TEE:
        return HolderKey(HolderKind.OBJECT, "itertools", name="tee")  # by whichever name: who reads on has the newest
    if is_numbered(links, family):
        owner, pattern = _pattern(links[-1]) or ("", "")
        return HolderKey(HolderKind.ATTRIBUTE, owner, path=(pattern,))
    for link in reversed(links[1:]):
        if link.label.startswith(".") and link.parent is not None:
            # One object has many names ("self" in each method): its class and attribute are the key.
            labels = tuple(inner.label for inner in links[links.index(link) :])
            return HolderKey(HolderKind.ATTRIBUTE, type_info.qualified_name(link.parent.kind), path=labels)
    return HolderKey(HolderKind(root.kind), root.owner, root.file or "", root.name, tuple(labels_of(links)))


def labels_of(links: list[Path]) -> list[str]:
    """Below the root; those that follow themselves once: the first of a chain's links is called otherwise than all others."""
    return [label for label, _ in itertools.groupby(link.label for link in links[1:])]


def labels_of_all(paths: Sequence[Path], links: list[Path], family: Grouping | None) -> list[str]:
    """As :func:`_labels`; where several objects of a class keep in the same attribute, ``.*`` for what differs in their names."""
    labels = labels_of(links)
    for path in paths[:MOST_COMPARED]:
        others = held_links(path, family)
        if others[0].root.name == links[0].root.name and len(its := labels_of(others)) == len(labels):
            labels = [
                one if one == other else "[*]" if one[0] == "[" else ".*"
                for one, other in zip(labels, its, strict=True)
            ]
    return labels


class KeyCache:
    """Keys of the paths of one scan. Elements of one container have the same key."""

    def __init__(self, family: Grouping) -> None:
        self._family = family
        self._of_elements: dict[int, HolderKey] = {}

    def of(self, path: Path) -> HolderKey:
        """As :func:`group_key`."""
        if path.parent is None or not path.label.startswith(("[", "{")):
            return group_key(path, self._family)
        key = self._of_elements.get(id(path.parent))
        if key is None:
            key = self._of_elements[id(path.parent)] = group_key(path, self._family)
        return key


def held_links(path: Path, family: Grouping | None = None) -> list[Path]:
    """The links up to the first container that takes more and more, or an exception, or else to the object that has the tensor.
    Where a tee leads to it, up to the tee, whatever has that.

    Of its ``family`` the lonely links: a list of objects of which one of a class keeps is passed over for what that one has
    """
    links = path.links()
    root = links[0].root
    is_made_anew = root.kind == "local" and root.code is not None and line_search.made_anew(root.code, root.name)
    if is_made_anew and not (len(links) > 1 and is_of_class(links[1])):
        return links[:1]  # the loop assigns it in each iteration: freeing it frees all that is in it
    has_tee = any(link.kind is TEE for link in links)
    for position, link in enumerate(links[1:], start=1):
        if links[position - 1].kind is TEE or link.label in _OF_EXCEPTIONS:
            return links[:position]  # the exception is to go: of its frames' variables nobody lets go one by one
        if not has_tee and link.label.startswith(("[", "{")):
            is_way = family is not None and id(link) in family.lonely and not issubclass(link.kind, CONTAINERS)
            if not (is_way and any(deeper.label.startswith(("[", "{")) for deeper in links[position + 1 :])):
                return links[:position]
    return links


def is_of_class(link: Path) -> bool:
    """Whether an attribute is that of the object's class: it outlives the object."""
    if link.parent is None or not link.label.startswith("."):
        return False
    shared = (type_info.namespace(base).get(link.label[1:]) for base in type_info.bases(link.parent.kind))
    return any(type(one) is link.kind and length(one) == link.size is not None for one in shared)


def shared_labels(paths: Sequence[Path], skip: int) -> list[str]:
    """Labels below the holder that all paths have: ``['train/loss']`` where a dict of lists takes under one key only."""
    below = [[link.label for link in path.links()[skip:]] for path in paths]
    shared = []
    for labels in zip(*below, strict=False):
        if (
            len(set(labels)) > 1
            or labels[0] == TRACEBACK
            or labels[0].startswith(("[*", "{*"))
            or _OF_A_KEYS_CLASS.fullmatch(labels[0])
        ):
            break
        shared.append(labels[0])
    return shared
