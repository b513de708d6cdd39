"""Benchmarks: each starts, and reads only the options that it declares."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks").glob("*.py"))
PROGRAMS = [path for path in FILES if "ArgumentParser" in path.read_text()]
PARTS = [path for path in FILES if path not in PROGRAMS]


def options(tree: ast.AST) -> set[str]:
    """Attributes that the parser of a file sets."""
    return {
        str(call.args[0].value).lstrip("-").replace("-", "_")
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and isinstance(call.args[0], ast.Constant)
    }


def read_options(tree: ast.AST) -> Iterator[str]:
    """Attributes that the function which parses the arguments reads from them."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = {
            target.id
            for line in ast.walk(function)
            if isinstance(line, ast.Assign) and ast.unparse(line.value).endswith(".parse_args()")
            for target in line.targets
            if isinstance(target, ast.Name)
        }
        for part in ast.walk(function):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in names:
                yield part.attr


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_options_that_are_read_are_declared(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert set(read_options(tree)) <= options(tree)


def test_an_undeclared_option_is_found() -> None:
    tree = ast.parse("def main():\n    p.add_argument('--looks')\n    given = p.parse_args()\n    print(given.scans)\n")
    assert options(tree) == {"looks"} and set(read_options(tree)) == {"scans"}


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'agent'}{os.pathsep}{ROOT / 'backend'}"}
    return subprocess.run(
        [sys.executable, path, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_prints_its_help(path: Path) -> None:
    """A benchmark fails here if a module that it imports was moved."""
    done = run(path, "--help")
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr[-500:]


@pytest.mark.slow
@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_a_part_of_a_benchmark_ends_without_arguments(path: Path) -> None:
    """``make bench`` starts all files, and stops at the first error."""
    done = run(path)
    assert done.returncode == 0, done.stderr[-500:]
