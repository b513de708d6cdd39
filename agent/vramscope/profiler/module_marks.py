"""Marks each module's forward in a profile without Python stacks; with stacks PyTorch reports modules by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    import torch

MARK: Final = "vramscope module "
"""Prefix of the marks in a profile; the module's id follows."""


class ModuleMarks:
    """Listens to module calls for some steps. About 2 µs a module call.

    On every thread: a checkpointed block is recomputed on autograd's.
    """

    def __init__(self) -> None:
        import torch

        self._mark: Callable[[str], Any] = torch._C._profiler._RecordFunctionFast
        self._marks: dict[int, str] = {}
        self.kinds: dict[int, str] = {}
        """Class name by id."""
        self._inside: dict[int, list[tuple[int, Any]]] = {}
        """Open marks by thread."""
        self._ends: list[Callable[[], None]] = []

    def begin(self) -> None:
        after = guarded("module marks")(self._after)
        # Also if forward raises: a checkpointed block's recomputation ends that way.
        self._ends = [module_calls.listen_to_all(CallListener(guarded("module marks")(self._before), after, after))]

    def forget(self) -> None:
        """Stop listening."""
        while self._ends:
            self._ends.pop()()

    def end(self) -> None:
        """Stop listening, and close the open marks of this thread."""
        self.forget()
        inside = self._inside.pop(get_ident(), [])
        while inside:
            inside.pop()[1].__exit__(None, None, None)

    def _before(self, module: Any, *_: Any) -> None:
        ident = id(module)
        if ident not in self._marks:
            self._marks[ident], self.kinds[ident] = f"{MARK}{ident}", type(module).__name__
        mark = self._mark(self._marks[ident])
        mark.__enter__()
        self._inside.setdefault(get_ident(), []).append((ident, mark))

    def _after(self, module: Any, *_: Any) -> None:
        inside = self._inside.get(get_ident())
        if not inside:
            return
        ident = id(module)
        if all(ident != entered for entered, _ in inside):
            return
        # Leaving an outer one leaves those that were not left.
        while inside:
            left, mark = inside.pop()
            mark.__exit__(None, None, None)
            if left == ident:
                break


def names_of(roots: Iterable[torch.nn.Module], kinds: dict[int, str]) -> dict[int, tuple[str, str]]:
    """Return (name, class) of modules by id; the class for both if no root has the module (``kinds``)."""
    names = {ident: (kind, kind) for ident, kind in kinds.items()}
    for root in roots:
        for name, module in root.named_modules():
            kind = type(module).__name__
            names[id(module)] = name or kind, kind
    return names
