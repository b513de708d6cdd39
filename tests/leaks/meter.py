"""Weighs what a loop holds from step to step, knowing nothing of leaks: the allocator's bytes and the graphs alive."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


class _HeapInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


@dataclasses.dataclass
class Reading:
    """At the start of one step, all other memory of earlier steps being gone."""

    steps: int
    """Steps done at this reading."""
    allocated_bytes: int
    peak_bytes: int
    """Peak since the reading before."""
    reserved_bytes: int
    """Highest value since the reading before, of the whole process."""
    graphs: int
    """Number of graphs whose backward pass was called and of which a node is still alive."""
    heap_bytes: int
    """Host memory in use, from the C library."""


class Steps:
    """Tells where a step starts: the first call of a module after an optimizer's step.

    In a loop that has no optimizer each outermost call is a step.
    """

    def __init__(self) -> None:
        self.optimizer_steps = 0
        self.outermost_calls = 0
        self._depth = 0
        self._stepped = False

    @property
    def count(self) -> int:
        """Steps done: of the optimizer, or calls that returned where there is none."""
        return self.optimizer_steps or self.outermost_calls

    @contextlib.contextmanager
    def watched(self, on_start: Any = None) -> Iterator[None]:
        """While this lasts, ``on_start()`` is called as each step starts."""

        def enter(module: Any, args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self._depth += 1
            if self._depth == 1:
                if on_start is not None and (self._stepped or not self.optimizer_steps):
                    on_start()
                self._stepped = False

        def leave(module: Any, args: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self._depth -= 1
            if self._depth == 0:
                self.outermost_calls += 1

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.optimizer_steps += 1
            self._stepped = True

        hooks = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            register_optimizer_step_post_hook(stepped),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def weigh(loop: Any, device: str, *, collect: bool | None) -> list[Reading]:
    """Run the loop on a CUDA device and read at each step's start.

    collect  True: the garbage collector runs before each reading; False: never, so that cycles stay; None: as Python does
    """
    steps, readings = Steps(), []
    heap_info = ctypes.CDLL(None).mallinfo2
    heap_info.restype = _HeapInfo
    graphs: list[weakref.ref[Any]] = []
    backward = torch.autograd.backward

    def marking_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        root = (tensors if isinstance(tensors, torch.Tensor) else tensors[0]).grad_fn
        if root is not None and torch._C._current_graph_task_id() == -1:
            graphs.append(_marked(root))
        return backward(tensors, *args, **kwargs)

    def read() -> None:
        if collect:
            gc.collect()
        heap = heap_info()
        readings.append(
            Reading(
                steps.count,
                torch.cuda.memory_allocated() - before_bytes,
                torch.cuda.max_memory_allocated() - before_bytes,
                torch.cuda.max_memory_reserved(),
                sum(graph() is not None for graph in graphs),
                heap.uordblks + heap.hblkhd,
            )
        )
        torch.cuda.reset_peak_memory_stats()

    before_bytes = warm(device)
    gc.collect()
    gc.freeze()  # earlier objects are not visited any more: a collection then takes 1 ms, not 200
    if collect is not None:
        gc.disable()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.backward = marking_backward
    try:
        with steps.watched(read):
            result = loop(device)
            read()
            del result
    finally:
        torch.autograd.backward = backward
        gc.enable()
        gc.collect()
    return readings


def warm(device: str) -> int:
    """Let cuBLAS take its workspaces now, and not in the loop; nothing is cached then. The bytes that are allocated."""
    layer = torch.nn.Linear(8, 8, device=device)
    layer(torch.zeros(8, 8, device=device)).sum().backward()
    del layer
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def _marked(root: Any) -> weakref.ref[_Mark]:
    """One mark in every node of the graph but those of the parameters; it lives until the last of them goes."""
    mark, seen, ahead = _Mark(), {root}, [root]
    while ahead and len(seen) < 500:
        node = ahead.pop()
        node.register_hook(mark)
        inner = {child for child, _ in node.next_functions if child is not None and child.next_functions} - seen
        seen |= inner
        ahead += inner
    return weakref.ref(mark)


class _Mark:
    """A hook that does nothing but live in its nodes."""

    def __call__(self, *gradients: Any) -> None:
        return None
