"""Machine code is compiled once, before it is needed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
from numba import njit
from numba.core import event

from vramscope_server import analysis, numba_warmup
from vramscope_server.analysis import numba_compile


@pytest.mark.timeout(900)  # a cold machine compiles for a minute, and others share it
def test_warmup_compiles_all_entry_functions() -> None:
    """Each cached function has been called, so that no page waits for a compilation."""
    numba_warmup.compile_all()
    entries: dict[str, numba_compile.Compiled] = {}
    for module in pkgutil.walk_packages(analysis.__path__, f"{analysis.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, numba_compile.Compiled) and value.__module__ == module.name and value.for_python:
                entries[f"{module.name}.{name}"] = value
    assert len(entries) > 10
    entries.pop(f"{numba_compile.__name__}.probe")
    assert [name for name, entry in entries.items() if not entry.dispatcher.signatures] == []


class Watching(event.Listener):  # type: ignore[misc]
    def __init__(self, scan: Callable[[], None]) -> None:
        self.scan = scan

    def on_start(self, event: event.Event) -> None:
        self.scan()

    def on_end(self, event: event.Event) -> None:
        pass


def test_running_compilation_is_reported() -> None:
    seen: list[bool] = []
    assert not numba_compile.probe.dispatcher.signatures, "numba is there, and its compilations are counted"
    assert not numba_compile.compiling()
    with event.install_listener("numba:compile", Watching(lambda: seen.append(numba_compile.compiling()))):
        assert njit(lambda value: 2 * value)(4) == 8
    assert seen == [True]
    assert not numba_compile.compiling()


def test_warmup_runs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba_warmup, "_done", lambda: None)
    assert numba_warmup.start() is None, "there is no place to keep it"
    monkeypatch.setattr(numba_warmup, "_done", lambda: tmp_path / f"warmed-{numba_compile.version()}")
    result = numba_warmup.start()
    assert result is not None
    result.kill()
    result.wait()
    (tmp_path / f"warmed-{numba_compile.version()}").touch()
    assert numba_warmup.start() is None
