"""Attributes of a class, read without its metaclass, whose code could run otherwise."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

_MRO: Any = type.__dict__["__mro__"]
_NAMESPACE: Any = type.__dict__["__dict__"]
_NAME: Any = type.__dict__["__name__"]
_QUALIFIED: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]


def bases(kind: type) -> tuple[type, ...]:
    """Return the class and its bases, in the order of attribute lookup."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def namespace(kind: type) -> Mapping[str, Any]:
    """Return the class's own ``__dict__``."""
    found: Mapping[str, Any] = _NAMESPACE.__get__(kind)
    return found


def name_of(kind: type) -> str:
    return str(_NAME.__get__(kind))


def qualified_name(kind: type) -> str:
    return str(_QUALIFIED.__get__(kind))


def module_of(kind: type) -> str:
    """Return the name of the class's module; "" if it is not a string."""
    found = _MODULE.__get__(kind)
    return found if type(found) is str else ""


def keeps_in_c(kind: type) -> bool:
    """Return whether a base is a library's C class, whose objects can retain things outside of attributes. (PyTorch's do not.)"""
    return any(
        type(namespace(base).get("__new__")) is types.BuiltinFunctionType
        and module_of(base).partition(".")[0] not in ("builtins", "torch")
        for base in bases(kind)
    )
