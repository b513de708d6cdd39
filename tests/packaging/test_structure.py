"""Size and names: files of one noun, class names that can be searched for, few broad handlers."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    [*(ROOT / "agent" / "vramscope").rglob("*.py"), *(ROOT / "backend" / "vramscope_server").rglob("*.py")]
)
SCRIPTS = sorted((ROOT / "frontend").rglob("*.js"))
MOST_LINES = 400
MOST_BROAD_HANDLERS = 10
UNSPECIFIC = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base"}


def package_of(path: Path) -> str:
    """Packages of the agent, of the server, and of the server's analysis."""
    parts = path.relative_to(ROOT).parts
    depth = 4 if len(parts) > 4 and parts[2] == "analysis" else 3
    return "/".join(parts[:depth]) if len(parts) > depth else "/".join(parts[:2])


def test_no_file_is_long() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in [*SOURCES, *SCRIPTS]}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
    assert len(lines) > 800, "all files are read"


def test_no_class_name_is_used_twice_in_a_package() -> None:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[package_of(path), node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for (_, name), found in places.items() if len(found) > 1} == {}


def test_no_file_name_is_used_more_than_twice_in_a_package() -> None:
    counts = Counter((package_of(path), path.name) for path in SOURCES if path.name != "__init__.py")
    assert {name: count for name, count in counts.items() if count > 2} == {}


def test_file_names_are_specific() -> None:
    assert [path for path in SOURCES if path.stem in UNSPECIFIC or path.parent.name in UNSPECIFIC] == []


def test_broad_handlers_are_few_and_say_why() -> None:
    """Outside of guard.py. The reason stands on the line of the handler."""
    found = []
    for path in SOURCES:
        if path.name == "guard.py":
            continue
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler) and is_broad(node):
                found.append((str(path.relative_to(ROOT)), lines[node.lineno - 1]))
    assert len(found) <= MOST_BROAD_HANDLERS, found
    without_reason = [place for place in found if not re.search(r"#.*\w+ \w+", place[1])]
    assert not without_reason


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return bool({"Exception", "BaseException"} & {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)})
