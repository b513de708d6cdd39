"""Whose code a frame is: compiled, a library's or the user's; and how people call a function of C++."""

from __future__ import annotations

import re
from typing import Final

_FILE: Final = re.compile(r"^(\?\?|unknown|)$|\.(so|[csS]|cpp|cc|cu|h|hpp|cuh)(\.\d+)*$")
_LIBRARY: Final = re.compile(
    r"^<|(^|/)(site|dist)-packages/|(^|/)lib(64)?/python\d|(^|/)agent/vramscope/"
    r"|(^|/)torch/(_\w+|nn|optim|autograd|utils|cuda|amp|distributed|functional|random|fx|jit|csrc)\b"
    r"|(^|/)(c10|aten)/"
)
_RECORDING: Final = re.compile(r"torch::unwind::|CapturedTraceback|gather_with_cpp|CUDACachingAllocator|CUDAAllocator")
_NODE: Final = re.compile(r"(?:^|::)(\w+)::apply$")


def is_native(file: str) -> bool:
    """A file of C or C++, or none that the symbol tells."""
    return _FILE.search(file) is not None


def is_library(file: str) -> bool:
    """Did somebody else write it?"""
    return is_native(file) or _LIBRARY.search(file.replace("\\", "/")) is not None


def is_recording(function: str) -> bool:
    """What writes a stack down is in it, and innermost."""
    return _RECORDING.search(function) is not None


def brief(function: str) -> str:
    """``AddmmBackward0`` of ``torch::autograd::generated::AddmmBackward0::apply(std::vector<..>&&)``: a demangled name
    without what it returns, its templates and its arguments; a node of autograd's graph by its own name."""
    kept: list[str] = []
    depth = 0
    for letter in function.replace("(anonymous namespace)::", ""):
        if letter == "(" and not depth:
            break
        depth += (letter == "<") - (letter == ">")
        if not depth and letter != ">":
            kept.append(letter)
    words = "".join(kept).split()
    name = words[-1] if words else function
    node = _NODE.search(name)
    return node[1] if node and "autograd" in name else name.removeprefix("torch::autograd::")
