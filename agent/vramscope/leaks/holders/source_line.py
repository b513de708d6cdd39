"""The function and the line, of those that the user wrote, that make a holder keep what it has."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from vramscope.leaks.holders import line_search
from vramscope.leaks.holders.bytecode import with_inner
from vramscope.leaks.holders.grouping import GROWS
from vramscope.leaks.holders.key import HolderKind
from vramscope.leaks.holders.user_code import Codes, own_codes
from vramscope.leaks.scan.paths import Path, objects_at
from vramscope.process import type_info

MOST_RECORDS: Final = 64
"""Log records that are read for a line of the user's, the newest first."""
_Place = tuple[types.CodeType | None, int | None]
_SCOPES: Final[dict[str, Callable[[types.CodeType], tuple[str, ...]]]] = {
    " default ": lambda code: code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],
    " closure ": lambda code: code.co_freevars,
}


def place_of(
    links: list[Path], codes: Codes, *, container: bool, keys: frozenset[str]
) -> tuple[types.CodeType | None, int | None]:
    """The function and the line that keep; ``keys``: under which dicts of theirs have it, those that are texts."""
    root = links[0].root
    at = line_search.added_at(own_codes(links[-1].kind), "self") if container else None
    if at is not None:
        return at  # a container of the user's own class, which fills itself
    if root.kind == HolderKind.CONTEXT_VARIABLE.value and len(links) == 1 and not container:
        every = [part for code in codes.all for part in with_inner(code)]
        at = line_search.called_at(every, root.name, frozenset(("set",)))
        if at is not None:
            return at
    name, owner, of = root.name, None, ""
    labels = [f".{root.name}" if root.name.startswith("_global_") else "", *(link.label for link in links[1:])]
    if any(label.startswith("._") and label.endswith("hooks") for label in labels):
        found = line_search.call_at(codes.all, "register_", "hook")
        if found is not None:
            return found
    for link in links[1:]:
        label = link.label
        if link.parent is not None and type_info.module_of(link.parent.kind) == "itertools":
            container = False  # not the lines that ask it for the next one: the one that makes it
        if label.startswith("."):
            name, owner, of = label[1:], (link.parent.kind if link.parent else None), name
        elif "'" in label and not label.startswith("["):  # a closure's or a generator's variable
            name, owner = label.split("'")[1], None
            function = label.strip().partition("()")[0] if "() local" in label else None
            found = _variable(name, codes, container=container, function=function, keys=keys, scope=label.split("'")[0])
            if found is not None:
                return found
    if owner is not None or root.of_class is not None:
        kind = owner or root.of_class
        own = [] if kind is None else own_codes(kind)
        if owner is None:
            of = root.owner.rpartition(".")[2]
        at = line_search.attribute_kept_at(own, name, container=container, keys=keys) or line_search.attribute_kept_at(
            codes.all, name, container=container, of=of, strictly=owner is not None and not own, keys=keys
        )
        if at is not None and container and (at[0].co_name == "__init__" or line_search.only_reads(*at, name)):
            # Its class only makes it: who has such an object fills it, as ``state.residuals[step] = ...`` in a function.
            at = line_search.filled_at(codes.all, name, {of, root.name} - {"", "self"}) or at
        if at is not None:
            # Whoever adds to a namespace's list may call the namespace by another name.
            first = [root.code] if root.code is not None else []
            added = line_search.sole_adder(first, name) or line_search.sole_adder(codes.all, name)
            return (container and line_search.begins_empty(*at, name) and added) or at
        at = _fed_at(links, name, codes) or (line_search.sole_adder(codes.all, name) if container and not own else None)
        at = at or (_fed_by_its_object(links) if container else None)
        if at is None and kind is not None and _is_optimizer(kind):  # its step makes the state
            at = line_search.called_at(codes.all, root.name, frozenset(("step",)))
        if at is not None:
            return at
        # A library's object: the user's line that feeds it.
        container, name = True, root.name
    if root.code is not None:
        at = line_search.name_kept_at(root.code, root.name, container=container, keys=keys)
        if at is not None:
            return (container and line_search.handed_on(root.code, at[1], root.name, codes.all, keys)) or at
    found = _variable(name, codes, container=container, file=root.file, keys=keys)
    return found if found is not None else (root.code, None)


def logged_at(links: list[Path], codes: Codes) -> tuple[types.CodeType, int] | None:
    """The user's line that logged a message with the tensor among its arguments: a log record contains the place."""
    last = next((at for at, link in enumerate(links) if at and issubclass(link.kind, logging.LogRecord)), None)
    if last is None:
        return None
    for record in reversed(objects_at(links[: last + 1], MOST_RECORDS)):
        for code in (part for outer in codes.all for part in with_inner(outer)):
            if (code.co_filename, code.co_name) == (record.pathname, record.funcName):
                return code, record.lineno
    return None


def inner_place(paths: Sequence[Path], skip: int, codes: Codes) -> tuple[types.CodeType, int] | None:
    """The line that fills the inner lists of the holder, each of which has several tensors: if a log has an object for each
    epoch, and that one a list, the epoch's own takes more with each step."""
    name = _inner_name(paths, skip)
    return line_search.attribute_kept_at(codes.all, name[1:], container=True) if name else None


def filled_inside(paths: Sequence[Path], skip: int, at: _Place) -> _Place:
    """The line that adds to an inner list or dict, where line ``at`` only takes that one out of the holder."""
    code, line = at
    if code is None or line is None:
        return at
    if _inner_name(paths, skip) != "":
        return code, line_search.overwritten_through(code, line) or line
    found = line_search.added_through(code, line)
    if found is None and not line_search.adds_at(code, line):
        # That line makes the lists: others take them out and fill them.
        last = paths[0].links()[skip - 1]
        if last.parent is None:
            return line_search.taken_and_filled([code], last.root.name) or at
        if last.label.startswith("."):
            return line_search.taken_and_filled(own_codes(last.parent.kind), last.label[1:]) or at
    return code, found or line


def _inner_name(paths: Sequence[Path], skip: int) -> str | None:
    """Attribute that has the inner lists of the holder; "" where no attribute has them; None where there are no such lists, each
    with several tensors."""
    lists, names = set(), set()
    for path in paths:
        links = path.links()
        last = next((at for at in range(len(links) - 1, skip, -1) if links[at].label.startswith(("[*", "{*"))), skip)
        if last == skip or not issubclass(links[last - 1].kind, GROWS):
            return None  # it has them itself, or in a record's own tuple (the arguments of a logged message), which nobody fills
        name = next((link.label for link in reversed(links[skip:last]) if link.label.startswith(".")), "")
        lists.add(id(links[last - 1]))
        names.add(name)
    name = names.pop()
    return None if names or 2 * len(lists) > len(paths) else name


def _is_optimizer(kind: type) -> bool:
    return any(
        (type_info.module_of(base), base.__name__) == ("torch.optim.optimizer", "Optimizer")
        for base in type_info.bases(kind)
    )


def _fed_by_its_object(links: list[Path]) -> tuple[types.CodeType, int] | None:
    """The line of the user's class that adds to an attribute with a library's container: ``self.frames.put(frame)``."""
    for link in reversed(links[1:]):
        if link.label.startswith(".") and link.parent is not None:
            at = line_search.attribute_kept_at(own_codes(link.parent.kind), link.label[1:], container=True)
            if at is not None:
                return at
    return None


def _fed_at(links: list[Path], attribute: str, codes: Codes) -> tuple[types.CodeType, int] | None:
    """The user's line that calls the library's method which adds to the library's container: ``self.log({"loss": loss})``."""
    kinds = [link.parent.kind for link in links[1:] if link.parent is not None]
    for kind in kinds:
        methods = list(line_search.codes_of_class(kind))
        first = frozenset(code.co_name for code in methods if line_search.adds_to_attribute(code, attribute))
        for adding in _with_callers(first, methods):
            through = frozenset(link.label[1:] for link in links[1:] if link.label.startswith("."))
            at = line_search.called_at(own_codes(kind), "self", adding, through) or line_search.called_at(
                codes.all, links[0].root.name, adding, through
            )
            if at is not None:
                return at
    return None


def _with_callers(names: frozenset[str], methods: Sequence[types.CodeType]) -> Iterator[frozenset[str]]:
    """These methods of a class, then those that call one of them, and so on: ``prepare`` calls ``prepare_model``."""
    known: frozenset[str] = frozenset()
    while names:
        yield names
        known |= names
        callers = (
            code.co_name for code in methods if any(not names.isdisjoint(part.co_names) for part in with_inner(code))
        )
        names = frozenset(callers) - known


def numbered_place(links: list[Path], codes: Codes) -> tuple[types.CodeType, int] | None:
    """The line that makes up the attribute's name."""
    own = own_codes(links[-1].parent.kind) if links[-1].parent is not None else []
    return line_search.named_at([*own, *codes.all])


def _variable(
    name: str,
    codes: Codes,
    *,
    container: bool,
    file: str | None = None,
    function: str | None = None,
    keys: frozenset[str] = line_search.NO_KEYS,
    scope: str = "",
) -> tuple[types.CodeType, int] | None:
    """``scope``: " default " for an argument, " closure " for a variable that an inner function shares."""
    for outer in codes.all:
        if file is not None and outer.co_filename != file:
            continue
        if scope in _SCOPES and not any(name in _SCOPES[scope](code) for code in with_inner(outer)):
            continue  # a variable of another kind, of the same name
        for code in [outer] if function is None else with_inner(outer):
            if function in (None, code.co_name):
                at = line_search.name_kept_at(code, name, container=container, keys=keys)
                if at is not None:
                    return at
    return None
