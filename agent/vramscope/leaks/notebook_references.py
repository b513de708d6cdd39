"""GPU memory that a notebook itself retains: results in ``Out``, ``_`` and ``_5``, and variables of the functions that failed last.

IPython is never imported here. A tensor counts only if nothing else refers to it; with it counts what only its graph keeps.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.autograd.graph_walk import NodeBudget, walk
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.tensors import with_gradients
from vramscope.process import type_info
from vramscope.process.frames import is_own, locals_of, running_frames
from vramscope.process.live_objects import of_types, with_subclasses

if TYPE_CHECKING:
    import torch

RELEASE_RESULTS: Final = (
    "get_ipython().displayhook.flush(); get_ipython().push(dict(_=None, __=None, ___=None), interactive=False)"
)
"""``%reset out`` alone leaves the newest result: IPython has ``_`` in a second namespace, too."""
RELEASE_ERROR: Final = "import sys, traceback; traceback.clear_frames(sys.last_traceback)"
"""IPython has more references to the traceback than those in ``sys``, so that its frames must be cleared."""
MOST_RESULTS: Final = 1_000
DEEPEST: Final = 2
"""Levels of lists, tuples and dicts that are searched."""
_PIECE_OBJECTS: Final = 10_000
_RESULT_NAME: Final = re.compile(r"_{1,3}|_oh|_\d+|Out\Z")


@dataclass(frozen=True, slots=True)
class NotebookReference:
    """GPU memory that one name of the notebook retains."""

    name: str
    size_bytes: int
    release: str
    """Code of a cell that releases it."""


@dataclass(eq=False, slots=True)
class _Candidate:
    name: str
    release: str
    tensor: torch.Tensor
    chain: tuple[Any, ...]
    """Containers from the name to the tensor."""


def current_shell() -> Any:
    """Return the shell of IPython in which this process runs cells; None if there is none."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell() if get_shell is not None else None


def results_and_variables(shell: Any) -> tuple[tuple[str, int], ...]:
    """Return name and identity of each tensor that the notebook refers to, and of variables that refer to it as well.

    As long as they are the same, so is the answer.
    """
    import torch

    with torch._C.DisableTorchFunction():
        found = [(one.name, id(one.tensor)) for one in (*_results(shell), *_variables(_failed_frames()))]
    idents = {ident for _, ident in found}
    variables = [(name, id(value)) for name, value in list(shell.user_ns.items()) if id(value) in idents]
    return (*found, *variables)


def retained_by_notebook(shell: Any, least_bytes: int) -> list[NotebookReference]:
    """Return what only the notebook retains, the largest first.

    least_bytes  Smaller memory is not listed. If all of it together is smaller, the search ends before it takes time: otherwise it
                 asks all objects of the process for references.
    """
    import torch

    with torch._C.DisableTorchFunction():  # no code of the user's tensor classes
        return _retained(shell, least_bytes)


def _retained(shell: Any, least_bytes: int) -> list[NotebookReference]:
    frames = _failed_frames()
    found = [*_results(shell), *_variables(frames)]
    budget = NodeBudget()
    sizes = {id(one): _storages_of(one.tensor, budget) for one in found}
    if sum({key: size for kept in sizes.values() for key, size in kept.items()}.values()) < least_bytes:
        return []
    living = _living_on_devices()
    referenced = _referenced(shell, found, frames, living)
    alone = [one for one in found if referenced.isdisjoint(map(id, (one.tensor, *one.chain)))]
    used = _in_use_by([tensor for tensor in living if id(tensor) in referenced])
    if used is None:
        return []
    references: dict[str, NotebookReference] = {}
    for one in alone:
        kept = {key: size for key, size in sizes[id(one)].items() if key not in used}
        used.update(kept)  # each storage is counted once
        before = references[one.name].size_bytes if one.name in references else 0
        references[one.name] = NotebookReference(one.name, before + sum(kept.values()), one.release)
    large = [one for one in references.values() if one.size_bytes >= least_bytes]
    return sorted(large, key=lambda one: -one.size_bytes)


# ---- what the notebook refers to ----


def _results(shell: Any) -> Iterator[_Candidate]:
    namespace: Mapping[str, Any] = shell.user_ns
    outputs = namespace.get("Out")
    seen: set[int] = set()
    named = [(f"Out[{number}]", value) for number, value in list(outputs.items())] if type(outputs) is dict else []
    named += [(name, value) for name, value in list(namespace.items()) if _is_result(shell, name, value)]
    for name, value in named[-MOST_RESULTS:] if len(named) > MOST_RESULTS else named:
        for tensor, chain in _tensors_in(value):
            if id(tensor) not in seen and value is not outputs:
                seen.add(id(tensor))
                yield _Candidate(name, RELEASE_RESULTS, tensor, chain)


def _is_result(shell: Any, name: str, value: Any) -> bool:
    """Whether IPython has set the variable. ``_`` may be the user's, as in ``output, _ = model(batch)``."""
    if not _RESULT_NAME.fullmatch(name):
        return False
    return name.strip("_") != "" or getattr(getattr(shell, "displayhook", None), name, None) is value


def _variables(frames: list[FrameType]) -> Iterator[_Candidate]:
    for frame in frames:
        if frame.f_code.co_name == "<module>":
            continue  # a cell: its variables are those of the notebook
        for name, value in locals_of(frame).items():
            where = f"{name} of {frame.f_code.co_name}() in the last error"
            for tensor, chain in _tensors_in(value):
                yield _Candidate(where, RELEASE_ERROR, tensor, chain)


def _failed_frames() -> list[FrameType]:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(sys, "last_traceback", None) or getattr(error, "__traceback__", None)
    running = set(map(id, running_frames()))
    frames = []
    while trace is not None:
        if id(trace.tb_frame) not in running:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _tensors_in(value: Any, chain: tuple[Any, ...] = ()) -> Iterator[tuple[torch.Tensor, tuple[Any, ...]]]:
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if value.is_cuda:
            yield value, chain
    elif len(chain) < DEEPEST and kind in (list, tuple, dict):
        for part in list(value.values() if kind is dict else value)[:MOST_RESULTS]:
            yield from _tensors_in(part, (*chain, value))


def _storages_of(tensor: torch.Tensor, budget: NodeBudget) -> Storages:
    """Storages of a tensor and of what its graph saved, on devices."""
    kept: Storages = {}
    storages.add(kept, tensor)
    if tensor.grad_fn is not None:
        graph = walk(tensor.grad_fn, budget)
        kept |= {key: size for key, size in graph.saved.items() if key not in graph.parameters}
    return kept


def _in_use_by(tensors: list[torch.Tensor]) -> Storages | None:
    """Storages of tensors, of their graphs, and of gradients and leaves, to which only C++ refers. None: a graph is too long."""
    budget, walked = NodeBudget(), set[Any]()
    used: Storages = {}
    for one in with_gradients(tensors):
        storages.add(used, one)
    for tensor in tensors:
        if tensor.grad_fn is not None:
            graph = walk(tensor.grad_fn, budget, walked)
            if not graph.complete:
                return None
            used |= graph.saved | graph.parameters
    return used


# ---- what refers to the same ----


def _living_on_devices() -> list[torch.Tensor]:
    """All tensors on devices that Python knows. Of many of them only a graph has a reference left."""
    import torch

    kinds = TensorKinds()
    tensors, _ = of_types([kind for kind in with_subclasses(torch.Tensor) if kinds.owns_memory(kind)])
    return [tensor for tensor in tensors if tensor.is_cuda]


def _referenced(shell: Any, found: list[_Candidate], frames: list[FrameType], living: list[torch.Tensor]) -> set[int]:
    """Candidates, containers of them and living tensors to which anything but the notebook refers, by identity."""
    wanted = {id(thing) for one in found for thing in (one.tensor, *one.chain)} | set(map(id, living))
    visible = {id(value) for name, value in list(shell.user_ns.items()) if not _is_result(shell, name, value)}
    for frame in running_frames():
        if frame.f_code.co_name != "<module>" or frame.f_globals is not shell.user_ns:
            visible.update(map(id, locals_of(frame).values()))
    expected = {id(one) for one in _own_references(shell, frames)}
    expected.update(id(part) for one in found for part in (one, one.chain, *one.chain))
    expected |= {id(found), id(living)}
    referenced = wanted & visible
    every = gc.get_objects()
    for at in range(0, len(every), _PIECE_OBJECTS):
        part = [one for one in every[at : at + _PIECE_OBJECTS] if id(one) not in expected and not _is_notebooks(one)]
        referenced |= wanted.intersection(map(id, gc.get_referents(*part)))
    return referenced


def _is_notebooks(thing: Any) -> bool:
    """Whether the object is IPython's own, or a frame of the agent."""
    kind = type(thing)
    if kind is FrameType:
        return is_own(thing.f_code.co_filename)
    return type_info.module_of(kind).startswith(("IPython.", "ipykernel."))


def _own_references(shell: Any, frames: list[FrameType]) -> Iterator[Any]:
    """What IPython refers with to results and to the failed frames. The names in ``user_ns`` are compared one by one."""
    yield from (shell.user_ns, shell.user_ns.get("Out"), getattr(shell, "user_ns_hidden", None))
    hook = getattr(shell, "displayhook", None)
    for part in (hook, getattr(hook, "exec_result", None), getattr(shell, "last_execution_result", None)):
        if part is not None:
            yield from (part, vars(part))
    for frame in frames:
        yield frame
        yield from (part for part in gc.get_referents(frame) if type(part) is dict and part is not frame.f_globals)
