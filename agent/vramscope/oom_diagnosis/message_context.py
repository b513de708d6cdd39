"""What a text says around an out-of-memory error: the call that failed, a setting in force, and the error that came later."""

from __future__ import annotations

import re
from typing import Final

_FRAME_CHARACTERS: Final = 1500
"""Characters before an error in which the last frame of its traceback is searched."""
_PINS: Final = re.compile(r"pin memory thread|\bpin_memory\b|\bcudaHostAlloc\b|\bCachingHostAllocator\b")
_XLA: Final = re.compile(r"\btorch_xla\b")
_TRACEBACK: Final = "Traceback (most recent call last)"
_PLAIN_ERRORS: Final = (
    "AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "JSONDecodeError", "KeyError",
    "ModuleNotFoundError", "NameError", "NotImplementedError", "OSError", "PermissionError", "StopIteration", "TypeError",
    "UnboundLocalError", "UnicodeDecodeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip
"""Exceptions that a lack of memory does not cause. Others may be how a library or another rank reports it."""
_RAISED: Final = re.compile(
    rf"^(?:[^\s][^\n]{{0,60}}[\]:|] ?|\S[^\n]{{0,60}} )?((?:\w{{1,40}}\.){{0,8}}(?:{'|'.join(_PLAIN_ERRORS)}))(?=: |:?[ \t]*$)",
    re.MULTILINE,
)
_EXPANDABLE: Final = re.compile(
    r"""(?:^(?:[+$>\-*]{0,3} ?)?(?:export |env |ENV |set |declare -x )?|\[["']|["'])PYTORCH_(?:\w{2,8}_)?ALLOC_CONF["'\]]{0,3}"""
    r"""\s{0,3}[:=,]\s{0,3}["']?[\w.:,\[\]\-]{0,80}?expandable_segments:\s?[Tt]rue(?! to avoid)""",
    re.MULTILINE,
)


def specific_kind(kind: str, text: str, start: int) -> str:
    """The kind of an error, more exact where the call that failed shows it.

    start   where the error begins
    """
    before = text[max(0, start - _FRAME_CHARACTERS) : start]
    if kind == "cuda":
        return "pinned" if _PINS.search(before, max(0, before.rfind('File "'))) else kind
    if kind == "jax":
        return "torch_xla" if _XLA.search(before) else kind
    return kind


def sets_expandable_segments(text: str) -> bool:
    """Whether the text shows that expandable segments are on. The hint of PyTorch's own message does not count."""
    return "expandable_segments" in text and _EXPANDABLE.search(text) is not None


def later_exception(text: str, start: int, chained: tuple[str, ...]) -> str:
    """Class of the exception with which the last traceback after a position ends; empty where there is none.

    chained   words that join a traceback to the error before it: then it is the same error
    """
    at = text.rfind(_TRACEBACK, start)
    if at < 0 or any(text.find(words, start, at) >= 0 for words in chained):
        return ""
    raised = _RAISED.search(text, at + len(_TRACEBACK))
    return "" if raised is None else raised.group(1).rpartition(".")[2]
