"""Text that Transformers generates. Whether it has ended is read from the device, where nothing is computed.

A text is as long as its limit allows: no token ends it. The limit is a length, and known on the host.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from vramscope.dry_run.changes.after_import import after_import
from vramscope.process.patching import Patches

Ends = Callable[[FrameType | None], bool]
"""Returns whether a text ends before its limit, and counts that as an assumption. Called with the frame that asks."""


class _Newest(threading.local):
    is_at_limit: bool = False
    """Whether the text that is generated has its greatest length."""


_newest = _Newest()


def install(ends_early: Ends) -> None:
    """Answer from now on whether a text has ended."""
    after_import("transformers.generation.stopping_criteria", _watch_lengths)
    after_import("transformers.generation.utils", functools.partial(_answer, ends_early=ends_early))


def _watch_lengths(module: ModuleType) -> None:
    def check(original: Any, criteria: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        limits = [one.max_length for one in criteria if isinstance(getattr(one, "max_length", None), int)]
        _newest.is_at_limit = any(input_ids.shape[-1] >= limit for limit in limits)
        return original(criteria, input_ids, *args, **kwargs)

    Patches().wrap(module.StoppingCriteriaList, "__call__", check)


def _answer(module: ModuleType, *, ends_early: Ends) -> None:
    import torch

    def has_ended() -> bool:
        return _newest.is_at_limit or ends_early(sys._getframe())

    def stop_check(original: Any, check: Any, unfinished: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_tensor(unfinished) and unfinished.is_cuda:
            unfinished = torch.full(unfinished.shape, int(not has_ended()), dtype=unfinished.dtype, device="cpu")
        return original(check, unfinished, *args, **kwargs)

    def is_unfinished(original: Any, model: Any, finished: Any, synced_gpus: bool, *args: Any, **kwargs: Any) -> Any:
        if synced_gpus or (torch.is_tensor(finished) and finished.is_cuda):
            return not finished if isinstance(finished, bool) else not has_ended()
        return original(model, finished, synced_gpus, *args, **kwargs)

    def beams_are_unfinished(*_: Any, **__: Any) -> bool:
        return not has_ended()

    patches, mixin = Patches(), module.GenerationMixin
    if hasattr(module, "StopCheck"):
        patches.wrap(module.StopCheck, "__call__", stop_check)
    if hasattr(mixin, "_has_unfinished_sequences"):
        patches.wrap(mixin, "_has_unfinished_sequences", is_unfinished)
    if hasattr(mixin, "_beam_search_has_unfinished_sequences"):
        mixin._beam_search_has_unfinished_sequences = staticmethod(beams_are_unfinished)
