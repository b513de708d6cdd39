"""Reads single numbers off a GPU without ever waiting for it.

Asking a tensor on a GPU for its value stops the training until all work before it is done. Here its few bytes are copied behind
that work, in the order of the stream that the training uses, into page-locked host memory that was filled with a pattern which
no result has; when the pattern is gone, the number is there. An event would say the same, but to ask one is a CUDA call, which
from any thread at all spoils the recording of a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from vramscope.process import own_tensors

if TYPE_CHECKING:
    import torch

SLOTS: Final = 256
"""Maximum number of copies under way. A training that is further ahead of its GPU leaves some out."""
SLOT_BYTES: Final = 8


class Slot:
    """One number on its way."""

    __slots__ = ("at", "form", "nothing")

    def __init__(self, at: int, nothing: bytes, form: str) -> None:
        self.at = at
        self.nothing = nothing
        """Placeholder until the number has arrived, of the same width."""
        self.form = form
        """Format for struct; empty for bfloat16, which struct does not know."""


class Copies:
    """``begin`` on the training thread; ``read`` anywhere. The host memory, 2 KiB, is taken with the first number."""

    def __init__(self) -> None:
        self._free = list(reversed(range(SLOTS)))
        self._memory: torch.Tensor | None = None
        self._bytes: Any = None
        self._views: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._forms: dict[torch.dtype, tuple[bytes, str]] = {}

    def begin(self, tensor: torch.Tensor) -> Slot | None:
        """Have one number copied. None: its dtype is none that is known, or all slots are under way.

        Cost: about 10 µs, of which the copy's launch is the most.
        """
        if self._memory is None:
            self._make()
        form = self._forms.get(tensor.dtype)
        if form is None or not self._free:
            return None
        at = (
            self._free.pop()
        )  # the last released: a view a slot, and who counts the process's tensors would see them grow
        place, nothing = at * SLOT_BYTES, form[0]
        self._bytes[place : place + len(nothing)] = nothing
        view = self._views.get((at, tensor.dtype))
        if view is None:
            assert self._memory is not None
            view = self._memory[place : place + len(nothing)].view(tensor.dtype).view(())
            self._views[at, tensor.dtype] = view
        # Of the same dtype, so that nothing is allocated on the GPU; detached, so that the graph is not kept.
        view.copy_(tensor.detach().view(()), non_blocking=True)
        return Slot(at, *form)

    def read(self, slot: Slot) -> float | None:
        """The number; None: it is not there yet."""
        place = slot.at * SLOT_BYTES
        found = bytes(self._bytes[place : place + len(slot.nothing)])
        if found == slot.nothing:
            return None
        value: float
        if slot.form:
            (value,) = struct.unpack(slot.form, found)
        else:
            (value,) = struct.unpack("<f", b"\x00\x00" + found)
        return value

    def release(self, slot: Slot) -> None:
        """The slot may be used again: its number is there."""
        self._free.append(slot.at)

    def _make(self) -> None:
        import torch

        self._memory = torch.empty(SLOTS * SLOT_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        own_tensors.mark(self._memory)
        whole = (ctypes.c_char * (SLOTS * SLOT_BYTES)).from_address(self._memory.data_ptr())
        self._bytes = memoryview(whole).cast("B")
        # Signalling NaNs, little-endian: no arithmetic gives one. (All bits set would not do: that is a GPU's own NaN with its
        # sign turned, the ``-loss`` of a training that diverged.)
        self._forms = {
            torch.float32: (b"\xa5\xa5\xa5\x7f", "<f"),
            torch.float64: (b"\xa5\xa5\xa5\xa5\xa5\xa5\xf5\x7f", "<d"),
            torch.float16: (b"\xa5\x7d", "<e"),
            torch.bfloat16: (b"\xa5\x7f", ""),
        }
