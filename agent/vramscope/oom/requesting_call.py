"""The call that requested memory, read from the source: whether it computes, or creates or copies a tensor."""

from __future__ import annotations

import ast
import itertools
import linecache
from types import FrameType
from typing import Final

CREATE: Final = frozenset(
    [
        "empty",
        "zeros",
        "ones",
        "full",
        "rand",
        "randn",
        "randint",
        "randperm",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "asarray",
        "from_numpy",
        "from_dlpack",
        "empty_strided",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "to",
        "cuda",
        "xpu",
        "npu",
        "clone",
        "copy",
        "deepcopy",
        "load",
        "pin_memory",
    ]
)
"""Functions and methods that make a tensor without computing anything, by name; so do those that end with *tensor*."""


def computes(frame: FrameType) -> bool | None:
    """Whether the expression that this frame evaluates computes with tensors. None: not known.

    ``torch.cat(...)`` and ``a * b`` do, ``torch.zeros(...)`` and ``x.cuda()`` do not. Python reports the expression from 3.11 on.
    """
    source = _expression(frame)
    if "\\" in source:
        return None  # the parser may print a warning about an escape sequence
    try:
        tree = ast.parse(f"({source}\n)", mode="eval").body if source else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(tree, ast.Call):
        name, code = getattr(tree.func, "attr", getattr(tree.func, "id", None)), frame.f_code
        if name is None or name not in {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}:
            return None  # the file has changed since it was imported
        return name not in CREATE and not name.lower().endswith("tensor")
    return True if isinstance(tree, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript) else None


def _expression(frame: FrameType) -> str:
    """Source of the expression; empty: not known."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return ""
    line, last_line, column, last_column = next(itertools.islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is None or last_line is None or column is None or last_column is None:
        return ""
    lines = [
        text.encode() for text in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[line - 1 : last_line]
    ]
    if len(lines) != last_line - line + 1:
        return ""
    lines[-1] = lines[-1][:last_column]  # columns count bytes
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")
