"""Detects cells that fail in a notebook (IPython, Jupyter, Colab). The run continues; its page shows the failure.

IPython is never imported here: where it runs the training, it is imported already.

"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vramscope.guard import first_line, guarded


def watch_cells(report: Callable[[str, str, int | None], None]) -> Callable[[], None]:
    """Call ``report(error type, first line, cell number)`` after each cell that fails. Returns a function that ends this.

    Outside of IPython nothing happens.

    """
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    if shell is None:
        return lambda: None

    @guarded("the cell hook")
    def after_cell(result: Any = None) -> None:
        fault = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
        if fault is not None:  # text only: its frames retain the user's tensors
            report(type(fault).__name__, first_line(fault), getattr(result, "execution_count", None))

    shell.events.register("post_run_cell", after_cell)

    def remove() -> None:
        if after_cell in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", after_cell)

    return remove
