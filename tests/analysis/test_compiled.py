"""Compilation with and without a cache on disk."""

from __future__ import annotations

import collections
import gc
import importlib.util
import sys
from pathlib import Path

import numba
import pytest

from vramscope_server.analysis import numba_compile


def test_code_is_compiled_per_process_without_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def no_place(*arguments: object, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return real(*arguments, **options)

    monkeypatch.setattr(numba, "njit", no_place)

    @numba_compile.entry
    def twice(number: int) -> int:
        return 2 * number

    assert twice(21) == 42
    assert twice.dispatcher.signatures, "it was compiled"


def test_cached_code_is_recompiled_when_a_callee_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """numba itself checks only the file of the function."""
    source = tmp_path / "kept.py"
    source.write_text("def twice(number):\n    return 2 * number\n")

    def loaded() -> bool:
        spec = importlib.util.spec_from_file_location("kept", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        gc.collect()  # numba looks for what it kept of a function by its module's name, unless an earlier one lives still
        monkeypatch.setitem(sys.modules, "kept", module)
        spec.loader.exec_module(module)
        twice = numba_compile.entry(module.twice)
        assert twice(21) == 42
        return bool(twice.dispatcher.stats.cache_hits)

    monkeypatch.setattr(numba_compile, "_sources", lambda: "as it was")
    assert [loaded(), loaded()] == [False, True]
    monkeypatch.setattr(numba_compile, "_sources", lambda: "changed")
    assert [loaded(), loaded()] == [False, True]


def test_a_cache_that_names_a_missing_class_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """numba's index pickles the classes of arguments. A later version may have renamed them."""
    source = tmp_path / "pairs.py"
    source.write_text("def first(pair):\n    return pair.a\n")
    monkeypatch.setattr(numba_compile, "_sources", lambda: "the same")

    def run(class_name: str) -> int:
        spec = importlib.util.spec_from_file_location("pairs", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        gc.collect()
        monkeypatch.setitem(sys.modules, "pairs", module)
        spec.loader.exec_module(module)
        kind = collections.namedtuple(class_name, "a")
        kind.__module__ = "pairs"
        setattr(module, class_name, kind)
        return int(numba_compile.entry(module.first)(kind(7)))

    assert run("Pair") == 7
    assert run("RenamedPair") == 7
