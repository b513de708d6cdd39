"""Detection of a program's exit code: recorded if it ends the program, forgotten if the exception is caught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WATCHED = """
import atexit, sys, threading
from vramscope.process.exit_code import ExitWatch
watch = ExitWatch()
watch.begin()
atexit.register(lambda: print(watch.failure))
"""
CAUGHT = "try: {}\nexcept SystemExit: pass\n"


def output_of(program: str, tmp_path: Path, *, as_module: bool = False) -> tuple[int, str]:
    (tmp_path / "program.py").write_text(WATCHED + program)
    how = ["-m", "program"] if as_module else ["program.py"]
    done = subprocess.run([sys.executable, *how], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("as_module", [False, True])
def test_an_exit_code_is_recorded(tmp_path, as_module) -> None:
    in_a_function = "def main():\n    try: sys.exit(7)\n    finally: print(end='')\nmain()"
    assert output_of(in_a_function, tmp_path, as_module=as_module) == (7, "('SystemExit', 'exit code 7')")


@pytest.mark.parametrize("program", ["sys.exit(0)", "sys.exit()", "quit()", CAUGHT.format("sys.exit(7)")])
def test_a_successful_exit_is_no_failure(tmp_path, program) -> None:
    assert output_of(program, tmp_path) == (0, "None")


def test_exit_texts_are_recorded_as_python_prints_them(tmp_path) -> None:
    assert output_of("sys.exit('no data here')", tmp_path) == (1, "('SystemExit', 'no data here')")
    assert output_of("exit(3)", tmp_path) == (3, "('SystemExit', 'exit code 3')")


def test_the_exit_of_a_thread_is_not_that_of_the_program(tmp_path) -> None:
    program = "thread = threading.Thread(target=sys.exit, args=(7,)); thread.start(); thread.join()"
    assert output_of(program, tmp_path) == (0, "None")


def test_an_exit_that_is_caught_and_raised_on_still_ends_the_program(tmp_path) -> None:
    program = "try: sys.exit(7)\nexcept SystemExit as leaving: raise"
    assert output_of(program, tmp_path) == (7, "('SystemExit', 'exit code 7')")


def test_release_restores_everything(tmp_path) -> None:
    program = "watch.release(); print(type(sys.exit).__name__, sys.exit.__name__); sys.exit(7)"
    assert output_of(program, tmp_path) == (7, "builtin_function_or_method exit\nNone")
