"""Functions of the user, which are searched for the lines that retain tensors."""

from __future__ import annotations

import functools
import types

from vramscope.leaks.holders import line_search
from vramscope.process import frames, name_roots, type_info


class Codes:
    """Functions of the user, collected at first use, once per scan."""

    @functools.cached_property
    def all(self) -> list[types.CodeType]:
        found: dict[types.CodeType, None] = {}
        for frame in frames.running_frames():
            if not frames.is_library(frame.f_code.co_filename):
                found[frame.f_code] = None
        for module in name_roots.user_modules():
            for value in list(module.__dict__.values()):
                if issubclass(type(value), type):
                    if type_info.module_of(value) == module.__dict__.get("__name__"):
                        found.update(dict.fromkeys(line_search.codes_of_class(value)))
                else:
                    code = line_search.code_of(value)
                    if code is not None:
                        found[code] = None
        return [code for code in found if not frames.is_library(code.co_filename)]


def own_codes(kind: type) -> list[types.CodeType]:
    """The functions that the user wrote of a class."""
    return [code for code in line_search.codes_of_class(kind) if not frames.is_library(code.co_filename)]
