"""Watches the calls of a Python function without replacing it.

The function's code object is exchanged for one with the same statements plus calls of the watchers at its begin and end.
The function stays the same object: code that imported it earlier is watched too, and pickling, inspection and comparison do
not change. A traceback shows the same lines and no frame of the agent. Dynamo, which knows PyTorch's functions by identity,
sees the original statements only.

Where that is not possible (no source text, say), a wrapper replaces the function.

"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import itertools
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from vramscope.process.hide_from_dynamo import skip_frames

MARK: Final = "<the calls that vramscope watches>"
"""Constant in the compiled code that is replaced by the :class:`Calls`."""
TOKEN: Final = "_watched_call"
RESULT: Final = "_watched_result"


class Watcher(NamedTuple):
    """Callbacks at the begin and the end of each call. None of them may raise.

    before   gets the call's arguments, named ones by position; its result is the token of the call
    after    gets the token and the result
    failed   gets the token; ``sys.exc_info()`` has the error

    """

    before: Callable[..., Any]
    after: Callable[[Any, Any], None] | None = None
    failed: Callable[[Any], None] | None = None


class Calls:
    """All watchers of one function, as its code sees them. Hashable by identity, since it is a constant of that code."""

    __slots__ = ("after", "before", "failed", "paused", "restore", "wanted", "watchers")

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.paused: list[Watcher] = []
        """Watchers that are paused."""
        self.wanted: Any = ()
        """Container of ids of first arguments, for a function that is watched for some of them only."""
        self.restore: Callable[[], None] = lambda: None
        self.changed()

    def changed(self) -> None:
        """Update the callbacks after a change of the list of watchers."""
        watchers = tuple(one for one in self.watchers if one not in self.paused)
        if not watchers:
            self.before = self.after = self.failed = _nothing
        elif len(watchers) == 1:
            one = watchers[0]
            self.before, self.after, self.failed = one.before, one.after or _nothing, one.failed or _nothing
        else:
            self.before, self.after, self.failed = _combined(watchers)


def _nothing(*_: Any) -> None:
    return None


def _combined(watchers: tuple[Watcher, ...]) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    def before(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple([watcher.before(*args, **kwargs) for watcher in watchers])

    def after(tokens: tuple[Any, ...] | None, result: Any) -> None:
        for watcher, token in zip(watchers, tokens or (), strict=False):
            if watcher.after is not None:
                watcher.after(token, result)

    def failed(tokens: tuple[Any, ...] | None) -> None:
        for watcher, token in zip(watchers, tokens or (), strict=False):
            if watcher.failed is not None:
                watcher.failed(token)

    return before, after, failed


_watched: dict[tuple[int, str], Calls] = {}
"""Calls by the id of the owner (a class or module that lives as long as the process) and the function's name."""


class Watch(NamedTuple):
    """Control of one watcher."""

    end: Callable[[], None]
    """Ends it. The end of a function's last watcher restores the function."""
    pause: Callable[[], None]
    """The watcher is not called until ``resume``; the function's code stays as it is. A call in which this changes may
    reach ``after`` or ``failed`` with None as its token."""
    resume: Callable[[], None]


def watch(owner: Any, name: str, watcher: Watcher) -> Watch:
    """Call a watcher with each call of ``owner.name``."""
    key = id(owner), name
    calls = _watched.get(key)
    if calls is None:
        calls = _watched[key] = Calls()
        calls.watchers.append(watcher)
        calls.changed()
        install(owner, name, calls)
    else:
        calls.watchers.append(watcher)
        calls.changed()

    def end() -> None:
        if watcher not in calls.watchers:
            return
        resume()
        calls.watchers.remove(watcher)
        calls.changed()
        if not calls.watchers and _watched.get(key) is calls:
            del _watched[key]
            calls.restore()

    def pause() -> None:
        if watcher not in calls.paused:
            calls.paused.append(watcher)
            calls.changed()

    def resume() -> None:
        if watcher in calls.paused:
            calls.paused.remove(watcher)
            calls.changed()

    return Watch(end, pause, resume)


def is_watched(function: Any) -> bool:
    """Return whether a function's code contains calls of watchers."""
    return any(isinstance(constant, Calls) for constant in function.__code__.co_consts)


def install(owner: Any, name: str, calls: Calls, *, for_wanted: bool = False) -> None:
    """Call ``calls`` from the function until ``calls.restore()``.

    for_wanted   only if the id of the first argument is in ``calls.wanted``

    """
    function = inspect.getattr_static(owner, name)
    if not isinstance(function, FunctionType):
        _wrap(owner, name, calls, for_wanted)
        return
    plain = function.__code__
    if plain not in _made:  # compiling takes some ms, and a function may be watched repeatedly
        _made[plain] = watched_code(function, for_wanted=for_wanted)
    made = _made[plain]
    if made is None:
        _wrap(owner, name, calls, for_wanted)
        return
    watched = made.replace(co_consts=tuple(calls if constant == MARK else constant for constant in made.co_consts))
    function.__code__ = watched

    def restore() -> None:
        if function.__code__ is watched:
            function.__code__ = plain

    calls.restore = restore


_made: dict[CodeType, CodeType | None] = {}
"""Results of :func:`watched_code` by the original code."""


def watched_code(function: FunctionType, *, for_wanted: bool = False) -> CodeType | None:
    """Return the function's code with calls of :data:`MARK`'s attributes in it; None if it cannot be made."""
    plain = function.__code__
    for source in (_lines_with_code, inspect.getsourcelines):
        try:
            lines, first = source(plain)
            # Keep the indentation of the file, so that a traceback marks the same columns.
            indented = lines[0][:1].isspace()
            text = "\n" * (first - 1 - indented) + ("if 1:\n" if indented else "") + "".join(lines)
            definition, again = _definition(text), _definition(text)  # parsing again is faster than a copy
            break
        except (OSError, TypeError, ValueError, SyntaxError, IndexError):
            pass
    else:
        return None
    if definition is None or again is None or definition.decorator_list or _mangles(definition, text):
        return None
    _inject(definition, again, plain, for_wanted, "torch" in function.__globals__)
    module = ast.Module([_enclosed(definition, plain.co_freevars)], [])
    future = plain.co_flags & _FUTURE_FLAGS
    outer = compile(module, plain.co_filename, "exec", flags=future, dont_inherit=True)
    made = _code_named(outer, plain.co_name)
    if made is None or made.co_freevars != plain.co_freevars or _parameters(made) != _parameters(plain):
        return None
    made = made.replace(co_flags=plain.co_flags)
    if sys.version_info >= (3, 11):
        made = made.replace(co_qualname=plain.co_qualname)
    return made


def _lines_with_code(code: CodeType) -> tuple[list[str], int]:
    """Return a function's lines up to the last one with code, and the number of the first.

    ``inspect`` finds the end by the tokenizer, which takes 2 ms a function. Raises OSError where Python does not know the ends of
    statements (before 3.11), or has no source text.
    """
    if sys.version_info < (3, 11):
        raise OSError("the ends of statements are not known")
    last, waiting = 0, [code]
    while waiting:
        one = waiting.pop()
        last = max(last, *(end or 0 for _, end, _, _ in one.co_positions()))
        waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    with tokenize.open(code.co_filename) as file:  # linecache would keep the whole text
        return list(itertools.islice(file, code.co_firstlineno - 1, last)), code.co_firstlineno


_FUTURE_FLAGS: Final = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names), 0
)


def _parameters(code: CodeType) -> tuple[Any, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames[:count]


_MANGLED: Final = re.compile(r"\b__(?!\w*__\b)\w+")


def _mangles(definition: ast.FunctionDef, text: str) -> bool:
    """Return whether a name in the function means another one within its class."""
    if not _MANGLED.search(text):
        return False  # to visit each node is slow
    names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    return any(_MANGLED.fullmatch(name) for name in names)


def _definition(text: str) -> ast.FunctionDef | None:
    first = ast.parse(text).body[0]
    definition = first.body[0] if isinstance(first, ast.If) else first
    return definition if isinstance(definition, ast.FunctionDef) else None


def _enclosed(definition: ast.FunctionDef, free: tuple[str, ...]) -> ast.stmt:
    """Put the definition into a function with the free variables, if there are any (``__class__`` of a ``super()``)."""
    if not free:
        return definition
    outer: ast.FunctionDef = ast.parse(f"def outer({', '.join(free)}): pass").body[0]  # type: ignore[assignment]
    outer.body = [definition]
    return outer


def _code_named(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = constant if constant.co_name == name else _code_named(constant, name)
            if found is not None:
                return found
    return None


def _inject(
    definition: ast.FunctionDef, again: ast.FunctionDef, code: CodeType, for_wanted: bool, knows_torch: bool
) -> None:
    """Add the calls to the function's statements; nothing is watched while Dynamo traces them. ``again``: a copy of it."""
    body = definition.body
    doc = body[:1] if ast.get_docstring(definition, clean=False) is not None else []
    plain = body[len(doc) :] or [ast.copy_location(ast.Pass(), definition)]
    arguments = definition.args
    named = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    passed = [*named, *([f"*{arguments.vararg.arg}"] if arguments.vararg else [])]
    passed += [f"{one.arg}={one.arg}" for one in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    conditions = []
    if knows_torch and _knows_dynamo():
        conditions.append("torch.compiler.is_dynamo_compiling()")
    if for_wanted:
        conditions.append(f"id({named[0]}) not in {MARK!r}.wanted")
    template = ast.parse(
        textwrap.dedent(
            f"""
            if {" or ".join(conditions) or "False"}:
                pass
            else:
                {TOKEN} = {MARK!r}.before({", ".join(passed)})
                try:
                    pass
                except BaseException:
                    {MARK!r}.failed({TOKEN})
                    raise
            """
        )
    ).body[0]
    assert isinstance(template, ast.If)
    attempt = template.orelse[1]
    assert isinstance(attempt, ast.Try)
    for node in ast.walk(template):  # the added nodes have the line of the function's first statement
        if hasattr(node, "lineno"):
            ast.copy_location(node, plain[0])
    template.body = plain
    kept = [name for name in code.co_varnames if name not in code.co_cellvars]
    returns = _Returns(kept)
    attempt.body = returns.replaced(again.body[len(doc) :]) or [ast.copy_location(ast.Pass(), definition)]
    if not isinstance(plain[-1], ast.Return | ast.Raise):
        attempt.body += returns.end(ast.copy_location(ast.Return(None), plain[-1]))
    definition.body = [*doc, template]


def _knows_dynamo() -> bool:
    import torch

    return hasattr(getattr(torch, "compiler", None), "is_dynamo_compiling")


class _Returns:
    """Passes the result of each return of a function to ``after`` first; inner functions are left unchanged.

    kept   the function's variables. They are cleared before ``after``, as after the end of a call

    """

    def __init__(self, kept: list[str]) -> None:
        self._clear = " = ".join([*kept, "None"])

    def end(self, node: ast.Return) -> list[ast.stmt]:
        """Return the statements for one return."""
        lines = (f"{RESULT} = None", self._clear, f"{MARK!r}.after({TOKEN}, {RESULT})", f"return {RESULT}")
        made = ast.parse("\n".join(lines)).body
        for statement in made:
            for part in ast.walk(statement):
                if hasattr(part, "lineno"):
                    ast.copy_location(part, node)
        assert isinstance(made[0], ast.Assign)
        made[0].value = node.value or made[0].value
        return made

    def replaced(self, statements: list[Any]) -> list[Any]:
        """Return the statements with those of each return in its place."""
        found: list[Any] = []
        for one in statements:
            if isinstance(one, ast.Return):
                found += self.end(one)
                continue
            if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for name in _BLOCKS.intersection(one._fields):
                    setattr(one, name, self.replaced(getattr(one, name)))
            found.append(one)
        return found


_BLOCKS: Final = frozenset(("body", "orelse", "finalbody", "handlers", "cases"))
"""Fields of statements with statements in them."""


def _wrap(owner: Any, name: str, calls: Calls, for_wanted: bool) -> None:
    """Replace the function by a wrapper that Dynamo looks through."""
    original = getattr(owner, name)
    watches = True

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not watches or (for_wanted and id(args[0]) not in calls.wanted):
            return original(*args, **kwargs)
        token = calls.before(*args, **kwargs)
        ends = False
        try:
            result = original(*args, **kwargs)
            ends = True
        finally:
            if not ends:
                calls.failed(token)
        calls.after(token, result)
        return result

    watched._torchdynamo_inline = original  # type: ignore[attr-defined]
    skip_frames(watched.__code__, below=False)  # type: ignore[attr-defined]
    setattr(owner, name, watched)

    def restore() -> None:
        nonlocal watches
        watches = False
        if getattr(owner, name) is watched:
            setattr(owner, name, original)

    calls.restore = restore
