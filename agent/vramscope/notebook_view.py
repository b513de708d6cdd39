"""``%vram live``: memory of a device in the output of a cell, renewed each second by a thread until ``%vram stop``."""

from __future__ import annotations

import html
import secrets
import threading
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.protocol.number_format import amount

PERIOD_S: Final = 1.0
ENDED: Final = "stopped"


class LiveView:
    """One output. Only the newest of a shell is renewed."""

    def __init__(self, shell: Any, device: int | None) -> None:
        self._device = current_device() if device is None else device
        self._publish = shell.display_pub.publish
        self._place = {"display_id": f"vramscope-{secrets.token_hex(8)}"}
        self._stop = threading.Event()
        self._publish(self._shown(), transient=self._place)
        self._renew = guarded("the live view")(self._renew_once)
        self._thread = threading.Thread(target=self._run, name="vramscope-notebook", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the last values, and end the thread."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(2 * PERIOD_S)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._renew("")
        self._renew(ENDED)

    def _renew_once(self, state: str) -> None:
        self._publish(self._shown(state), transient=self._place, update=True)

    def _shown(self, state: str = "") -> dict[str, str]:
        """The output as text and as HTML."""
        text = memory_text(self._device) + (f" ({state})" if state else "")
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}


def current_device() -> int | None:
    """Device of the calling thread; None before CUDA is initialized."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def memory_text(device: int | None) -> str:
    """Memory of a CUDA device in one line; None: the current one. Initializes nothing."""
    import torch

    if not torch.cuda.is_initialized():
        return "CUDA is not initialized"
    index = torch.cuda.current_device() if device is None else device
    total = torch.cuda.get_device_properties(index).total_memory
    parts = (
        f"allocated {amount(torch.cuda.memory_allocated(index))}",
        f"peak {amount(torch.cuda.max_memory_allocated(index))}",
        f"reserved {amount(torch.cuda.memory_reserved(index))} of {amount(total)}",
    )
    return f"GPU {index}: {', '.join(parts)}"
