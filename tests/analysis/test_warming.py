"""Machine code is made before somebody waits for it, once."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
from numba import njit
from numba.core import event

from vramscope_server import analysis, warming
from vramscope_server.analysis import compiled


@pytest.mark.timeout(900)  # a cold machine compiles for a minute, and others share it
def test_all_that_python_calls_is_compiled_by_it() -> None:
    """Each function that is compiled and kept has been called: none is left for the first who opens a page."""
    warming.compile_all()
    entries: dict[str, compiled.Compiled] = {}
    for module in pkgutil.walk_packages(analysis.__path__, f"{analysis.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, compiled.Compiled) and value.__module__ == module.name and value.for_python:
                entries[f"{module.name}.{name}"] = value
    assert len(entries) > 10
    entries.pop(f"{compiled.__name__}.probe")
    assert [name for name, entry in entries.items() if not entry.dispatcher.signatures] == []


class Watching(event.Listener):  # type: ignore[misc]
    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def on_start(self, event: event.Event) -> None:
        self.look()

    def on_end(self, event: event.Event) -> None:
        pass


def test_who_waits_for_machine_code_can_be_told() -> None:
    told: list[bool] = []
    assert not compiled.probe.dispatcher.signatures, "numba is there, and its compilations are counted"
    assert not compiled.compiling()
    with event.install_listener("numba:compile", Watching(lambda: told.append(compiled.compiling()))):
        assert njit(lambda value: 2 * value)(4) == 8
    assert told == [True]
    assert not compiled.compiling()


def test_it_is_done_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warming, "_done", lambda: None)
    assert warming.start() is None, "there is no place to keep it"
    monkeypatch.setattr(warming, "_done", lambda: tmp_path / f"warmed-{compiled.version()}")
    begun = warming.start()
    assert begun is not None
    begun.kill()
    begun.wait()
    (tmp_path / f"warmed-{compiled.version()}").touch()
    assert warming.start() is None
