"""The metadata that PyTorch attaches to a thread's allocator events: the agent's tag while a window is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from vramscope.process.on_thread import on_thread
from vramscope.process.torch_compile import is_compiled
from vramscope.recording.module_tags import ModuleTags

TAG: Final = "vs"
"""Prefix of the agent's metadata; short, so that PyTorch stores it without an allocation."""


class EventMetadata:
    """Sets and restores the metadata. Without effect before torch 2.13."""

    def __init__(self) -> None:
        import torch

        self._is_supported = hasattr(torch._C, "_cuda_setMemoryMetadata")
        self.set: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", lambda text: None)
        """Set the metadata of this thread's events."""
        self._get: Callable[[], str] = getattr(torch._C, "_cuda_getMemoryMetadata", lambda: "")

    def users_text(self) -> str:
        """Return the user's metadata of this thread; "" for the tag of an earlier window that is not restored yet."""
        text = self._get()
        return "" if text.startswith(TAG) else text

    def restore(self, thread: int, text: str) -> None:
        """Restore the user's metadata of a thread, which may be another one: an error may be on autograd's."""
        on_thread(thread, partial(self._restore, text))

    def _restore(self, text: str) -> None:
        if self._get().startswith(TAG):
            self.set(text)

    def begin_module_tags(self) -> ModuleTags | None:
        """Tag events with the running module from now on; None if this is not possible."""
        if not self._is_supported or is_compiled():
            return None
        tags = ModuleTags(self.set)
        tags.begin()
        return tags
