"""Runs a function on a given thread: at once if it is the current one, else at that thread's next optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from vramscope.guard import guarded
from vramscope.process.optimizer_calls import optimizer_calls


def on_thread(ident: int, function: Callable[[], None]) -> None:
    """Run ``function`` on a thread. Some switches of PyTorch are per thread, and only that thread can turn them off.

    ident   threading.get_ident() of the thread; if it makes no step any more, nothing happens

    """
    if ident == get_ident():
        function()
        return
    do = guarded("restoring the state of a thread")(function)

    def stepped(*_: Any) -> None:
        if get_ident() == ident:
            end()
            do()

    end = optimizer_calls.after(stepped)
