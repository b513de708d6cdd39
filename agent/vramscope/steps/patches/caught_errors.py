"""Errors that the training has caught where no call of ours stood around what raised them: in an optimizer's step, between steps.

PyTorch reports a step that begins and one that ends well, and none that raises. So the error is searched for
where its ``except`` block calls something that is watched: the next forward, the next step of an optimizer, ``empty_cache()``. Once
the block is left, Python has forgotten it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory.peak_counters import EMPTIERS

if TYPE_CHECKING:
    from vramscope.process.patching import Patches


OF_MEMORY: Final = (RuntimeError, MemoryError)
"""Types of errors about memory: PyTorch's own, its libraries', the host's."""
TOLD: Final = "_vramscope_told"
"""Attribute that marks an error as reported. Errors cannot be referred to weakly, and a later one may have the same id."""


class CaughtErrors:
    """Reports errors that the program catches, for one session. Calls ``tell(error, in_except=True)`` once for each and keeps none.

    A hook asks ``if sys.exc_info()[1] is not None: caught.look()``: 0.1 µs, and in nearly all steps no call of Python's own.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        earlier = sys.exc_info()[1]
        if earlier is not None:
            _is_new(earlier)  # what was raised before attach is none of ours

    def install(self, patches: Patches) -> None:
        import torch

        scan = guarded("an error that was caught")(self.scan)

        def empty_cache(original: Callable[..., Any], *args: Any) -> Any:
            if sys.exc_info()[1] is not None:
                scan()
            return original(*args)

        # empty_cache() of torch.cuda and of torch.accelerator call these, under whatever name the user has imported it.
        for name in EMPTIERS:
            if hasattr(torch._C, name):
                patches.wrap(torch._C, name, empty_cache)

    def scan(self) -> None:
        """Report the error that is being handled, unless it was reported before."""
        error = sys.exc_info()[1]
        if error is not None and _is_new(error):
            self._tell(error, in_except=True)


def _is_new(error: BaseException) -> bool:
    """Whether it is seen for the first time. Nothing of a class of the user's own runs."""
    marks = object.__getattribute__(error, "__dict__")
    if TOLD in marks:
        return False
    marks[TOLD] = True
    return True
