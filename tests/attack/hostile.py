"""Puts markup into every text of a message, an artifact or a snapshot that is still accepted with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

MARKUP = "'\"><img src=x onerror=window.pwned=1><script>window.pwned=1</script><b>bold</b>%{y}{{7*7}}"
LINK = "javascript:window.pwned=1"
Path = tuple[Any, ...]


def texts(value: Any, path: Path = ()) -> Iterator[Path]:
    """Places of all texts in a tree of values."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from texts(value[key], (*path, key))


def with_text(tree: Any, path: Path, text: str) -> Any:
    """A copy with another text there."""
    changed = copy.deepcopy(tree)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = text
    return changed


def with_markup(tree: Any, is_accepted: Callable[[Any], bool]) -> tuple[Any, list[Path]]:
    """The tree with markup in every text that may be anything, and where that is. The first that is accepted is taken."""
    changed, places = tree, []
    for path in texts(tree):
        for text in (MARKUP, LINK, "<b>x"):
            tried = with_text(changed, path, text)
            if is_accepted(tried):
                changed = tried
                places.append(path)
                break
    return changed, places
