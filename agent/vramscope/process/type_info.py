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


def dict_of(kind: type) -> Any:
    """Return the descriptor of a class's ``__dict__``; None if it has none, or the user put a property in its place."""
    for base in bases(kind):
        entry = namespace(base).get("__dict__")
        if entry is not None:
            return entry if type(entry) in (types.GetSetDescriptorType, types.MemberDescriptorType) else None
    return None


def slots_of(kind: type) -> list[Any]:
    """Return the descriptors of the slots of a class and its bases."""
    return [
        entry
        for base in bases(kind)
        if module_of(base) != "builtins"
        for name, entry in list(namespace(base).items())
        if type(entry) is types.MemberDescriptorType and not name.startswith("__")
    ]


def attributes_of(value: Any, descriptor: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__``, read by the descriptor of its class; None if there is none. No code of the class runs."""
    try:
        attributes = descriptor.__get__(value, type(value)) if descriptor is not None else None
    except (AttributeError, TypeError, RuntimeError):
        return None
    return attributes if type(attributes) is dict else None


def keeps_in_c(kind: type) -> bool:
    """Return whether a base is a library's C class, whose objects can retain things outside of attributes. (PyTorch's do not.)"""
    return any(
        type(namespace(base).get("__new__")) is types.BuiltinFunctionType
        and module_of(base).partition(".")[0] not in ("builtins", "torch")
        for base in bases(kind)
    )
