"""Errors that the training has caught where no call of ours stood around what raised them: in an optimizer's step, between steps.

PyTorch tells of a step that begins and of one that ends well; of one that raises it tells nobody. So the error is looked for
where its ``except`` block calls something that is heard: the next forward, the next step of an optimizer, ``empty_cache()``. Once
the block is left, Python has forgotten it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded

if TYPE_CHECKING:
    from vramscope.fronts import Fronts


class CaughtErrors:
    """Of one session. ``tell(error, in_except=True)`` is called once for each that is being handled; none is kept.

    A hook asks ``if sys.exc_info()[1] is not None or caught.known: caught.look()``: 0.1 µs, and in nearly all steps no call of
    Python's own.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self.known = id(sys.exc_info()[1]) if sys.exc_info()[1] is not None else 0
        """the id of the error that was told of, as long as it is being handled; 0: none is. What was raised before attach is none
        of ours"""

    def install(self, fronts: Fronts) -> None:
        import torch

        if not hasattr(torch._C, "_cuda_emptyCache"):
            return
        look = guarded("an error that was caught")(self.look)

        def empty_cache(original: Callable[..., Any], *args: Any) -> Any:
            if sys.exc_info()[1] is not None or self.known:
                look()
            return original(*args)

        # (torch.cuda.empty_cache() calls it by this name, under whatever name the user has imported that one.)
        fronts.put(torch._C, "_cuda_emptyCache", empty_cache)

    def look(self) -> None:
        """Is an error being handled that was not told of?"""
        error = sys.exc_info()[1]
        if error is None:
            self.known = 0
        elif id(error) != self.known:
            self.known = id(error)
            self._tell(error, in_except=True)
