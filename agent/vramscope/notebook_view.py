"""``%vram live``: memory of a device in the output of a cell, renewed each second by a thread until ``%vram stop``."""

from __future__ import annotations

import html
import secrets
import threading
import time
from collections import deque
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.notebook_chart import WINDOW_S, DeviceMemory, chart_legend, memory_chart

PERIOD_S: Final = 1.0
ENDED: Final = "stopped"
NOT_INITIALIZED: Final = "CUDA is not initialized"


class LiveView:
    """One output. Only the newest of a shell is renewed."""

    def __init__(self, shell: Any, device: int | None) -> None:
        self._device = current_device() if device is None else device
        self._readings: deque[DeviceMemory] = deque(maxlen=int(WINDOW_S / PERIOD_S) + 1)
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
        reading = read_memory(self._device)
        if reading is not None:
            self._readings.append(reading)
        text = (reading.words if reading else NOT_INITIALIZED) + (f" ({state})" if state else "")
        picture = f"<div>{memory_chart(self._readings)}</div>{chart_legend()}" if self._readings else ""
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>{picture}"}


def current_device() -> int | None:
    """Device of the calling thread; None before CUDA is initialized."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def read_memory(device: int | None) -> DeviceMemory | None:
    """Memory of a CUDA device, of the current one for None. Returns None before CUDA is initialized, and initializes nothing."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device is None else device
    return DeviceMemory(
        time_s=time.monotonic(),
        index=index,
        allocated=torch.cuda.memory_allocated(index),
        peak=torch.cuda.max_memory_allocated(index),
        reserved=torch.cuda.memory_reserved(index),
        total=torch.cuda.get_device_properties(index).total_memory,
    )


def memory_text(device: int | None) -> str:
    """Memory of a CUDA device in one line; None: the current one. Initializes nothing."""
    reading = read_memory(device)
    return reading.words if reading else NOT_INITIALIZED
