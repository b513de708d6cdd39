"""The code of a function with calls in it: its statements from the source text, compiled again with calls at begin and end."""

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
from types import CodeType, FunctionType
from typing import Any, Final

MARK: Final = "<the calls that vramscope watches>"
"""Constant in the compiled code that is replaced by the calls."""
TOKEN: Final = "_watched_call"
RESULT: Final = "_watched_result"


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
