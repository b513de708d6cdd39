"""What only one thread can do: done at once where that thread asks, else when it next ends an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from vramscope.guard import guarded


def on_thread(ident: int, errand: Callable[[], None]) -> None:
    """Have something done by a thread. PyTorch keeps some switches a thread, and only that thread can turn them back.

    ident   threading.get_ident() of it; where it makes no step any more, nothing happens
    """
    if ident == get_ident():
        errand()
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    do = guarded("putting back what a thread had")(errand)

    def stepped(*_: Any) -> None:
        if get_ident() == ident:
            waiting.remove()
            do()

    waiting = register_optimizer_step_post_hook(stepped)
