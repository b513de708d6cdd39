"""Observer of PyTorch's allocator, which reports each out-of-memory error on the requesting thread before it raises it.

PyTorch cannot remove an observer. So there is one a process, which calls the current listener.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from vramscope.guard import guarded


class Listener(Protocol):
    """Receiver of the reports."""

    def ran_out(self, device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None: ...


_listener: weakref.ref[Listener] | None = None
_attached_pid = 0


def listen(listener: Listener) -> bool:
    """Report to this listener from now on. False: this allocator (cudaMallocAsync, a pluggable one) does not report.

    CUDA is not initialized.
    """
    global _listener, _attached_pid
    _listener = weakref.ref(listener)
    if _attached_pid == os.getpid():
        return True
    import torch

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or (torch.version.cuda is None and torch.version.hip is None):
        return False
    try:
        attach(_ran_out)
    except RuntimeError:
        return False
    _attached_pid = os.getpid()
    return True


def stop() -> None:
    """Report to nobody."""
    global _listener
    _listener = None


@guarded("the out-of-memory record")
def _ran_out(device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
    # The guard matters here more than anywhere: what an observer raises would replace the error itself.
    listener = None if _listener is None else _listener()
    if listener is not None and os.getpid() == _attached_pid:
        listener.ran_out(device, asked_bytes, allowed_bytes, free_bytes)
