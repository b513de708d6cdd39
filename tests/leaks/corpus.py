"""All labelled loops, found in ``loops/``, and any of them made ready to run."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from marks import leak_marks
from truth import Loop, Truth

LOOPS = Path(__file__).parent / "loops"


@dataclasses.dataclass(frozen=True)
class Case:
    """One labelled loop."""

    name: str
    """``file.function``"""
    truth: Truth
    faults: frozenset[tuple[str, int]]
    """File name and number of each line that is marked as the fault."""


@functools.cache
def cases() -> dict[str, Case]:
    """Every loop by its name. Raises ValueError where a label and the marks in the source do not fit together."""
    paths = sorted(LOOPS.glob("*.py"))
    marks = [mark for path in paths for mark in leak_marks(path)]
    _fresh_package(LOOPS)
    found: dict[str, Case] = {}
    for path in paths:
        module = importlib.import_module(f"loops.{path.stem}")
        for function, loop in inspect.getmembers(module, inspect.isfunction):
            if loop.__module__ != module.__name__ or not hasattr(loop, "truth"):
                continue
            name = f"{path.stem}.{function}"
            faults = frozenset((mark.file, mark.line) for mark in marks if function in mark.loops)
            if bool(faults) == loop.truth.innocent:
                raise ValueError(f"{name} is labelled {'innocent, but has' if faults else 'a leak, but has no'} marks")
            found[name] = Case(name, loop.truth, faults)
    strangers = {loop for mark in marks for loop in mark.loops} - {name.split(".")[1] for name in found}
    if strangers:
        raise ValueError(f"marks name loops that are not there: {', '.join(sorted(strangers))}")
    return found


def load(name: str, folder: Path = LOOPS) -> Loop:
    """Return the loop from a newly imported module: what an earlier loop left in a global or a class is gone."""
    file, function = name.split(".")
    _fresh_package(folder)
    loop: Loop = getattr(importlib.import_module(f"loops.{file}"), function)
    return loop


def _fresh_package(folder: Path) -> None:
    """An empty package ``loops`` whose modules come from the folder. In it all imports are relative."""
    for name in [name for name in sys.modules if name.split(".")[0] == "loops"]:
        del sys.modules[name]
    gc.collect()
    spec = importlib.util.spec_from_file_location(
        "loops", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = sys.modules["loops"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
