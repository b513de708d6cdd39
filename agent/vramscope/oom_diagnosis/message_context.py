"""What a text says around an out-of-memory error: the call that failed, a setting in force, and the error that came later."""

from __future__ import annotations

import builtins
import re
from typing import Final

_FRAME_CHARACTERS: Final = 1500
"""Characters before an error in which the last frame of its traceback is searched."""
_LINE_CHARACTERS: Final = 300
"""Characters of a line that are searched."""
_ASSERT_CHARACTERS: Final = 8192
"""Characters before an error of a library in which a failed assertion is its reason."""
_DEVICE_ASSERT: Final = re.compile(
    r"block: \[\d{1,9},\d{1,9},\d{1,9}\], thread: \[\d{1,5},\d{1,5},\d{1,5}\] Assertion|device-side assert triggered"
)
_PINS: Final = re.compile(r"pin memory thread|\bpin_memory\b|\bcudaHostAlloc\b|\bCachingHostAllocator\b")
_XLA: Final = re.compile(r"\btorch_xla\b")
_TRACEBACK: Final = "Traceback (most recent call last)"
_PLAIN_ERRORS: Final = (
    "JSONDecodeError", "OSError",
    *sorted(
        name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type)
        and issubclass(
            kind,
            ArithmeticError | AssertionError | AttributeError | ImportError | LookupError | NameError | NotImplementedError
            | RecursionError | StopIteration | SyntaxError | TypeError | ValueError | FileExistsError | FileNotFoundError
            | IsADirectoryError | NotADirectoryError | PermissionError,
        )
    ),
)  # fmt: skip
"""Exceptions that a lack of memory does not cause. Others may be how a library or another rank reports it."""
_RAISED: Final = re.compile(
    rf"^(?:[^\s][^\n]{{0,60}}[\]:|] ?|\S[^\n]{{0,60}} )?((?:\w{{1,40}}\.){{0,8}}(?:{'|'.join(_PLAIN_ERRORS)}))(?=: |:?[ \t]*$)",
    re.MULTILINE,
)
_SETTING: Final = re.compile(
    r"""PYTORCH_(?:\w{2,8}_)?ALLOC_CONF["'\]]{0,2}\s{0,3}[=,]\s{0,3}["']?(?P<value>[\w.:,\[\]\-]{1,200})"""
    r"""(?![\w.:,\[\]\-]|["']?\s{1,3}to\s{1,3}avoid)"""
)
_VARIABLES: Final = r"""(?:\w{1,60}=\S{0,100} {1,3}){0,8}["']?"""
_SETS: Final = re.compile(
    rf"(?:^|&&|;|\$ |\+ |\bRUN )[ \t]{{0,20}}(?:export|env|ENV|set|setenv|declare(?: -x)?) {{1,3}}{_VARIABLES}$"
    rf"|(?:^\+{{1,4}}|\$) {{1,2}}{_VARIABLES}$|\benviron(?:\[|\.setdefault\()[\"']$"
    r"|\b(?:docker|podman) run [^\n]{1,200} (?:-e|--env)[ =][\"']?$"
)
"""What stands before a setting that is made. Lists of advice, and the hint of PyTorch's own message, only name it."""
_BEGINS: Final = re.compile(_VARIABLES)
_COMMAND: Final = re.compile(
    rf"""["']? {{1,3}}{_VARIABLES}(?:\S{{0,200}}/)?"""
    r"(?:python[\d.]{0,6}|torchrun|accelerate|deepspeed|srun|mpirun|vllm|uv|poetry|nohup|bash|sh|time|vramscope) "
)
_SWITCH: Final = re.compile(r"expandable_segments:([Tt]rue|[Ff]alse)")


def specific_kind(kind: str, text: str, start: int) -> str:
    """The kind of an error, more exact where the call that failed shows it.

    start   where the error begins
    """
    before = text[max(0, start - _FRAME_CHARACTERS) : start]
    if kind == "cuda":
        frame = before.rfind('File "')
        if frame < 0:  # other lines of a log may name such a setting
            frame = before.rfind("\n") + 1
        end = text.find("\n", start, start + _LINE_CHARACTERS)
        near = before[frame:] + text[start : start + _LINE_CHARACTERS if end < 0 else end]
        return "pinned" if _PINS.search(near) else kind
    if kind == "jax":
        return "torch_xla" if _XLA.search(before) else kind
    return kind


def follows_device_assert(text: str, start: int) -> bool:
    """Whether a kernel's assertion failed shortly before: then every later call of CUDA fails, for no lack of memory."""
    return _DEVICE_ASSERT.search(text, max(0, start - _ASSERT_CHARACTERS), start) is not None


def sets_expandable_segments(text: str) -> bool | None:
    """Whether expandable segments are on by the last setting that the text makes; None where it makes none."""
    last = None
    for setting in _SETTING.finditer(text):
        start = setting.start()
        line = text.rfind("\n", max(0, start - _LINE_CHARACTERS), start) + 1 or max(0, start - _LINE_CHARACTERS)
        before = text[line:start]
        if _SETS.search(before) or (_BEGINS.fullmatch(before) and _COMMAND.match(text, setting.end())):
            switches = _SWITCH.findall(setting["value"])
            last = bool(switches) and switches[-1].lower() == "true"
    return last


def later_exception(text: str, start: int, chained: tuple[str, ...]) -> str:
    """Class of the exception with which the last traceback after a position ends; empty where there is none.

    chained   words that join a traceback to the error before it: then it is the same error
    """
    at = text.rfind(_TRACEBACK, start)
    if at < 0 or any(text.find(words, start, at) >= 0 for words in chained):
        return ""
    raised = _RAISED.search(text, at + len(_TRACEBACK))
    return "" if raised is None else raised.group(1).rpartition(".")[2]
