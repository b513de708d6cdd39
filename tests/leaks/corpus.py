"""All labelled loops, found in ``loops/``, and the same loops mended."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from marks import leak_marks, write_mended
from truth import Loop, Truth

HERE = Path(__file__).parent
MENDED = "mended_loops"


@dataclasses.dataclass(frozen=True)
class Case:
    """One labelled loop."""

    name: str
    """``file.function``"""
    loop: Loop
    truth: Truth
    faults: frozenset[tuple[str, int]]
    """file's name and line, of each line that is marked as at fault"""


@functools.cache
def cases() -> dict[str, Case]:
    """Every loop by its name. Raises ValueError where a label and the marks in the source do not fit together."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    paths = sorted((HERE / "loops").glob("*.py"))
    marks = [mark for path in paths for mark in leak_marks(path)]
    found: dict[str, Case] = {}
    for path in paths:
        module = importlib.import_module(f"loops.{path.stem}" if path.stem != "__init__" else "loops")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or not hasattr(function, "truth"):
                continue
            faults = frozenset((mark.file, mark.line) for mark in marks if name in mark.loops)
            if bool(faults) == function.truth.innocent:
                raise ValueError(f"{path.stem}.{name}: {'innocent, but' if faults else 'a leak, but no line'} marked")
            found[f"{path.stem}.{name}"] = Case(f"{path.stem}.{name}", function, function.truth, faults)
    unknown = {loop for mark in marks for loop in mark.loops} - {name.split(".")[1] for name in found}
    if unknown:
        raise ValueError(f"marks name loops that are not there: {', '.join(sorted(unknown))}")
    return found


def mended_loop(name: str, folder: Path) -> Loop:
    """The loop with its fix applied; the mended sources are written to ``folder`` if it is not there."""
    if not folder.exists():
        write_mended(HERE / "loops", folder)
    if MENDED not in sys.modules:
        # A package of its own beside ``loops``; within it all imports are relative, so that the library is mended too.
        spec = importlib.util.spec_from_file_location(
            MENDED, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[MENDED] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[MENDED])
    file, function = name.split(".")
    return getattr(importlib.import_module(f"{MENDED}.{file}"), function)
