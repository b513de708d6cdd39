"""Identity of a holder: the same variable, attribute or object has the same key in every scan."""

from __future__ import annotations

import enum
from typing import NamedTuple


class HolderKind(enum.Enum):
    """How a holder was identified."""

    LOCAL = "local"
    GLOBAL = "global"
    CLASS = "class"
    CONTEXT_VARIABLE = "context variable"
    ATTRIBUTE = "attribute"
    """Attribute of a class's objects, whatever variable leads to them."""
    NAMED = "named"
    """A module, a class or a library's global, found by asking the garbage collector."""
    FRAME = "frame"
    """Frame that an exception keeps."""
    FUNCTION = "function"
    """Function that refers to tensors through its closure."""
    AUTOGRAD_CONTEXT = "ctx"
    """Attribute of a custom autograd Function's context."""
    OBJECT = "object"
    """Object that no variable leads to."""
    BUILT = "built"
    """Container that a comprehension or a call is still filling."""
    CREATE_GRAPH = "create_graph"
    """Parameters in a cycle through autograd's nodes, made by backward(create_graph=True)."""
    DROPPED_GRAPH = "dropped graph"
    """Graph that an evaluation builds and drops; no variable retains it."""
    STEP_GRAPH = "step graph"
    """Graph that each training step builds and no backward walks."""
    UNKNOWN = "unknown"


class HolderKey(NamedTuple):
    """Identity of a holder from scan to scan."""

    kind: HolderKind
    owner: str = ""
    """Function, module or class that has the name."""
    file: str = ""
    name: str = ""
    path: tuple[str, ...] = ()
    """Labels from the name to the holder: attributes and keys."""


class Mechanism(enum.Enum):
    """Machinery of Python, PyTorch or a library that retains the tensors."""

    NONE = "none"
    ITERATOR = "itertools.cycle"
    TEE = "itertools.tee"
    CALLS = "calls of one function that have not returned: on threads, or of a recursion"
    PARAMETER_GROUPS = "parameters that only an optimizer has"
    EVALUATION_OUTPUTS = "transformers' container of evaluation outputs"
    WEAK_KEYS = "WeakKeyDictionary"
    CACHED_FUNCTION = "functools.lru_cache"
    HOOKS = "hooks of a module or a tensor"
    UNTRAINED_ENTRIES = "entries of a model's container that no optimizer trains any more"
    IDLE_OPTIMIZER = "optimizer that no longer steps, while another one trains its weights"
    CLOSURE = "closure of a function that is made again and again"
