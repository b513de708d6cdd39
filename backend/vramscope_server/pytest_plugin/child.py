"""The child process of a marked test: it runs on the emulated GPU and is measured."""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec
import pytest

from vramscope.measured_test import measured
from vramscope_server.pytest_plugin.names import mark_of


def measure_into(file: str, item: pytest.Function) -> None:
    """Run the test and write its measurement. Exceptions of the test pass."""
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    mark = mark_of(item)
    find_leaks = mark is not None and mark.kwargs.get("leaks") is not None
    if find_leaks:
        gc.unfreeze()  # the process was forked with frozen modules; a scan for leaks must see what they refer to
    memory = measured(lambda: item.obj(**arguments), find_leaks=find_leaks)
    Path(file).write_bytes(msgspec.json.encode(memory))
