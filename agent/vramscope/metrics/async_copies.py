"""Reads single numbers from a GPU without waiting for it.

Reading the value of a tensor on a GPU blocks the training until all earlier work is done. Here the few bytes are copied
asynchronously, on the training's stream, to page-locked host memory. That memory was filled with a pattern that no result has. The
number has arrived when the pattern is gone. A CUDA event is not used: querying one is a CUDA call, which breaks the capture of a
CUDA graph on any thread.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from vramscope.process import own_tensors

if TYPE_CHECKING:
    import torch

SLOTS: Final = 256
"""Maximum number of copies that have not arrived. If the training is further ahead of its GPU, some numbers are left out."""
SLOT_BYTES: Final = 8


class Slot:
    """Host memory for one number that is being copied."""

    __slots__ = ("at", "form", "nothing")

    def __init__(self, at: int, nothing: bytes, form: str) -> None:
        self.at = at
        self.nothing = nothing
        """Pattern in the memory until the number has arrived."""
        self.form = form
        """Format for the module struct; empty for bfloat16, which struct does not support."""


class Copies:
    """Copies numbers to host memory: 2 KiB, allocated with the first number.

    ``begin`` is called on the training thread; ``read`` on any thread.
    """

    def __init__(self) -> None:
        self._free = list(reversed(range(SLOTS)))
        self._memory: torch.Tensor | None = None
        self._bytes: Any = None
        self._views: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._forms: dict[torch.dtype, tuple[bytes, str]] = {}

    def begin(self, tensor: torch.Tensor) -> Slot | None:
        """Begin to copy one number. Return None if its dtype is not supported, or if all slots are in use.

        Takes about 10 µs, mostly to launch the copy.
        """
        if self._memory is None:
            self._make()
        form = self._forms.get(tensor.dtype)
        if form is None or not self._free:
            return None
        at = (
            self._free.pop()
        )  # the last released slot: each further slot adds a view, which is visible if the user counts tensors
        place, nothing = at * SLOT_BYTES, form[0]
        self._bytes[place : place + len(nothing)] = nothing
        view = self._views.get((at, tensor.dtype))
        if view is None:
            assert self._memory is not None
            view = self._memory[place : place + len(nothing)].view(tensor.dtype).view(())
            self._views[at, tensor.dtype] = view
        # The view has the same dtype, so nothing is allocated on the GPU. detach() keeps the graph from being retained.
        view.copy_(tensor.detach().view(()), non_blocking=True)
        return Slot(at, *form)

    def read(self, slot: Slot) -> float | None:
        """Return the number; None if it has not arrived yet."""
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
        """Make a slot free again. Its number must have arrived."""
        self._free.append(slot.at)

    def _make(self) -> None:
        import torch

        self._memory = torch.empty(SLOTS * SLOT_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        own_tensors.mark(self._memory)
        whole = (ctypes.c_char * (SLOTS * SLOT_BYTES)).from_address(self._memory.data_ptr())
        self._bytes = memoryview(whole).cast("B")
        # Signalling NaNs, little-endian, which no arithmetic produces. All bits set would not do: a GPU produces that NaN for
        # the ``-loss`` of a training that diverged.
        self._forms = {
            torch.float32: (b"\xa5\xa5\xa5\x7f", "<f"),
            torch.float64: (b"\xa5\xa5\xa5\xa5\xa5\xa5\xf5\x7f", "<d"),
            torch.float16: (b"\xa5\x7d", "<e"),
            torch.bfloat16: (b"\xa5\x7f", ""),
        }
