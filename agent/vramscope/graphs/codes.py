"""The functions that the user wrote, in which the lines that keep are looked for."""

from __future__ import annotations

import functools
import types

from vramscope.graphs import classes, lines, roots


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


def own_codes(kind: type) -> list[types.CodeType]:
    """The functions that the user wrote of a class."""
    return [code for code in lines.codes_of_class(kind) if not roots.is_library(code.co_filename)]
