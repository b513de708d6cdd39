"""Reads the marks in the loops' sources: on which line a leak is, and what would mend it. README.md has the notation."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

LEAK = re.compile(r"#\s*<- leak(?: of (?P<loops>[\w, ]+?))?(?:; fix: (?P<fix>.+))?$")
FIX_HERE = re.compile(r"#\s*fix here: (?P<fix>.+)$")
FIX_OVER = re.compile(r"^\s*#\s*fix over: (?P<header>.+:)$")


@dataclasses.dataclass(frozen=True)
class Mark:
    """One line that is at fault."""

    file: str
    line: int
    loops: tuple[str, ...]


def leak_marks(path: Path) -> list[Mark]:
    """The marked lines of a file, from the top.

    Raises ValueError for a mark that lies in no loop and names none, and for one on a part of a statement.
    """
    source = path.read_text()
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    whole = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and (hasattr(node, "body") or node.lineno == node.end_lineno)
    }
    marks = []
    for number, line in enumerate(source.splitlines(), 1):
        found = LEAK.search(line)
        if (found or FIX_HERE.search(line)) and number not in whole and not line.lstrip().startswith("#"):
            raise ValueError(f"{path.name}:{number}: a mark must be on a statement of one line")
        if found is None:
            continue
        if found["loops"]:
            loops = tuple(name.strip() for name in found["loops"].split(","))
        else:
            around = [f.name for f in functions if f.lineno <= number <= (f.end_lineno or 0)]
            if not around:
                raise ValueError(
                    f"{path.name}:{number}: a leak outside of a loop must say of which: '# <- leak of NAME'"
                )
            loops = tuple(around)
        marks.append(Mark(path.name, number, loops))
    return marks


def mended(source: str) -> str:
    """The source with every fix applied; lines keep their numbers but for those that a block takes in."""
    lines = source.splitlines()
    result: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if over := FIX_OVER.match(line):
            indent = _indent(line)
            result.append(indent + over["header"])
            while number < len(lines) and (not lines[number].strip() or _is_inside(lines[number], indent, result[-1])):
                # Fixes within the block count too.
                result.append(("    " + _mended_line(lines[number])) if lines[number].strip() else "")
                number += 1
            continue
        result.append(_mended_line(line))
    return "\n".join(result) + "\n"


def write_mended(loops: Path, folder: Path) -> None:
    """Copy the package of loops into a new folder, every fix applied."""
    folder.mkdir(parents=True)
    for path in loops.glob("*.py"):
        (folder / path.name).write_text(mended(path.read_text()))


def _is_inside(line: str, indent: str, before: str) -> bool:
    """Whether the line belongs to the statement that a block takes in: its first line, or deeper than it."""
    is_first = (
        before == indent + before.strip() and before.strip().endswith(":") and before.lstrip().startswith("with ")
    )
    return line.startswith(indent + " ") or (is_first and line.startswith(indent) and _indent(line) == indent)


def _mended_line(line: str) -> str:
    found = LEAK.search(line) or FIX_HERE.search(line)
    fix = found["fix"] if found else None
    if fix is None:
        return line
    return _indent(line) + ("pass" if fix == "(nothing)" else fix)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
