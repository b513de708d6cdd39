"""An event loop for a test that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_apart(function: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine on a thread of its own: after tests of pages, Playwright's event loop runs on the main thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(function())).result()
