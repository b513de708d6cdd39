"""What a thing that keeps a tensor is called, and the line that made it keep it: an object's attribute, an autograd function's
context, a frame kept by its exception, a closure, a container that is still being filled."""

from __future__ import annotations

import atexit
import itertools
import types
from typing import Any, Final

from vramscope.leaks.autograd import graph_walk
from vramscope.leaks.holders import line_search
from vramscope.leaks.holders.holder import HOOKS, Holder, leads_through_one_cache
from vramscope.leaks.holders.key import HolderKey, HolderKind, Mechanism
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan.object_children import attributes_of, children
from vramscope.leaks.scan.reachability import reached, shortest_path
from vramscope.process import frames, name_roots, type_info

_SUSPENDED: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
NAMELESS: Final = "unknown"
"""Name of a holder that was not found."""
_CALLED_AT_EXIT: Final = atexit._ncallbacks()
"""Number of functions that were registered before, by libraries."""


def named_by_itself(thing: Any) -> tuple[str, str | None] | None:
    """(words, file) of a thing that is a name by itself: a module's or class's dict, a running frame."""
    kind = type(thing)
    if name_roots.is_namespace(thing):
        return f"global of {thing['__name__']}", thing.get("__file__")
    if kind is dict and "__module__" in thing and "__qualname__" in thing:
        return f"class {thing['__module__']}.{thing['__qualname__']}", None
    if issubclass(kind, type):
        return f"class {type_info.module_of(thing)}.{type_info.qualified_name(thing)}", None
    if kind is types.ModuleType:
        return f"module {thing.__dict__.get('__name__')}", thing.__dict__.get("__file__")
    return None


def holder_of_thing(
    thing: Any, child: Any, tensor: Any, chain: list[str], codes: Codes, closure: dict[int, Any], *, cyclic: bool
) -> Holder | None:
    import torch

    kind = type(thing)
    if kind is types.FrameType:
        code = thing.f_code
        name = next(
            (name for name, value in frames.locals_of(thing).items() if issubclass(type(value), BaseException)), ""
        )
        at = line_search.name_kept_at(code, name, container=False) if name else None
        words = f"frame of {code.co_name}()" + (f", kept by its exception '{name}'" if name else "")
        return nameless_holder(
            HolderKey(HolderKind.FRAME, getattr(code, "co_qualname", code.co_name), code.co_filename),
            name or code.co_name,
            words,
            [words, *chain],
            code.co_filename,
            at[1] if at else code.co_firstlineno,
            code.co_name,
        )
    if kind in _SUSPENDED:
        return _of_suspended(thing, child, chain)
    if kind is types.FunctionType:
        code = thing.__code__
        words = f"function {thing.__qualname__} and its closure"
        at = line_search.registered_at(codes.all, code) or (code, code.co_firstlineno)
        found = nameless_holder(
            HolderKey(HolderKind.FUNCTION, name=thing.__qualname__),
            f"{thing.__name__}{_captured(thing, tensor)}",
            words,
            [words, *chain],
            at[0].co_filename,
            at[1],
            at[0].co_name,
            mechanism=Mechanism.CLOSURE,
        )
        return found._replace(subject=thing.__name__)
    if issubclass(kind, torch.autograd.function.BackwardCFunction):
        return _of_function(thing, tensor, chain, closure, cyclic=cyclic)
    if (
        type_info.module_of(kind) in ("builtins", "types", "collections", "_thread")
        or type_info.module_of(kind).partition(".")[0] == "torch"
    ):
        return None
    if cyclic:
        back = sorted(_ways_back(thing, closure), key=lambda way: way[1])
        if not back:
            return None  # it hangs on a cycle, but is no part of it
        label, contained, value = back[0]
        chain = types_below([thing, *shortest_path(value, tensor, closure)]) or chain
    else:
        label, contained = next((label for label, value in children(thing) if value is child), ""), True
    own = [code for code in line_search.codes_of_class(kind) if not frames.is_library(code.co_filename)]
    name = label.partition("[")[0].lstrip(".")
    at = line_search.attribute_kept_at([*own, *codes.all], name, container=contained) if label.startswith(".") else None
    if at is None and type_info.module_of(kind) == "weakref":
        at = line_search.called_at(codes.all, "weakref", frozenset(("finalize",)))
    words = f"{'' if cyclic else 'an object of '}{type_info.qualified_name(kind)}{label}"
    return nameless_holder(
        HolderKey(HolderKind.OBJECT, type_info.module_of(kind), name=type_info.qualified_name(kind)),
        f"{type_info.name_of(kind)}{label}",
        words,
        [words, *chain],
        at[0].co_filename if at else None,
        at[1] if at else None,
        at[0].co_name if at else None,
        carried=not contained,
        mechanism=_mechanism_of(kind, label),
    )


def _of_suspended(thing: Any, child: Any, chain: list[str]) -> Holder | None:
    """A generator or a coroutine that only a running loop asks for its next value: its variable has the tensors."""
    label = next((label for label, value in children(thing) if value is child), "")
    code = getattr(thing, "gi_code", None) or getattr(thing, "cr_code", None) or getattr(thing, "ag_code", None)
    if code is None or "'" not in label or frames.is_library(code.co_filename):
        return None
    name = label.split("'")[1]
    at = line_search.name_kept_at(code, name, container=True)
    words = f"variable '{name}' of {code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}()"
    return nameless_holder(
        HolderKey(HolderKind.FRAME, code.co_name, code.co_filename, name),
        name,
        words,
        [words, *chain],
        code.co_filename,
        at[1] if at else code.co_firstlineno,
        code.co_name,
    )


def _captured(function: types.FunctionType, tensor: Any) -> str:
    """`` closure 'mask'`` for a lambda, whose own name says nothing; empty where no variable of it is the tensor."""
    if function.__name__ != "<lambda>":
        return ""
    return next((label for label, value in children(function) if value is tensor), "")


def types_below(path: list[Any]) -> list[str]:
    """Type names of a path's objects below the first, each of which refers to the next.

    Without the dictionaries of attributes: Python makes them when it needs them, so the same object may have one or none.
    """
    return [
        type_info.name_of(type(below))
        for above, below in itertools.pairwise(path)
        if type(below) is not dict or below is not attributes_of(above)
    ]


def _mechanism_of(kind: type, label: str) -> Mechanism:
    if type_info.name_of(kind) == "EvalLoopContainer":
        return Mechanism.EVALUATION_OUTPUTS
    return Mechanism.HOOKS if label.removeprefix(".") in HOOKS else Mechanism.NONE


def _ways_back(thing: Any, closure: dict[int, Any]) -> list[tuple[str, bool, Any]]:
    """(attribute, whether a container lies in between, value) of the references by which an object leads back to itself."""
    ways = []
    for label, value in children(thing):
        if id(value) in closure and (value is thing or id(thing) in reached({id(value)}, closure)):
            ways.append((label, type(value) in (list, dict, set, tuple), value))
    return ways


def _of_function(node: Any, tensor: Any, chain: list[str], closure: dict[int, Any], *, cyclic: bool) -> Holder:
    """A custom autograd Function that keeps a tensor as an attribute; of a cycle it is the Function's own result: the graph keeps
    the attribute, and the attribute the graph."""
    source = line_search.forward_class(type(node))
    kept = [(name, value, graph_walk.tensors_in(value)) for name, value in list(node.__dict__.items())]
    holds = next((name for name, _, tensors in kept if any(one is tensor for one in tensors)), "")
    holds = holds or next((name for name, value, _ in kept if id(value) in closure), "")  # it lies deeper in there
    leads_back = next((name for name, _, tensors in kept if any(one.grad_fn is node for one in tensors)), "")
    attribute = (leads_back or holds) if cyclic else holds
    at = line_search.context_kept_at(type(node), attribute)
    words = f"ctx.{attribute} of the autograd function {type_info.qualified_name(source)}"
    return nameless_holder(
        HolderKey(
            HolderKind.AUTOGRAD_CONTEXT, type_info.module_of(source), "", type_info.qualified_name(source), (attribute,)
        ),
        f"{type_info.name_of(source)}.{attribute}",
        words,
        [words, *chain],
        at[0].co_filename if at else None,
        at[1] if at else None,
        at[0].co_name if at else None,
    )


def being_built(top: Any, chain: list[str]) -> Holder | None:
    """A container that nothing refers to but the function that fills it."""
    kind = type(top)
    if kind not in (list, set, dict):
        return None
    frame = name_roots.building()
    if frame is None:
        return None
    code, line = frame.f_code, frame.f_lineno
    name = line_search.stored_on(code, line)
    words = f"a {kind.__name__} that is being built in {code.co_name}()" + (f", for '{name}'" if name else "")
    return nameless_holder(
        HolderKey(HolderKind.BUILT, code.co_name, code.co_filename, path=(str(line),)),
        name or f"a {kind.__name__} in {code.co_name}()",
        words,
        [words, *chain],
        code.co_filename,
        line,
        code.co_name,
    )


def at_exit(top: Any, chain: list[str], codes: Codes) -> Holder | None:
    """The arguments of functions that are called when the process ends. Only C refers to them, so their number must have risen, and
    the user's code must register some."""
    if type(top) is not tuple or atexit._ncallbacks() - _CALLED_AT_EXIT < POLICY.container_tensors:
        return None
    at = line_search.called_at(codes.all, "atexit", frozenset(("register",)))
    if at is None:
        return None
    words = "arguments of functions that are called when the process ends"
    key = HolderKey(HolderKind.NAMED, "atexit", name="register")
    return nameless_holder(key, "atexit", words, [words, *chain], at[0].co_filename, at[1], at[0].co_name)


def unknown(tensor: Any) -> Holder:
    words = f"holder not found: {type(tensor).__name__} of shape {list(tensor.shape)}"
    return nameless_holder(
        HolderKey(HolderKind.UNKNOWN, name=str(list(tensor.shape))), NAMELESS, words, [], None, None, None
    )


def nameless_holder(
    key: HolderKey,
    name: str,
    words: str,
    chain: list[str],
    file: str | None,
    line: int | None,
    function: str | None,
    *,
    carried: bool = False,
    mechanism: Mechanism = Mechanism.NONE,
) -> Holder:
    """A holder that no variable leads to, by what is known of it."""
    return Holder(
        key=key,
        name=name[:200],
        words=words,
        chain=tuple(chain[:16]),
        in_one_cache=leads_through_one_cache(chain[:16]),
        file=file,
        line=line,
        function=function,
        container=True,
        bound=None,
        size=None,
        carried=carried,
        variable=False,
        named=False,
        mechanism=mechanism,
        subject=name,
    )
