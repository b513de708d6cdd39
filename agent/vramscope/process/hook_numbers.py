"""Numbers for the hooks that the agent registers, apart from the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_next_number = -(1 << 60)


@contextlib.contextmanager
def own_hook_numbers() -> Iterator[None]:
    """Give hooks that are registered in the block negative numbers.

    PyTorch numbers all hooks of a process consecutively, and a number is the key of a hook in its dictionary. Without this,
    the user's hooks would have other numbers, which is visible in what they pickle.

    """
    global _next_number
    from torch.utils.hooks import RemovableHandle

    users = RemovableHandle.next_id
    RemovableHandle.next_id = _next_number
    try:
        yield
    finally:
        _next_number = RemovableHandle.next_id
        RemovableHandle.next_id = users
