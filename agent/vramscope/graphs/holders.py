"""Says in words, with file and line, who holds: from a path to a name that the user wrote."""

from __future__ import annotations

import collections
import functools
import itertools
import queue
import re
import sys
import types
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from vramscope.graphs import classes, lines, roots
from vramscope.graphs.bytecode import with_inner
from vramscope.graphs.children import is_array
from vramscope.graphs.paths import Path

MANY_NUMBERED: Final = 4
MOST_COMPARED: Final = 64
"""of the newest paths to what one holder has, to see what differs in them"""
_NUMBER: Final = re.compile(r"\d+")
_GROWS = (list, dict, set, collections.deque, weakref.WeakKeyDictionary, queue.SimpleQueue)
_CONTAINERS = (*_GROWS, tuple, frozenset)


class Holder(NamedTuple):
    """The thing to change: a variable, an attribute, a container."""

    key: tuple[str, ...]
    """the same holder in another look has the same key"""
    name: str
    words: str
    chain: tuple[str, ...]
    file: str | None
    line: int | None
    function: str | None
    container: bool
    """takes more and more: a list, a dict, an object's attribute that is one"""
    bound: int | None
    """elements that the container never has more of: a deque's maxlen, a cached function's maxsize"""
    size: int | None
    """elements of the container"""
    carried: bool
    """a loop reads it before it assigns it, or it lies in an object that outlives the loop's round; of a reference cycle: the
    attribute itself refers back, not a list in it"""
    variable: bool
    """a plain local or global variable"""
    in_model: bool = False
    """it is reached through a module"""
    emptied: bool = False
    """a container that the code takes out of too, or overwrites: it may have a bound that is not reached yet"""
    metric: str = ""
    """class of torchmetrics' metric that has it in a state"""


class Codes:
    """The functions that the user wrote, gathered when they are needed first, once a look."""

    @functools.cached_property
    def all(self) -> list[types.CodeType]:
        found: dict[types.CodeType, None] = {}
        for frame in roots.frames():
            if not roots.is_library(frame.f_code.co_filename):
                found[frame.f_code] = None
        for module in roots.user_modules():
            for value in list(module.__dict__.values()):
                if issubclass(type(value), type):
                    if classes.module_of(value) == module.__dict__.get("__name__"):
                        found.update(dict.fromkeys(lines.codes_of_class(value)))
                else:
                    code = lines.code_of(value)
                    if code is not None:
                        found[code] = None
        return [code for code in found if not roots.is_library(code.co_filename)]


class Family(NamedTuple):
    """What the paths of one look have in common."""

    lonely: frozenset[int]
    """see :func:`lonely_links`"""
    numbered: frozenset[tuple[str, str]]
    """see :func:`numbered_attributes`"""


def family_of(paths: Collection[Path]) -> Family:
    return Family(lonely_links(paths), numbered_attributes(paths))


def numbered_attributes(paths: Iterable[Path]) -> frozenset[tuple[str, str]]:
    """(class, pattern of a name) of many tensors in attributes that differ in numbers alone: ``out_0``, ``out_1``, and so on."""
    labels: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        pattern = _pattern(path)
        if pattern is not None:
            labels.setdefault(pattern, set()).add(path.label)
    return frozenset(pattern for pattern, found in labels.items() if len(found) >= MANY_NUMBERED)


def _pattern(link: Path) -> tuple[str, str] | None:
    """None where it is no such attribute, or where it is a container, which is a holder by itself."""
    if link.parent is None or not link.label.startswith(".") or not _NUMBER.search(link.label):
        return None
    if issubclass(link.kind, _CONTAINERS) or is_array(link.kind):
        return None
    return classes.qualified_name(link.parent.kind), _NUMBER.sub("*", link.label)


def _is_numbered(links: list[Path], family: Family | None) -> bool:
    """Whether these end with such an attribute: all of an object's are one holder then, as the elements of a list are."""
    return family is not None and bool(family.numbered) and _pattern(links[-1]) in family.numbered


def lonely_links(paths: Iterable[Path]) -> frozenset[int]:
    """Identities of the links that alone lead from their parent to what is held: the one callback, of a list, that keeps."""
    ways: dict[int, set[int]] = {}
    for path in paths:
        link = path
        while link.parent is not None:
            known = ways.setdefault(id(link.parent), set())
            if id(link) in known:
                break
            known.add(id(link))
            link = link.parent
    return frozenset(next(iter(links)) for links in ways.values() if len(links) == 1)


def holder_of(paths: Sequence[Path], codes: Codes, family: Family | None = None) -> Holder:
    """The holder that paths with the same :func:`group_key` have in common."""
    links = held_links(paths[0], family)
    last = links[-1]
    numbered = _is_numbered(links, family)
    root = links[0].root
    deeper = _shared_labels(paths, len(links))
    labels = _labels_of_all(paths, links, family)
    name = root.spoken + "".join(labels) + "".join(deeper)
    if numbered:
        name = root.spoken + "".join(_labels(links[:-1])) + _NUMBER.sub("*", last.label)
    is_container = numbered or issubclass(last.kind, _GROWS) or is_array(last.kind)
    owner = f" of {root.owner}()" if root.kind == "local" else ""
    words = f"{root.kind} '{root.name}'{owner}" if root.kind != "class" else f"class attribute {root.owner}.{root.name}"
    for link, label in zip(
        links[1:], labels if len(labels) == len(links) - 1 else [one.label for one in links[1:]], strict=True
    ):
        words += f" -> {classes.name_of(link.parent.kind)}{label}" if link.parent else label
    if deeper:
        words += " -> " + "".join(deeper)
    if last.size is not None:
        words += f" -> {classes.name_of(last.kind)}[{last.size}]"
    within = _numbered_place(links, codes) if numbered else _inner_place(paths, len(links), codes)
    key = next((label[2:-2] for label in reversed((*_labels(links), *deeper)) if _is_text_key(label)), "")
    place, line = within or _place(links, codes, container=is_container, key=key)
    return Holder(
        key=group_key(paths[0], family),
        name=name.strip()[:200],
        words=words,
        chain=tuple(_chain(paths[0]))[:16],
        file=place.co_filename if place is not None else root.file,
        line=line if line is not None else root.line,
        function=place.co_name if place is not None else root.owner,
        container=is_container,
        bound=last.bound if is_container or _is_in_a_cached_function(last) else None,
        size=last.size,
        carried=len(links) > 1 or is_container or root.code is None or lines.carried_by_loop(root.code, root.name),
        variable=len(links) == 1,
        in_model=any(_is_module(link.kind) for link in links),
        emptied=is_container and _is_emptied(links, codes),
        metric=_metric_among(paths[0].links()),
    )


def _is_in_a_cached_function(link: Path) -> bool:
    return link.parent is not None and link.parent.kind is functools._lru_cache_wrapper


def _is_text_key(label: str) -> bool:
    return label.startswith("['") and label.endswith("']")


def _metric_among(links: list[Path]) -> str:
    """The class of torchmetrics' metric that has it in a state; "" where none has."""
    metric = getattr(sys.modules.get("torchmetrics"), "Metric", None)
    return next(
        (classes.name_of(link.kind) for link in links if metric is not None and metric in classes.bases(link.kind)), ""
    )


def _is_module(kind: type) -> bool:
    return any(
        classes.qualified_name(base) == "Module" and classes.module_of(base).startswith("torch.nn.")
        for base in classes.bases(kind)
    )


def _is_emptied(links: list[Path], codes: Codes) -> bool:
    root, last = links[0].root, links[-1]
    of_list = issubclass(last.kind, list)
    if lines.taken_from(_own_codes(last.kind), "self", is_list=of_list):
        return True
    if last.parent is None:
        own = [root.code] if root.code is not None else codes.all
        return lines.taken_from(own, root.name, is_list=of_list)
    if not last.label.startswith("."):
        return False
    return lines.taken_from(_own_codes(last.parent.kind) or codes.all, last.label[1:], is_list=of_list)


def _own_codes(kind: type) -> list[types.CodeType]:
    """The functions that the user wrote of a class."""
    return [code for code in lines.codes_of_class(kind) if not roots.is_library(code.co_filename)]


def group_key(path: Path, family: Family | None = None) -> tuple[str, ...]:
    links = held_links(path, family)
    root = links[0].root
    if _is_numbered(links, family):
        return ("attribute", *(_pattern(links[-1]) or ()))
    for link in reversed(links[1:]):
        if link.label.startswith(".") and link.parent is not None:
            # One object has many names ("self" in each method): its class and attribute are the key.
            return (
                "attribute",
                classes.qualified_name(link.parent.kind),
                *(inner.label for inner in links[links.index(link) :]),
            )
    return (root.kind, root.owner, root.file or "", root.name, *_labels(links))


def _labels(links: list[Path]) -> list[str]:
    """Below the root; those that follow themselves once: the first of a chain's links is called otherwise than all others."""
    return [label for label, _ in itertools.groupby(link.label for link in links[1:])]


def _labels_of_all(paths: Sequence[Path], links: list[Path], family: Family | None) -> list[str]:
    """As :func:`_labels`; where several objects of a class keep in the same attribute, ``.*`` for what differs in their names."""
    labels = _labels(links)
    for path in paths[:MOST_COMPARED]:
        others = held_links(path, family)
        if others[0].root.name == links[0].root.name and len(its := _labels(others)) == len(labels):
            labels = [
                one if one == other else "[*]" if one[0] == "[" else ".*"
                for one, other in zip(labels, its, strict=True)
            ]
    return labels


def held_links(path: Path, family: Family | None = None) -> list[Path]:
    """The links up to the first container that takes more and more, or else to the object that has the tensor.

    Of its ``family`` the lonely links: a list of objects of which one alone keeps is passed over for what that one has
    """
    links = path.links()
    root = links[0].root
    if root.kind == "local" and root.code is not None and lines.made_anew(root.code, root.name):
        return links[:1]  # the loop binds it anew each round: to let go of it is to let go of all that is in it
    for position, link in enumerate(links[1:], start=1):
        if link.label.startswith(("[", "{")):
            is_way = family is not None and id(link) in family.lonely and not issubclass(link.kind, _CONTAINERS)
            if not (is_way and any(deeper.label.startswith(("[", "{")) for deeper in links[position + 1 :])):
                return links[:position]
    return links


def _shared_labels(paths: Sequence[Path], skip: int) -> list[str]:
    """Labels below the holder that all paths have: ``['train/loss']`` where a dict of lists takes under one key only."""
    below = [[link.label for link in path.links()[skip:]] for path in paths]
    shared = []
    for labels in zip(*below, strict=False):
        if len(set(labels)) > 1 or labels[0].startswith(("[*", "{*")):
            break
        shared.append(labels[0])
    return shared


def _chain(path: Path) -> list[str]:
    links = path.links()
    words = [str(links[0].root)]
    for link in links[1:]:
        parent = link.parent
        words.append(f"{classes.name_of(parent.kind) if parent else ''}{link.label}")
    words.append(classes.name_of(links[-1].kind))
    return words


def _place(links: list[Path], codes: Codes, *, container: bool, key: str) -> tuple[types.CodeType | None, int | None]:
    """The function and the line that keep; ``key``: under which a dict of theirs has it, where that is a text."""
    root = links[0].root
    at = lines.added_at(_own_codes(links[-1].kind), "self") if container else None
    if at is not None:
        return at  # a container of the user's own class, which fills itself
    name, owner, of = root.name, None, ""
    for link in links[1:]:
        label = link.label
        if label.startswith("._") and label.endswith("hooks"):
            found = lines.call_at(codes.all, "register_", "hook")
            if found is not None:
                return found
        if link.parent is not None and classes.module_of(link.parent.kind) == "itertools":
            container = False  # not the lines that ask it for the next one: the one that makes it
        if label.startswith("."):
            name, owner, of = label[1:], (link.parent.kind if link.parent else None), name
        elif "'" in label and not label.startswith("["):  # a closure's or a generator's variable
            name, owner = label.split("'")[1], None
            function = label.strip().partition("()")[0] if "() local" in label else None
            found = _variable(name, codes, container=container, function=function, key=key)
            if found is not None:
                return found
    if owner is not None or root.of_class is not None:
        kind = owner or root.of_class
        own = [] if kind is None else _own_codes(kind)
        if owner is None:
            of = root.owner.rpartition(".")[2]
        at = lines.attribute_kept_at(own, name, container=container, key=key) or lines.attribute_kept_at(
            codes.all, name, container=container, of=of, strictly=owner is not None and not own, key=key
        )
        if at is not None:
            return at
        at = _fed_at(links, name, codes)
        if at is not None:
            return at
        # A library's object: the user's line that feeds it.
        container, name = True, root.name
    if root.code is not None:
        line = lines.name_kept_at(root.code, root.name, container=container, key=key)
        if line is not None:
            return root.code, line
    found = _variable(name, codes, container=container, file=root.file, key=key)
    return found if found is not None else (root.code, None)


def _inner_place(paths: Sequence[Path], skip: int, codes: Codes) -> tuple[types.CodeType, int] | None:
    """The line that fills lists within the holder's, each of which has several of what is held: where a log has an object for each
    epoch, and that one a list, the epoch's own takes more with each step."""
    lists, names = set(), set()
    for path in paths:
        links = path.links()
        last = next((at for at in range(len(links) - 1, skip, -1) if links[at].label.startswith(("[*", "{*"))), skip)
        name = next((link.label for link in reversed(links[skip:last]) if link.label.startswith(".")), None)
        lists.add(id(links[last - 1]))
        names.add(name)
    name = names.pop()
    if names or name is None or 2 * len(lists) > len(paths):
        return None
    return lines.attribute_kept_at(codes.all, name[1:], container=True)


def _fed_at(links: list[Path], attribute: str, codes: Codes) -> tuple[types.CodeType, int] | None:
    """The user's line that calls the library's method which adds to the library's container: ``self.log({"loss": loss})``."""
    kinds = [link.parent.kind for link in links[1:] if link.parent is not None]
    for kind in kinds:
        adding = frozenset(
            code.co_name for code in lines.codes_of_class(kind) if lines.adds_to_attribute(code, attribute)
        )
        if adding:
            through = frozenset(link.label[1:] for link in links[1:] if link.label.startswith("."))
            at = lines.called_at(_own_codes(kind), "self", adding, through) or lines.called_at(
                codes.all, links[0].root.name, adding, through
            )
            if at is not None:
                return at
    return None


def _numbered_place(links: list[Path], codes: Codes) -> tuple[types.CodeType, int] | None:
    """The line that makes up the attribute's name."""
    own = _own_codes(links[-1].parent.kind) if links[-1].parent is not None else []
    return lines.named_at([*own, *codes.all])


def _variable(
    name: str,
    codes: Codes,
    *,
    container: bool,
    file: str | None = None,
    function: str | None = None,
    key: str = "",
) -> tuple[types.CodeType, int] | None:
    for outer in codes.all:
        if file is not None and outer.co_filename != file:
            continue
        for code in [outer] if function is None else with_inner(outer):
            line = None
            if function in (None, code.co_name):
                line = lines.name_kept_at(code, name, container=container, key=key)
            if line is not None:
                return code, line
    return None
