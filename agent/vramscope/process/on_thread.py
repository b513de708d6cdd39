"""What only one thread can do: done at once where that thread asks, else when it next ends an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from vramscope.guard import guarded
from vramscope.process.optimizer_calls import optimizer_calls


def on_thread(ident: int, errand: Callable[[], None]) -> None:
    """Have something done by a thread. PyTorch keeps some switches a thread, and only that thread can turn them back.

    ident   threading.get_ident() of it; where it makes no step any more, nothing happens
    """
    if ident == get_ident():
        errand()
        return
    do = guarded("putting back what a thread had")(errand)

    def stepped(*_: Any) -> None:
        if get_ident() == ident:
            end()
            do()

    end = optimizer_calls.after(stepped)
