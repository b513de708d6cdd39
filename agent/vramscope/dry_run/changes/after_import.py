"""Calls a function when the program has imported a module: frameworks are imported after the dry run began."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from vramscope.guard import guarded

Patch = Callable[[ModuleType], None]


class _Finder:
    """An import finder that finds nothing itself, but detects the import of one module."""

    def __init__(self, name: str, patch: Patch) -> None:
        self._name = name
        self._patch = guarded("a change of the dry run")(patch)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if hasattr(finder, "find_spec"))
        spec = next((one for one in specs if one is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # another patch of this module may have removed it
            run(module)
            self._patch(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, patch: Patch) -> None:
    """Call ``patch(module)`` when the module was imported; at once if it is already."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Finder(name, patch))
    else:
        guarded("a change of the dry run")(patch)(module)
