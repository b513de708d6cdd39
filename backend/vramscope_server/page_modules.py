"""JavaScript modules of each page, so that a page asks for its own at once and for those of other pages later.

A browser finds the imports of a module only when it has the module: without a list, each level of imports is one more
round trip. A list of all modules costs the first chart more than it saves: two thirds belong to other pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_STATIC_IMPORT = re.compile(r'^\s*(?:import|export)\b[^;("]*"vramscope/([^"]+)"', re.MULTILINE)
_FRAME = "frame.js"
_UNKNOWN = "pages/unknown.js"


def imports_of(source: str) -> list[str]:
    """Names of the modules that a module imports when it is loaded. Modules that it loads later do not count."""
    return _STATIC_IMPORT.findall(source)


def page_module(path: str) -> str:
    """Module of the page at a path, as ``frontend/frame.js`` routes it."""
    match path.strip("/").split("/"):
        case [""]:
            return "pages/runs.js"  # the frame opens the list
        case ["runs", _] | ["runs", _, "memory"]:
            return "pages/run.js"
        case ["runs", _, tab]:
            return f"pages/{tab}.js"
        case ["snapshots", _]:
            return "pages/snapshot.js"
        case [place]:
            return f"pages/{place.replace('-', '_')}.js"
        case _:
            return _UNKNOWN


def modules_of(path: str, imports: Mapping[str, list[str]]) -> list[str]:
    """Modules that the frame and the page at a path need, importers first. ``imports``: those of each module."""
    page = page_module(path)
    found = {name: None for name in (_FRAME, page if page in imports else _UNKNOWN) if name in imports}
    waiting = list(found)
    for name in waiting:
        for imported in imports[name]:
            if imported in imports and imported not in found:
                found[imported] = None
                waiting.append(imported)
    return list(found)
