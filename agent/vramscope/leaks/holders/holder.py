"""Says in words, with file and line, who holds: from a path to a name that the user wrote."""

from __future__ import annotations

import collections
import functools
import itertools
import re
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Final, NamedTuple

from vramscope.leaks.holders import drains, limits, line_search
from vramscope.leaks.holders.drains import Drain
from vramscope.leaks.holders.grouping import (
    GROWS,
    NUMBER,
    TEE,
    TRACEBACK,
    Grouping,
    group_key,
    held_links,
    is_numbered,
    items_of_tee,
    labels_of,
    labels_of_all,
    shared_labels,
)
from vramscope.leaks.holders.key import HolderKey, Mechanism
from vramscope.leaks.holders.source_line import filled_inside, inner_place, logged_at, numbered_place, place_of
from vramscope.leaks.holders.user_code import Codes, own_codes
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan.object_children import CACHED, is_array
from vramscope.leaks.scan.paths import Path
from vramscope.process import frames, type_info


class Holder(NamedTuple):
    """The thing to change: a variable, an attribute, a container."""

    key: HolderKey
    """Identifies the same holder in another scan."""
    name: str
    words: str
    chain: tuple[str, ...]
    file: str | None
    line: int | None
    function: str | None
    container: bool
    """True if it can grow: a list, a dict, or an attribute that is one."""
    bound: int | None
    """Maximum number of elements: a deque's maxlen, a cached function's maxsize. None: unbounded."""
    size: int | None
    """Number of elements of the container."""
    carried: bool
    """True if a loop reads it before it assigns it, or if it belongs to an object that outlives the iteration. In a
    reference cycle: the attribute itself refers back."""
    variable: bool
    """True for a plain local or global variable."""
    in_model: bool = False
    """True if it is reached through a module."""
    drained: bool = False
    """True if the code also removes from it or overwrites it: it may have a bound that is not reached yet."""
    limited: bool = False
    """True if the code that adds to it, or that makes a tensor longer, compares its length (drains.py)."""
    limit: int | None = None
    """Elements above which the code takes some out (drains.py)."""
    keyed: bool = False
    """True for a container by key, such as a dict: it grows no more when the keys come again."""
    looked_up: bool = False
    """True for such a container if the code looks a key up before it adds it (drains.py)."""
    made_anew: bool = False
    """True for a variable that a loop assigns before it reads it."""
    cut: bool = False
    """True if a line keeps only a slice of a tensor that it makes longer (drains.py)."""
    handed_out: bool = False
    """True if the generator that fills it hands its elements out again (drains.py)."""
    emptied_at: tuple[str, int, str] | None = None
    """File, line and function that empty the container or reset the value."""
    named: bool = True
    """True if a variable leads to it."""
    read_late: bool = False
    """True if its function reads the variable after a backward pass."""
    linked: str = ""
    """``Node.parent`` if the tensors are reached along a chain of objects of one class."""
    written: bool = False
    """True for a tensor whose graph grows by writes to its parts: ``memory[index] = features``."""
    metric: str = ""
    """Class of the torchmetrics metric whose state it is."""
    container_type: str = ""
    """Class of the container; empty where the holder has no length."""
    is_library: bool = False
    """True where an installed package defines the container's class."""
    through_traceback: bool = False
    """True where an exception's traceback leads to the tensors."""
    kv_cache: bool = False
    """True where a language model's cache of keys and values leads to the tensors."""
    in_one_cache: bool = False
    """The same, without a container of several caches: one cache grows by design until the generation ends."""
    mechanism: Mechanism = Mechanism.NONE
    subject: str = ""
    """Function that is cached, or object with weak keys: the name without its mechanism."""


def holder_of(paths: Sequence[Path], codes: Codes, family: Grouping | None = None, *, written: bool = False) -> Holder:
    """The holder that paths with the same :func:`group_key` have in common."""
    links = held_links(paths[0], family)
    whole = paths[0].links()
    last = links[-1]
    numbered = is_numbered(links, family)
    root = links[0].root
    deeper = shared_labels(paths, len(links))
    labels = labels_of_all(paths, links, family)
    name = root.spoken + "".join(labels) + "".join(deeper)
    if numbered:
        name = "" if last.parent is None else root.spoken + "".join(labels_of(links[:-1]))
        name += NUMBER.sub("*", last.label)
    if last.parent is not None and any(label.startswith("._") for label in labels[:-1]) and own_codes(last.parent.kind):
        # By what a library calls its own nobody knows the object: `Net.outputs`, not `trainer._connector._selector.model.outputs`.
        name = f"{type_info.name_of(last.parent.kind)}{last.label}" + "".join(deeper)
    in_cached_function = _is_in_a_cached_function(last)
    in_calls = last.parent is None and root.kind == "local" and _calls(paths) >= POLICY.container_tensors
    is_container = numbered or in_calls or in_cached_function or issubclass(last.kind, GROWS) or is_array(last.kind)
    owner = f" of {root.owner}()" if root.kind == "local" else ""
    words = f"{root.kind} '{root.name}'{owner}" if root.kind != "class" else f"class attribute {root.owner}.{root.name}"
    for link, label in zip(
        links[1:], labels if len(labels) == len(links) - 1 else [one.label for one in links[1:]], strict=True
    ):
        words += f" -> {_spoken_link(link, label)}"
    if deeper:
        words += " -> " + "".join(deeper)
    if last.size is not None and not (in_cached_function and last.bound is not None):
        words += f" -> {type_info.name_of(last.kind)}[{last.size}]"
    within = numbered_place(links, codes) if numbered else inner_place(paths, len(links), codes)
    keys = frozenset(label[2:-2] for label in (*labels_of(links), *deeper) if _is_text_key(label))
    metric = _metric_among(whole)
    taking = _taken_from(links, codes, metric) if is_container else _begun_anew(links, codes)
    emptying = taking if taking is not None or not is_container else _begun_by_call(last)
    place, line = (
        logged_at(whole, codes) or within or place_of(links, codes, container=is_container or written, keys=keys)
    )
    in_optimizer = _is_in_an_optimizer(whole)
    if in_optimizer:
        put = line_search.call_at(codes.all, "add_param_group", "")
        if put is None and not line_search.adds_at(place, line):
            put = line_search.put_under(codes.all, "params")
        place, line = put or (place, line)
    elif in_calls and root.code is not None:
        place, line = line_search.called_from(codes.all, root.code.co_name) or (place, line)
    elif is_container:
        place, line = filled_inside(paths, len(links), (place, line))
    chain = tuple(_chain(paths[0]))[:16]
    mechanism = Mechanism.CALLS if in_calls else _mechanism_of(whole, [root.spoken, *labels, *deeper])
    return Holder(
        key=group_key(paths[0], family),
        name=name.strip()[:200],
        words=words,
        chain=chain,
        file=place.co_filename if place is not None else root.file,
        line=line if line is not None else root.line,
        function=place.co_name if place is not None else root.owner,
        container=is_container,
        bound=_bound(paths, links, is_container=is_container),
        size=items_of_tee(paths) if mechanism is Mechanism.TEE else last.size,
        carried=len(links) > 1
        or is_container
        or root.code is None
        or line_search.carried_by_loop(root.code, root.name),
        variable=len(links) == 1,
        in_model=any(_is_module(link.kind) for link in links),
        drained=is_container and taking is not None,
        limit=_limit_of(links, codes) if is_container else None,
        limited=_is_limited(links, codes, is_container=is_container),
        # PyTorch gives each hook a number of its own: no entry comes again
        keyed=(issubclass(last.kind, Mapping) and not in_optimizer and mechanism is not Mechanism.HOOKS)
        or in_cached_function,
        looked_up=in_cached_function or (issubclass(last.kind, Mapping) and _is_looked_up(links, codes)),
        made_anew=len(links) == 1 and root.code is not None and line_search.made_anew(root.code, root.name),
        cut=not is_container and _is_cut(links, codes),
        handed_out=is_container and _is_handed_out(links, codes),
        emptied_at=_place_of(emptying),
        read_late=root.code is not None and line_search.read_after_backward(root.code, root.name),
        linked=_linked_by(paths),
        written=written and not is_container,
        metric=metric,
        container_type=type_info.name_of(last.kind) if last.size is not None else "",
        is_library=last.size is not None and _is_of_library(last.kind),
        through_traceback=any(link.label == TRACEBACK for link in whole),
        kv_cache=_is_kv_cache(whole),
        in_one_cache=leads_through_one_cache(chain),
        mechanism=mechanism,
        subject=name.strip().partition(" in ")[0],
    )


def _is_in_an_optimizer(whole: list[Path]) -> bool:
    """Whether an optimizer has it as a parameter: in a group, or as a key of its state. A group may have other entries."""
    labels = [link.label for link in whole]
    is_key = labels[-2:] == [".state", "[key]"]
    return is_key or (labels[-4:-3] == [".param_groups"] and labels[-2] == "['params']")


def _calls(paths: Sequence[Path]) -> int:
    """Number of running calls that have a variable of this name."""
    return len({id(path.root) for path in paths})


HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes in which PyTorch stores the hooks of modules and tensors."""


def _mechanism_of(whole: list[Path], labels: list[str]) -> Mechanism:
    """``whole``: the path to a tensor; ``labels``: of the holder's name."""
    inner = next((label for label in labels if label.startswith(" in ")), "")
    if any(link.parent is not None and link.parent.kind is itertools.cycle for link in whole):
        return Mechanism.ITERATOR
    if any(link.kind is TEE for link in whole):
        return Mechanism.TEE
    if _is_in_an_optimizer(whole):
        return Mechanism.PARAMETER_GROUPS
    if any(type_info.name_of(link.kind) == "EvalLoopContainer" for link in whole):
        return Mechanism.EVALUATION_OUTPUTS
    if any(issubclass(link.kind, weakref.WeakKeyDictionary) for link in whole):
        return Mechanism.WEAK_KEYS
    if inner == CACHED:
        return Mechanism.CACHED_FUNCTION
    last = labels[-1].removeprefix(".")
    return Mechanism.HOOKS if last.removeprefix("_global") in HOOKS else Mechanism.NONE


MANY_CACHES: Final = 3
"""A container with such a key, ``dict[6]`` for example, has several caches."""
_NUMBERED: Final = re.compile(r"^\w+\[(\d+)\]$")


def leads_through_one_cache(chain: Iterable[str]) -> bool:
    """Whether the links lead through a cache of keys and values, without a container of several caches before it."""
    for link in chain:
        if "Cache" in link or "past_key_values" in link:
            return True
        number = _NUMBERED.search(link)
        if number and int(number[1]) >= MANY_CACHES:
            return False
    return False


def _is_kv_cache(whole: list[Path]) -> bool:
    return any("Cache" in type_info.name_of(link.kind) or "past_key_values" in link.label for link in whole)


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(type_info.module_of(kind))
    file = getattr(module, "__file__", None)
    return module is not None and type_info.module_of(kind) != "builtins" and frames.is_library(file)


def _linked_by(paths: Sequence[Path]) -> str:
    """The attribute that links objects of one class to more than half of the tensors; "" if there is none.
    (Modules lie in modules of their class by design.)"""
    found: collections.Counter[str] = collections.Counter()
    for path in paths:
        link = path
        while link.parent is not None:
            if link.kind is link.parent.kind and link.label.startswith(".") and not _is_module(link.kind):
                found[f"{type_info.name_of(link.kind)}{link.label}"] += 1
                break
            link = link.parent
    name, count = found.most_common(1)[0] if found else ("", 0)
    return name if 2 * count > len(paths) else ""


def _bound(paths: Sequence[Path], links: list[Path], *, is_container: bool) -> int | None:
    """Elements that a container never has more of: its own, or those of a few windows in it, where they have all that is held (the
    deques of several meters)."""
    last = links[-1]
    if last.bound is not None and (is_container or _is_in_a_cached_function(last)):
        return last.bound
    windows: dict[int, int] = {}
    for path in paths if is_container else ():
        link = next((one for one in path.links()[len(links) :] if issubclass(one.kind, collections.deque)), None)
        if link is None or link.bound is None:
            return None
        windows[id(link)] = link.bound
    return sum(windows.values()) if windows and POLICY.elements_per_window * len(windows) <= len(paths) else None


def _is_in_a_cached_function(link: Path) -> bool:
    return link.parent is not None and link.parent.kind is functools._lru_cache_wrapper


def _is_text_key(label: str) -> bool:
    return label.startswith("['") and label.endswith("']")


def _metric_among(links: list[Path]) -> str:
    """The class of torchmetrics' metric that has it in a state; "" where none has."""
    metric = getattr(sys.modules.get("torchmetrics"), "Metric", None)
    return next(
        (type_info.name_of(link.kind) for link in links if metric is not None and metric in type_info.bases(link.kind)),
        "",
    )


def _is_module(kind: type) -> bool:
    return any(
        type_info.qualified_name(base) == "Module" and type_info.module_of(base).startswith("torch.nn.")
        for base in type_info.bases(kind)
    )


def _taken_from(links: list[Path], codes: Codes, metric: str) -> Drain | None:
    root, last = links[0].root, links[-1]
    of_list = issubclass(last.kind, list)
    if metric:
        through = frozenset(link.label[1:] for link in links[1:] if link.label.startswith("."))
        reset = (line_search.called_at(codes.all, name, frozenset(("reset",)), through) for name in (root.name, "self"))
        return next((Drain(*at, whole=True) for at in reset if at is not None), None)
    taking = drains.taken_from(own_codes(last.kind), "self", is_list=of_list)
    if taking is not None:
        return taking
    found = _own_name(links, codes)
    if found is None:
        return None
    own, name, attribute = found
    taking = drains.taken_from(own, name, is_list=of_list, attribute=attribute)
    taking = taking or drains.taken_by_callee(own, name, codes.all, is_list=of_list, attribute=attribute)
    return taking or (
        drains.set_by_name(own_codes(last.parent.kind)) if attribute and last.parent is not None else None
    )


def _begun_by_call(link: Path) -> Drain | None:
    root = link.root
    if link.parent is not None or root.code is None or root.call is None:
        return None
    return drains.begun_by_call(root.code, root.name, *root.call)


def _place_of(emptying: Drain | None) -> tuple[str, int, str] | None:
    if emptying is None or not emptying.whole:
        return None
    return emptying.code.co_filename, emptying.number, emptying.code.co_name


def _begun_anew(links: list[Path], codes: Codes) -> Drain | None:
    found = _own_name(links, codes)
    return None if found is None else drains.begun_anew(found[0], found[1], attribute=found[2])


def _is_cut(links: list[Path], codes: Codes) -> bool:
    found = _own_name(links, codes)
    return found is not None and drains.is_cut(found[0], found[1], attribute=found[2])


def _is_limited(links: list[Path], codes: Codes, *, is_container: bool) -> bool:
    found = _own_name(links, codes)
    limits = drains.is_limited if is_container else drains.is_shortened
    return found is not None and limits(found[0], found[1], attribute=found[2])


def _limit_of(links: list[Path], codes: Codes) -> int | None:
    found = _own_name(links, codes)
    return None if found is None else limits.limit_of(links, found[0], found[1], attribute=found[2])


def _is_looked_up(links: list[Path], codes: Codes) -> bool:
    found = _own_name(links, codes)
    return found is not None and drains.is_looked_up(found[0], found[1], attribute=found[2])


def _is_handed_out(links: list[Path], codes: Codes) -> bool:
    found = _own_name(links, codes)
    return found is not None and drains.is_handed_out(found[0], found[1], attribute=found[2])


def _own_name(links: list[Path], codes: Codes) -> tuple[list[CodeType], str, bool] | None:
    """The functions in which it has its own name, what it is called there, and whether that is an attribute; None: it has none."""
    root, last = links[0].root, links[-1]
    if last.parent is None:
        return [root.code] if root.code is not None else codes.all, root.name, root.of_class is not None
    if last.label.startswith("."):
        return own_codes(last.parent.kind) or codes.all, last.label[1:], True
    return None


def _spoken_link(link: Path, label: str) -> str:
    """``Net.outputs``: the class of the parent, and the step from it."""
    if label == CACHED:
        return CACHED.removeprefix(" in ")
    return f"{type_info.name_of(link.parent.kind)}{label}" if link.parent else label


def _chain(path: Path) -> list[str]:
    links = path.links()
    words = [str(links[0].root)]
    words += [_spoken_link(link, link.label) for link in links[1:]]
    words.append(type_info.name_of(links[-1].kind))
    return words
