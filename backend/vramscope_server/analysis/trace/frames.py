"""Classifies frames as native, library or user code, and shortens names of C++ functions."""

from __future__ import annotations

import re
from typing import Final

_FILE: Final = re.compile(
    r"^(\?\?|unknown|)$|\.(so|o|obj|a|lib|dll|exe|dylib|pyd|[csS]|asm|cpp|cxx|cc|cu|h|hpp|hxx|hh|cuh|inl|ipp|tcc)(\.\d+)*$"
)
"""Sources, headers, objects and libraries of C and C++. Any other file is Python's; a script may have no suffix."""
_LIBRARY: Final = re.compile(
    r"^<|(^|/)(site|dist)-packages/|(^|/)lib(64)?/python\d|(^|/)agent/vramscope/"
    r"|(^|/)torch/(_\w+|nn|optim|autograd|utils|cuda|amp|distributed|functional|random|fx|jit|csrc)\b"
    r"|(^|/)(c10|aten)/"
)
_RECORDING: Final = re.compile(r"torch::unwind::|CapturedTraceback|gather_with_cpp|CUDACachingAllocator|CUDAAllocator")
_NODE: Final = re.compile(r"(?:^|::)(\w+)::apply$")


def is_native(file: str) -> bool:
    """Whether a file is C or C++, or unknown."""
    return _FILE.search(file) is not None


def is_library(file: str) -> bool:
    """Whether a file is not the user's."""
    return is_native(file) or _LIBRARY.search(file.replace("\\", "/")) is not None


def is_recording(function: str) -> bool:
    """Whether a function is part of the stack recording itself, which is innermost in the stack."""
    return _RECORDING.search(function) is not None


def brief(function: str) -> str:
    """Demangled name without return type, templates and arguments. Nodes of autograd's graph get their own name.

    ``torch::autograd::generated::AddmmBackward0::apply(std::vector<..>&&)`` becomes ``AddmmBackward0``.
    """
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
